"""The tensors given to execute: every kind of key and value, and every wrong one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.driver.base import DriverError
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.stream import Stream
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    MisalignedPointerError,
    NullPointerError,
    SizeInsufficientError,
    StreamMismatchError,
)

FLOAT = cudnn.data_type.FLOAT


class Add:
    """y = x + b over 64 elements: graph, device tensors, and a check that it still works."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.graph = pygraph("add", FLOAT, FLOAT, FLOAT, handle)
        self.tensor_x = self.graph.tensor([64], name="x", uid=10)
        self.tensor_b = self.graph.tensor([64], name="b", uid=20)
        self.tensor_y = self.graph.add(self.tensor_x, self.tensor_b).set_output(True).set_name("y").set_uid(30)
        self.x = lowdnn.from_numpy(np.arange(64, dtype=np.float32), handle)
        self.b = lowdnn.from_numpy(np.full(64, 2, np.float32), handle)
        self.y = lowdnn.from_numpy(np.zeros(64, np.float32), handle)

    @property
    def values(self) -> dict[Any, Any]:
        return {self.tensor_x: self.x, self.tensor_b: self.b, self.tensor_y: self.y}

    def check(self, values: dict[Any, Any] | None = None) -> None:
        self.y.copy_from(np.full(64, np.nan, np.float32))
        self.graph.execute(self.values if values is None else values)
        np.testing.assert_array_equal(self.y.numpy(), self.x.numpy() + 2)


@pytest.fixture
def case(handle: Handle) -> Add:
    return Add(handle)


