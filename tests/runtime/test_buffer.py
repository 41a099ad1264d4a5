from __future__ import annotations

import gc

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.dlpack import read_capsule
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import (
    BadParamError,
    NotInitializedError,
    SizeInsufficientError,
    UnsupportedDataTypeError,
)


def is_allocated(device: Runtime, address: int) -> bool:
    with device.context.activated():
        return device.driver.pointer_info(address) is not None


def test_bytes_go_there_and_back(device: Runtime) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with DeviceBuffer.allocate(device.context, 48, data_type=DataType.FLOAT, shape=(3, 4)) as buffer:
        buffer.copy_from_host(array)
        assert buffer.address % 256 == 0
        assert buffer.ptr == buffer.address
        assert np.array_equal(buffer.to_host(), array)
        buffer.fill_bytes(0)
        assert not buffer.to_host().any()


def test_strides_describe_how_it_is_read(device: Runtime) -> None:
    array = np.arange(12, dtype=np.int32)
    buffer = DeviceBuffer.allocate(device.context, 48, data_type=DataType.INT32, shape=(4, 3), strides=(1, 4))
    buffer.copy_from_host(array)
    assert np.array_equal(buffer.to_host(), array.reshape(3, 4).T)
    raw = DeviceBuffer(device.context, buffer.address, 48)
    assert np.array_equal(raw.to_host().view(np.int32), array)


def test_copies_never_go_past_the_end(device: Runtime) -> None:
    small, large = (DeviceBuffer.allocate(device.context, size) for size in (16, 32))
    with pytest.raises(SizeInsufficientError, match="at most 16 bytes, got 17"):
        small.copy_from_host(np.zeros(17, np.uint8))
    with pytest.raises(SizeInsufficientError):
        small.copy_from(large, Stream.borrow(device.context, 0))
    with pytest.raises(BadParamError, match="C-contiguous"):
        large.copy_from_host(np.zeros((4, 4), np.uint8).T[1:])
    with pytest.raises(BadParamError):
        DeviceBuffer.allocate(device.context, -1)


def test_closing_and_collecting_free_memory(device: Runtime) -> None:
    buffer = DeviceBuffer.allocate(device.context, 1 << 20)
    address = buffer.address
    assert is_allocated(device, address)
    buffer.close()
    buffer.close()
    assert not is_allocated(device, address)
    with pytest.raises(NotInitializedError, match="DeviceBuffer"):
        buffer.to_host()
    buffer = DeviceBuffer.allocate(device.context, 1 << 20)
    address = buffer.address
    del buffer
    gc.collect()
    assert not is_allocated(device, address)


def test_an_empty_buffer(device: Runtime) -> None:
    with DeviceBuffer.allocate(device.context, 0, data_type=DataType.FLOAT, shape=(0, 3)) as buffer:
        assert buffer.address == 0
        assert buffer.to_host().shape == (0, 3)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_export(device: Runtime, version: tuple[int, int] | None) -> None:
    buffer = DeviceBuffer.allocate(device.context, 12, data_type=DataType.BFLOAT16, shape=(2, 3))
    facts = read_capsule(buffer.__dlpack__(stream=1, max_version=version))
    assert (facts.address, facts.data_type, facts.shape, facts.strides) == (
        buffer.address,
        DataType.BFLOAT16,
        (2, 3),
        (3, 1),
    )
    assert facts.device == buffer.__dlpack_device__() == (device.driver.dlpack_device_type, 0)


def test_dlpack_export_never_copies(device: Runtime) -> None:
    buffer = DeviceBuffer.allocate(device.context, 12, data_type=DataType.FLOAT, shape=(3,))
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(1, 0))
    for stream in (0, -2, "1", 1.0, True):
        with pytest.raises(BufferError, match="expected a stream's handle"):
            buffer.__dlpack__(stream=stream)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedDataTypeError, match="raw bytes"):
        DeviceBuffer.allocate(device.context, 12).__dlpack__(stream=1)


def test_numpy_is_refused_device_memory_and_nothing_leaks(device: Runtime) -> None:
    buffer = DeviceBuffer.allocate(device.context, 12, data_type=DataType.FLOAT, shape=(3,))
    address = buffer.address
    # NumPy itself refuses what a GPU exports, as a RuntimeError.
    with pytest.raises((BufferError, RuntimeError)) as caught:
        np.from_dlpack(buffer)
    assert caught.type is not SystemError
    if device.driver.kind == "emulated":
        assert caught.type is BufferError
    del buffer, caught
    gc.collect()
    assert not is_allocated(device, address)


def test_array_interface(device: Runtime) -> None:
    buffer = DeviceBuffer.allocate(device.context, 24, data_type=DataType.FLOAT, shape=(2, 3), strides=(1, 2))
    if device.driver.kind == "emulated":
        assert not hasattr(buffer, "__cuda_array_interface__")
        return
    interface = buffer.__cuda_array_interface__
    assert interface["data"] == (buffer.address, False)
    assert (interface["typestr"], interface["shape"], interface["strides"]) == ("<f4", (2, 3), (4, 8))
