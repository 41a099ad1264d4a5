"""cudnnB2BCausalConv1d*: through C, on a stream, against the operations' references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory
from tests.support.data import fresh_seed
from tests.support.drawn_call import DrawnCall

F, H, D64 = DataType.FLOAT, DataType.HALF, DataType.DOUBLE
GIVEN = ("x", "weights_proj", "weights_mixer", "skip_bias")
SUMS = ("dweights_proj", "dweights_mixer", "dskip_bias")
FORWARD, BACKWARD = "cudnnB2BCausalConv1dForward", "cudnnB2BCausalConv1dBackward"


class Drawn(DrawnCall):
    """A random call of the functions for two convolutions."""

    def __init__(self, device: Runtime, seed: int) -> None:
        super().__init__(device, seed)
        self.taps = tuple(int(self.rng.choice(counts)) for counts in ((1, 2, 4, 9), (1, 3, 8, 17)))

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.dims, *self.taps, self.type)

    def dims_of(self, port: str) -> tuple[int, ...]:
        batch, channels, length = self.dims
        projection, mixer = self.taps
        found = {
            "x": (batch, 3 * channels, length),
            "weights_proj": (3 * channels, projection),
            "weights_mixer": (channels, mixer),
            "skip_bias": (channels,),
        }
        return found.get(port.removeprefix("d"), self.dims)


def test_forward(caller: Caller, device: Runtime) -> None:
    for _ in range(4):
        drawn = Drawn(device, seed := fresh_seed())
        inputs, outputs = [drawn.put(port) for port in GIVEN], [drawn.put(port) for port in ("y", "y_gated")]
        caller.call(FORWARD, 0, *inputs, *outputs, *drawn.sizes)
        device.context.synchronize()
        wanted = B2BCausalConv1dForward(**drawn.tensors).reference(drawn.values)
        for address, port in zip(outputs, ("y", "y_gated"), strict=True):
            found, size = drawn.get(address, port), np.abs(wanted[port]).max() + 1
            drawn.check(found / size, wanted[port] / size, drawn.type, f"seed {seed}, {port}")


def test_backward_adds_to_the_sums(caller: Caller, device: Runtime) -> None:
    for _ in range(4):
        drawn = Drawn(device, seed := fresh_seed())
        inputs = [drawn.put(port) for port in (*GIVEN, "y", "dy")]
        outputs = [drawn.put("dx"), *(drawn.put(port, drawn.sums) for port in SUMS)]
        caller.call(BACKWARD, 0, *inputs, *outputs, *drawn.sizes, drawn.sums)
        device.context.synchronize()
        wanted = B2BCausalConv1dBackward(**drawn.tensors).reference(drawn.values)
        for address, port in zip(outputs, ("dx", *SUMS), strict=True):
            expected = wanted[port] + (0 if port == "dx" else drawn.values[port])
            found, size = drawn.get(address, port), np.abs(expected).max() + 1
            kind = drawn.type if port == "dx" or drawn.type is D64 else F
            drawn.check(found / size, expected / size, kind, f"seed {seed}, {port}")


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"x": None}, Status.BAD_PARAM_NULL_POINTER, f"{FORWARD}.x"),
        ({"skip_bias": None}, Status.BAD_PARAM_NULL_POINTER, f"{FORWARD}.skipBias"),
        ({"y_gated": None}, Status.BAD_PARAM_NULL_POINTER, f"{FORWARD}.yGated"),
        ({"batch": 0}, Status.BAD_PARAM, f"{FORWARD}.batch: expected 1 or more, got 0"),
        ({"dim": -2}, Status.BAD_PARAM, f"{FORWARD}.dim: expected 1 or more, got -2"),
        ({"length": 0}, Status.BAD_PARAM, f"{FORWARD}.seqLen: expected 1 or more, got 0"),
        ({"projection": 0}, Status.BAD_PARAM, f"{FORWARD}.kernelSizeProj: expected 1 or more, got 0"),
        ({"mixer": -1}, Status.BAD_PARAM, f"{FORWARD}.kernelSizeMixer: expected 1 or more, got -1"),
        ({"type": DataType.INT8}, Status.NOT_SUPPORTED, f"{FORWARD}.dataType: expected one of FLOAT"),
    ],
)
def test_what_is_refused(
    caller: Caller, device: Runtime, changed: dict[str, Any], status: Status, message: str
) -> None:
    address = Memory(device).put(np.zeros(64, np.float32))
    given: dict[str, Any] = dict.fromkeys((*GIVEN, "y", "y_gated"), address)
    given |= {"batch": 1, "dim": 2, "length": 9, "projection": 3, "mixer": 4, "type": F} | changed
    assert caller.status(FORWARD, 0, *given.values()) is status
    assert message in caller.last_error()


def test_sums_have_one_type(caller: Caller, device: Runtime) -> None:
    address = Memory(device).put(np.zeros(64, np.float32))
    arguments = (0, *[address] * 10, 1, 2, 8, 4, 4, H, H)
    assert caller.status(BACKWARD, *arguments) is Status.NOT_SUPPORTED
    assert f"{BACKWARD}.dwDataType: expected FLOAT for HALF, got HALF" in caller.last_error()