class DlpackOnly:
    """Offers a device tensor through DLPack and nothing else."""

    def __init__(self, tensor: lowdnn.DeviceTensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        return self._tensor.__dlpack__(stream=stream, max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


class TorchLike:
    """The attributes of a torch tensor that execute reads; without an address it is one of the CPU."""

    def __init__(self, address: int | None = None, device: int = -1) -> None:
        self._address = address
        self._device = device

    def get_device(self) -> int:
        return self._device

    def data_ptr(self) -> int:
        assert self._address is not None
        return self._address

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self._address is None else (2, self._device)

    def __dlpack__(self, **_: object) -> object:
        return np.zeros(64, np.float32).__dlpack__()


@pytest.mark.parametrize(
    "keys",
    [
        lambda case: (case.tensor_x, case.tensor_b, case.tensor_y),
        lambda case: ("x", "b", "y"),
        lambda case: (10, 20, 30),
        lambda case: (case.tensor_x, "b", 30),
    ],
)
def test_keys_are_tensors_names_or_uids(case: Add, keys: Callable[[Add], tuple[Any, ...]]) -> None:
    for _ in range(2):
        case.check(dict(zip(keys(case), (case.x, case.b, case.y), strict=True)))


@pytest.mark.parametrize(
    "value",
    [lambda tensor: tensor, lambda tensor: tensor.ptr, lambda tensor: tensor.buffer, DlpackOnly],
    ids=["DeviceTensor", "int", "DeviceBuffer", "DLPack"],
)
def test_values_are_tensors_addresses_or_exporters(case: Add, value: Callable[[lowdnn.DeviceTensor], Any]) -> None:
    for _ in range(2):
        case.check({tensor: value(given) for tensor, given in case.values.items()})


def test_values_in_the_order_of_uids(case: Add) -> None:
    case.y.copy_from(np.full(64, np.nan, np.float32))
    case.graph.execute([case.y, case.x, case.b], tensor_uids=[30, 10, 20])
    np.testing.assert_array_equal(case.y.numpy(), case.x.numpy() + 2)
    with pytest.raises(BadParamError, match="expected a list of 2 values"):
        case.graph.execute([case.y], tensor_uids=[30, 10])
    with pytest.raises(DuplicatedEntriesError, match="tensor_uids: expected each uid once"):
        case.graph.execute([case.y, case.x], tensor_uids=[30, 30])


def test_tensors_may_change_from_call_to_call(case: Add) -> None:
    case.check()
    other = lowdnn.from_numpy(np.full(64, np.nan, np.float32), case.handle)
    case.graph.execute(case.values | {case.tensor_y: other})
    np.testing.assert_array_equal(other.numpy(), case.x.numpy() + 2)
    case.check()


def test_work_goes_into_the_handles_stream(case: Add) -> None:
    case.check()
    with Stream.create(case.handle.runtime.context) as stream:
        cudnn.set_stream(case.handle, stream.handle)
        assert cudnn.get_stream(case.handle) == stream.handle
        case.check()
        stream.begin_capture()
        case.graph.execute(case.values)
        graph = stream.end_capture()
        assert graph
        cudnn.set_stream(handle=case.handle, stream=0)


def device(
    case: Add, count: int, dtype: type, wrap: Callable[[lowdnn.DeviceTensor], Any] = lambda tensor: tensor
) -> Any:
    return wrap(lowdnn.from_numpy(np.zeros(count, dtype), case.handle))


WRONG: list[tuple[Callable[[Add], dict[Any, Any]], type[LowdnnError], str]] = [
    (lambda c: {c.tensor_x: c.x, c.tensor_y: c.y}, BadParamError, r"expected a value for 'b' \(uid 20\), got none"),
    (lambda c: c.values | {"x": c.x}, DuplicatedEntriesError, "expected each tensor once, got 'x'"),
    (
        lambda c: {"x": c.x, "b": c.b, "z": c.y, 99: c.y},
        BadParamError,
        r"a value for 'y' \(uid 30\), got none; the graph has no 'z', 99, and the names 'x', 'b', 'y'",
    ),
    (lambda c: c.values | {True: c.x}, BadParamError, "a tensor, a name or a uid as key, got True"),
    (lambda c: {1.5: c.x, "b": c.b, "y": c.y}, BadParamError, "a tensor, a name or a uid as key, got 1.5"),
    (lambda c: c.values | {c.tensor_b: 0}, NullPointerError, "uid 20"),
    (lambda c: c.values | {c.tensor_b: c.b.ptr + 4}, MisalignedPointerError, "expected a multiple of 16 bytes"),
    (lambda c: c.values | {c.tensor_b: "b"}, AttributeTypeError, "expected a device tensor"),
    (lambda c: c.values | {c.tensor_b: np.zeros(64, np.float32)}, StreamMismatchError, "device"),
    (lambda c: c.values | {c.tensor_b: TorchLike()}, StreamMismatchError, "device"),
    (lambda c: c.values | {c.tensor_b: None}, AttributeTypeError, "got NoneType"),
    (lambda c: list(c.values), AttributeTypeError, "tensor_dict: expected a dict"),
    (lambda c: c.values | {c.tensor_b: device(c, 63, np.float32, DlpackOnly)}, SizeInsufficientError, "got 252 bytes"),
    (
        lambda c: c.values | {c.tensor_b: device(c, 64, np.int32)},
        BadParamError,
        "expected elements of FLOAT, got INT32",
    ),
    (lambda c: c.values | {c.tensor_b: device(c, 64, np.int32, DlpackOnly)}, BadParamError, "of FLOAT, got INT32"),
    (
        lambda c: c.values | {c.tensor_b: lowdnn.from_numpy(np.zeros(63, np.float32), c.handle)},
        SizeInsufficientError,
        r"'b' \(uid 20\)\]: expected at least 256 bytes, got 252 bytes",
    ),
]


def test_bytes_stand_for_any_type(case: Add) -> None:
    raw = lowdnn.from_numpy(case.b.numpy().view(np.uint8), case.handle)
    case.check(case.values | {case.tensor_b: raw})


@pytest.mark.parametrize(("values", "error", "text"), WRONG)
@pytest.mark.parametrize("is_warm", [False, True], ids=["first call", "later call"])
def test_wrong_tensors_are_named_and_harm_nothing(
    case: Add, values: Callable[[Add], dict[Any, Any]], error: type[LowdnnError], text: str, is_warm: bool
) -> None:
    if is_warm:
        case.check()
    else:
        case.graph.build([cudnn.heur_mode.A])
    with pytest.raises(error, match=text) as caught:
        case.graph.execute(values(case))
    assert case.handle.last_error == str(caught.value)
    case.check()


def test_keys_that_the_graph_does_not_have_are_passed_over(case: Add, caplog: pytest.LogCaptureFixture) -> None:
    other = pygraph("other", FLOAT, FLOAT, FLOAT, case.handle).tensor([8], uid=77)
    case.check()
    counted = case.handle.runtime.counters
    for extra, count in (
        ({None: None}, 1),
        ({None: case.x, other: case.x}, 2),
        ({99: None, "z": None, np.int64(98): object()}, 3),
        ({pygraph("third", FLOAT, FLOAT, FLOAT).tensor([8]): case.x}, 1),
    ):
        before = counted.snapshot().get("keys_passed_over", 0)
        caplog.clear()
        for _ in range(3):
            case.check(case.values | extra)
        assert counted.snapshot()["keys_passed_over"] == before + count
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert len(warned) == bool(set(extra) - {None})
        assert all(f"count={count} unknown=" in line for line in warned)


def test_virtual_tensors_are_passed_over(case: Add) -> None:
    graph = pygraph("chain", FLOAT, FLOAT, FLOAT, case.handle)
    x = graph.tensor([64])
    inner = graph.relu(x)
    y = graph.relu(inner).set_output(True)
    for _ in range(2):
        graph.execute({x: case.x, inner: case.b, y: case.y})
        np.testing.assert_array_equal(case.y.numpy(), case.x.numpy())
    np.testing.assert_array_equal(case.b.numpy(), 2)
    assert case.handle.runtime.counters.snapshot()["keys_passed_over"] == 1


def test_other_keys_in_place_of_those_passed_over_are_looked_at(case: Add) -> None:
    case.check(case.values | {None: None})
    with pytest.raises(DuplicatedEntriesError, match="expected each tensor once, got 'x'"):
        case.graph.execute(case.values | {"x": case.x})
    with pytest.raises(BadParamError, match=r"as key, got 1\.5"):
        case.graph.execute(case.values | {1.5: case.x})


def test_a_scalar_of_the_graph_needs_no_value_and_takes_one(case: Add) -> None:
    graph = pygraph("scale", FLOAT, FLOAT, FLOAT, case.handle)
    x = graph.tensor([64])
    factor = graph.tensor_scalar(0.5, cudnn.scalar_type.RUNTIME_PARAM)
    constant = graph.tensor_scalar(3, cudnn.scalar_type.COMPILE_TIME_CONST)
    y = graph.add(graph.mul(x, factor), constant).set_output(True)
    for extra, expected in (({}, 0.5), ({factor: 2.0}, 2.0), ({}, 0.5)):
        graph.execute({x: case.x, y: case.y} | extra)
        np.testing.assert_array_equal(case.y.numpy(), case.x.numpy() * np.float32(expected) + 3)


def test_another_handle_of_the_same_device(case: Add) -> None:
    case.check()
    with Handle(type(case.handle.runtime)(case.handle.runtime.driver, config=case.handle.runtime.config)) as second:
        case.graph.execute(case.values, handle=second)


def test_another_handle_of_another_device(case: Add) -> None:
    case.check()
    if case.handle.runtime.driver.kind == "cuda":
        pytest.skip("one GPU is all there is")
    with cudnn.create_handle("emulated", arch=case.handle.arch.name) as second:
        other = Add(second)
        values = zip(case.values, other.values.values(), strict=True)
        case.graph.execute(dict(values), handle=second)
        np.testing.assert_array_equal(other.y.numpy(), other.x.numpy() + 2)


def test_a_name_of_two_tensors_is_no_key(case: Add) -> None:
    case.tensor_b.set_name("x")
    with pytest.raises(BadParamError, match="the name of one tensor, got 'x', which 2 have"):
        case.graph.execute({"x": case.x, 20: case.b, 30: case.y})


def test_torch_tensors_of_the_handles_gpu_are_taken_by_their_pointer(case: Add) -> None:
    case.handle.cuda_device = 3
    case.check({tensor: TorchLike(given.ptr, 3) for tensor, given in case.values.items()})
    with pytest.raises(StreamMismatchError, match="device"):
        case.graph.execute({tensor: TorchLike(given.ptr, 4) for tensor, given in case.values.items()})


def test_a_fault_of_the_device_keeps_nothing_of_its_callers(case: Add) -> None:
    class Marker:
        pass

    def fail() -> weakref.ref[Marker]:
        marker = Marker()
        freed = case.b.ptr
        case.b.close()
        with pytest.raises(DriverError, match="use-after-free"):
            case.graph.execute(case.values | {case.tensor_b: freed})
        return weakref.ref(marker)

    if case.handle.runtime.driver.kind != "emulated":
        pytest.skip("on a GPU memory that was freed may be there still")
    case.check()
    found = fail()
    gc.collect()
    assert found() is None


def test_memory_of_another_device_is_refused(case: Add) -> None:
    with cudnn.create_handle("emulated") as other:
        foreign = lowdnn.from_numpy(np.zeros(64, np.float32), other)
        with pytest.raises(StreamMismatchError, match="got memory of device 0 of another driver"):
            case.graph.execute(case.values | {case.tensor_b: foreign})
    case.check()


def test_a_device_tensor_for_a_by_value_tensor_is_refused_and_freed(case: Add) -> None:
    graph = pygraph("scale", FLOAT, FLOAT, FLOAT, case.handle)
    x = graph.tensor([64], name="x")
    factor = graph.tensor([1], is_pass_by_value=True, name="factor")
    y = graph.mul(x, factor).set_output(True)
    given = lowdnn.from_numpy(np.ones(1, np.float32), case.handle)
    watched = weakref.ref(given.buffer)
    for value in (given, given.buffer):
        with pytest.raises(AttributeTypeError, match="host array of one element"):
            graph.execute({x: case.x, factor: value, y: case.y})
    del given, value
    gc.collect()
    assert watched() is None
