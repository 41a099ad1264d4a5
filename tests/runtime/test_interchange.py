from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from lowdnn.config import Config
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.dlpack import make_capsule
from lowdnn.runtime.interchange import view_of
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import AttributeTypeError, BadParamError, StreamMismatchError, UnsupportedDataTypeError


class CudaLookalike(EmulatedDriver):
    """The emulated device under the GPU's DLPack type, so that array interfaces are taken."""

    dlpack_device_type = 2

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[int, int]] = []

    def event_record(self, event: int, stream: int) -> None:
        self.waits.append((event, stream))
        super().event_record(event, stream)

    def stream_wait_event(self, stream: int, event: int) -> None:
        self.waits.append((event, stream))
        super().stream_wait_event(stream, event)


@pytest.fixture
def lookalike() -> Iterator[Runtime]:
    driver = CudaLookalike()
    driver.init()
    with Runtime(driver, config=Config(disk_cache=False)) as runtime:
        yield runtime


class Producer:
    """A tensor of another library on ``device``; knows ``max_version`` unless it is ``old``."""

    def __init__(self, device: tuple[int, int], *, is_old: bool = False) -> None:
        self.device = device
        self.is_old = is_old
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int, **options: object) -> object:
        if self.is_old and options:
            raise TypeError("unexpected keyword max_version")
        self.streams.append(stream)
        return make_capsule(
            self,
            address=0x1000,
            device=self.device,
            data_type=DataType.HALF,
            shape=(4,),
            strides=(1,),
            is_versioned=bool(options),
        )


class ArrayLike:
    def __init__(self, **changes: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x2000, False),
            "strides": None,
            "stream": None,
            "version": 3,
        } | changes


def test_integers_are_addresses(device: Runtime) -> None:
    assert view_of(0x10, device.context).address == 0x10
    assert view_of(np.uint64(0x10), device.context).address == 0x10


def test_own_buffers(device: Runtime) -> None:
    buffer = DeviceBuffer.allocate(device.context, 24, data_type=DataType.FLOAT, shape=(2, 3))
    view = view_of(buffer, device.context)
    assert (view.address, view.data_type, view.shape, view.strides) == (buffer.address, DataType.FLOAT, (2, 3), (3, 1))
    assert view.owner is buffer


def test_buffers_of_another_device(device: Runtime) -> None:
    with Runtime.open("emulated", config=Config(disk_cache=False)) as other:
        buffer = DeviceBuffer.allocate(other.context, 16)
        with pytest.raises(StreamMismatchError, match="another driver"):
            view_of(buffer, device.context)


@pytest.mark.parametrize("is_old", [False, True])
def test_dlpack_producers_are_told_our_stream(device: Runtime, is_old: bool) -> None:
    producer = Producer((device.driver.dlpack_device_type, 0), is_old=is_old)
    view = view_of(producer, device.context, 0x77)
    assert (view.address, view.data_type, view.shape) == (0x1000, DataType.HALF, (4,))
    view_of(producer, device.context, 0)
    assert producer.streams == [0x77, 1]


def test_a_producer_that_refuses_to_export(device: Runtime) -> None:
    class RequiresGrad(Producer):
        def __dlpack__(self, *, stream: int, **options: object) -> object:
            raise BufferError("Can't export tensors that require gradient")

    with pytest.raises(BadParamError, match=r"require gradient; detach\(\)"):
        view_of(RequiresGrad((device.driver.dlpack_device_type, 0)), device.context)


@pytest.mark.parametrize("where", [(1, 0), (3, 0), (10, 0)])
def test_dlpack_of_another_kind_of_memory(device: Runtime, where: tuple[int, int]) -> None:
    with pytest.raises(StreamMismatchError, match="__dlpack_device__"):
        view_of(Producer(where), device.context)


def test_dlpack_of_another_ordinal(device: Runtime) -> None:
    with pytest.raises(StreamMismatchError, match="ordinal 1"):
        view_of(Producer((device.driver.dlpack_device_type, 1)), device.context)


def test_array_interface(lookalike: Runtime) -> None:
    array = ArrayLike(data=(0x2000, True), strides=(4, 8))
    view = view_of(array, lookalike.context)
    assert (view.address, view.data_type, view.shape, view.strides) == (0x2000, DataType.FLOAT, (2, 3), (1, 2))
    assert view.is_read_only
    assert view.owner is array
    assert view_of(ArrayLike(), lookalike.context).strides is None


def test_the_producers_stream_is_waited_for(lookalike: Runtime) -> None:
    driver = lookalike.driver
    assert isinstance(driver, CudaLookalike)
    view_of(ArrayLike(stream=None), lookalike.context, 2)
    view_of(ArrayLike(stream=2), lookalike.context, 2)
    assert driver.waits == []
    view_of(ArrayLike(stream=1), lookalike.context, 2)
    assert [stream for _, stream in driver.waits] == [1, 2]
    assert len({event for event, _ in driver.waits}) == 1


class Malformed:
    CASES: ClassVar[list[tuple[dict[str, Any], type[Exception], str]]] = [
        ({"stream": 0}, BadParamError, "stream: expected None"),
        ({"typestr": "<c8"}, UnsupportedDataTypeError, "typestr"),
        ({"typestr": ">f4"}, UnsupportedDataTypeError, "typestr"),
        ({"strides": (4, 6)}, BadParamError, "multiples of 4 bytes"),
    ]


@pytest.mark.parametrize(("changes", "error", "message"), Malformed.CASES)
def test_malformed_interfaces(
    lookalike: Runtime, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        view_of(ArrayLike(**changes), lookalike.context)


def test_incomplete_interface(lookalike: Runtime) -> None:
    array = ArrayLike()
    del array.__cuda_array_interface__["typestr"]
    with pytest.raises(BadParamError, match="a mapping with shape"):
        view_of(array, lookalike.context)


def test_gpu_arrays_are_refused_by_the_emulated_device() -> None:
    with (
        Runtime.open("emulated", config=Config(disk_cache=False)) as runtime,
        pytest.raises(StreamMismatchError, match="memory of a GPU"),
    ):
        view_of(ArrayLike(), runtime.context)


@pytest.mark.parametrize("value", [None, True, 1.5, "x", [1, 2]])
def test_what_is_no_tensor(device: Runtime, value: object) -> None:
    with pytest.raises(AttributeTypeError, match="tensor: expected a device tensor"):
        view_of(value, device.context)


def test_host_arrays_are_refused(device: Runtime) -> None:
    with pytest.raises(StreamMismatchError, match="type 1"):
        view_of(np.zeros(3), device.context)
