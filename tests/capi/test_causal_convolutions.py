"""cudnnCausalConv1d*: through C, on a stream, against the operations' references."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from lowdnn.capi.loading import Binding
from lowdnn.enums import DataType
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.status import Status
from lowdnn.subquadratic_enums import CausalConv1dActivation
from tests.support.capi import Caller, Memory
from tests.support.data import fresh_seed
from tests.support.drawn_call import DrawnCall

F, H, D64 = DataType.FLOAT, DataType.HALF, DataType.DOUBLE


class Drawn(DrawnCall):
    """A random call of the functions for one convolution."""

    def __init__(self, device: Runtime, seed: int, *, is_nwh: bool) -> None:
        super().__init__(device, seed)
        self.is_nwh = is_nwh
        self.activation = CausalConv1dActivation(self.rng.integers(2))
        self.taps = int(self.rng.choice([1, 2, 3, 4, 8, 16, 32]))

    @property
    def name(self) -> str:
        return f"cudnnCausalConv1d{'Nwh' if self.is_nwh else ''}"

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.dims, self.taps, self.type)

    def dims_of(self, port: str) -> tuple[int, ...]:
        if port.endswith("weight"):
            return (self.dims[1], self.taps)
        return self.dims[1:2] if port.endswith("bias") else self.dims

    def turned(self, values: Any) -> Any:
        """The last two axes change places where channels are side by side."""
        return np.ascontiguousarray(values.swapaxes(-1, -2)) if self.is_nwh and values.ndim > 1 else values


@pytest.mark.parametrize("is_nwh", [False, True])
def test_forward(caller: Caller, device: Runtime, is_nwh: bool) -> None:
    for _ in range(4):
        drawn = Drawn(device, seed := fresh_seed(), is_nwh=is_nwh)
        x, weight, bias, y = (drawn.put(port) for port in ("x", "weight", "bias", "y"))
        caller.call(f"{drawn.name}Forward", 0, x, weight, bias, y, *drawn.sizes, drawn.activation)
        device.context.synchronize()
        wanted = CausalConv1dForward(activation=drawn.activation, **drawn.tensors).reference(drawn.values)["y"]
        drawn.check(drawn.get(y, "y"), wanted, drawn.type, f"seed {seed}")


@pytest.mark.parametrize("is_nwh", [False, True])
def test_backward_adds_to_the_sums(caller: Caller, device: Runtime, is_nwh: bool) -> None:
    for _ in range(4):
        drawn = Drawn(device, seed := fresh_seed(), is_nwh=is_nwh)
        inputs = [drawn.put(port) for port in ("x", "weight", "bias", "dy")]
        outputs = [drawn.put("dx"), drawn.put("dweight", drawn.sums), drawn.put("dbias", drawn.sums)]
        sizes = (*drawn.sizes, drawn.sums, drawn.activation)
        caller.call(f"{drawn.name}Backward", 0, *inputs, *outputs, *sizes)
        device.context.synchronize()
        wanted = CausalConv1dBackward(activation=drawn.activation, **drawn.tensors).reference(drawn.values)
        for address, port in zip(outputs, ("dx", "dweight", "dbias"), strict=True):
            expected = wanted[port] + (0 if port == "dx" else drawn.values[port])
            kind = drawn.type if port == "dx" or drawn.type is not D64 else D64
            drawn.check(drawn.get(address, port), expected, kind, f"seed {seed}, {port}")


def test_streams_and_threads(caller: Caller, device: Runtime) -> None:
    """Each call goes to its own stream, whichever thread makes it."""
    wrong: list[str] = []

    def work() -> None:
        drawn, stream = Drawn(device, fresh_seed(), is_nwh=False), Stream.create(device.context)
        x, weight, bias, y = (drawn.put(port) for port in ("x", "weight", "bias", "y"))
        arguments = (stream.handle, x, weight, bias, y, *drawn.sizes, drawn.activation)
        status = caller.status(f"{drawn.name}Forward", *arguments)
        stream.synchronize()
        wanted = CausalConv1dForward(activation=drawn.activation, **drawn.tensors).reference(drawn.values)["y"]
        try:
            assert status is Status.SUCCESS
            drawn.check(drawn.get(y, "y"), wanted, drawn.type, "")
        except AssertionError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_work_goes_to_the_stream(caller: Caller, device: Runtime) -> None:
    """A call in a stream that is captured is recorded and does not run."""
    drawn, stream = Drawn(device, fresh_seed(), is_nwh=False), Stream.create(device.context)
    x, weight, bias, y, other = (drawn.put(port) for port in ("x", "weight", "bias", "y", "y"))
    sizes = (*drawn.sizes, drawn.activation)
    caller.call(f"{drawn.name}Forward", stream.handle, x, weight, bias, y, *sizes)
    before = drawn.memory.get(other).copy()
    caller.call(f"{drawn.name}Forward", 0, x, weight, bias, y, *sizes)
    stream.begin_capture()
    caller.call(f"{drawn.name}Forward", stream.handle, x, weight, bias, other, *sizes)
    device.context.driver.graph_destroy(stream.end_capture())
    device.context.synchronize()
    np.testing.assert_array_equal(drawn.memory.get(other), before)
    assert (drawn.memory.get(y) != before).any()


def test_a_call_inside_of_another_has_its_own_stream(binding: Binding, device: Runtime) -> None:
    """A log callback may make calls: the outer call goes on in its stream, and no lock is waited for."""
    outer, inner = (Stream.create(device.context) for _ in range(2))
    with binding.state.on_stream(outer.handle) as handle:
        with binding.state.on_stream(inner.handle) as same:
            assert same is handle
            assert handle.stream == inner.handle
        assert handle.stream == outer.handle


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"x": None}, Status.BAD_PARAM_NULL_POINTER, "cudnnCausalConv1dForward.x"),
        ({"bias": None}, Status.BAD_PARAM_NULL_POINTER, "cudnnCausalConv1dForward.bias"),
        ({"batch": 0}, Status.BAD_PARAM, "cudnnCausalConv1dForward.batch: expected 1 or more, got 0"),
        ({"taps": -1}, Status.BAD_PARAM, "cudnnCausalConv1dForward.kernelSize: expected 1 or more, got -1"),
        ({"type": DataType.INT8}, Status.NOT_SUPPORTED, "cudnnCausalConv1dForward.dataType: expected one of FLOAT"),
        ({"activation": 2}, Status.BAD_PARAM, "cudnnCausalConv1dForward.activation: expected a number of"),
    ],
)
def test_what_is_refused(
    caller: Caller, device: Runtime, changed: dict[str, Any], status: Status, message: str
) -> None:
    memory = Memory(device)
    arrays = {"x": (2, 3, 9), "weight": (3, 4), "bias": (3,), "y": (2, 3, 9)}
    given: dict[str, Any] = {port: memory.put(np.zeros(dims, np.float32)) for port, dims in arrays.items()}
    given |= {"batch": 2, "dim": 3, "length": 9, "taps": 4, "type": F, "activation": 0} | changed
    assert caller.status("cudnnCausalConv1dForward", ctypes.c_void_p(0), *given.values()) is status
    assert message in caller.last_error()


def test_sums_have_one_type(caller: Caller, device: Runtime) -> None:
    address = Memory(device).put(np.zeros(64, np.float32))
    arguments = (0, *[address] * 7, 1, 2, 8, 4, H, H, 0)
    assert caller.status("cudnnCausalConv1dBackward", *arguments) is Status.NOT_SUPPORTED
    assert "cudnnCausalConv1dBackward.dwDataType: expected FLOAT for HALF, got HALF" in caller.last_error()
