"""cudnnFFTCausalConv1d* and cudnnLongFFTCausalConv1d*: through C, against transforms in float64."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.capi import Caller, Memory
from tests.support.data import fresh_seed
from tests.support.drawn_call import DrawnCall

F, H, B16, D64 = DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE
FFT, LONG = "cudnnFFTCausalConv1d", "cudnnLongFFTCausalConv1d"


class Drawn(DrawnCall):
    """A random call, of given sizes where the test is about them; x, weight and the gradient of y in memory."""

    def __init__(self, device: Runtime, seed: int, sizes: tuple[int, int, int, int] = (), kind: Any = None) -> None:
        super().__init__(device, seed)
        self.taps = int(self.rng.choice([1, 2, 7, 16, 64]))
        if sizes:
            *dims, self.taps = sizes
            self.dims = tuple(dims)
        self.type = kind or self.type
        self.given = {port: self.put(port) for port in ("x", "weight", "dy")}
        self.made = {port: self.put(port) for port in ("y", "dx", "dweight")}

    @property
    def sizes(self) -> tuple[int, ...]:
        return (*self.dims, self.taps, self.type)

    def dims_of(self, port: str) -> tuple[int, ...]:
        return (self.dims[1], self.taps) if port.endswith("weight") else self.dims

    def check_all(self, seed: int, *ports: str) -> None:
        """Errors of transforms are relative to the size of all elements."""
        wanted = results(self.values, self.taps)
        for port in ports:
            size = np.sqrt(np.mean(wanted[port] ** 2)) + 1e-30
            found = self.get(self.made[port], port)
            self.check(found / size, wanted[port] / size, self.type, f"seed {seed}, {self.sizes}, {port}")


def results(values: dict[str, NDArray[Any]], taps: int) -> dict[str, NDArray[Any]]:
    """y, dx and dweight by transforms of the whole sequence, in float64."""
    x, weight, dy = (values[port].astype(np.float64) for port in ("x", "weight", "dy"))
    length = x.shape[2]
    points = 2 * max(length, taps)
    of_x, of_weight, of_dy = (np.fft.rfft(item, points) for item in (x, weight, dy))
    return {
        "y": np.fft.irfft(of_x * of_weight, points)[..., :length],
        "dx": np.fft.irfft(of_dy * of_weight.conj(), points)[..., :length],
        "dweight": np.fft.irfft((of_dy * of_x.conj()).sum(0), points)[..., :taps],
    }


def call_medium(caller: Caller, drawn: Drawn) -> None:
    given, made = drawn.given, drawn.made
    caller.call(f"{FFT}Forward", 0, given["x"], given["weight"], made["y"], *drawn.sizes)
    gradients = (made["dx"], made["dweight"])
    caller.call(f"{FFT}Backward", 0, given["x"], given["weight"], given["dy"], *gradients, *drawn.sizes)


def buffers_of(caller: Caller, drawn: Drawn) -> tuple[int, int, int, int]:
    """The workspace, the reserve space, and their bytes, as the query says."""
    sizes = (ctypes.c_size_t(), ctypes.c_size_t())
    caller.call(f"{LONG}GetBufferSizes", *drawn.sizes, *map(ctypes.byref, sizes))
    made = ((drawn.memory.put(np.zeros(size.value or 1, np.uint8)), size.value) for size in sizes)
    return tuple(number for pair in made for number in pair)


def call_long(caller: Caller, drawn: Drawn) -> None:
    """x and weight are gone before the gradients, which read the reserve space."""
    given, made, buffers = drawn.given, drawn.made, buffers_of(caller, drawn)
    caller.call(f"{LONG}Forward", 0, given["x"], given["weight"], made["y"], *drawn.sizes, *buffers)
    for port in ("x", "weight"):
        drawn.memory.fill(given[port], 0x7F)
    caller.call(f"{LONG}Backward", 0, given["dy"], made["dx"], made["dweight"], *drawn.sizes, *buffers)


@pytest.mark.parametrize("run", [call_medium, call_long])
def test_small_sizes_of_any_kind(caller: Caller, device: Runtime, run: Any) -> None:
    for _ in range(2):
        drawn = Drawn(device, seed := fresh_seed())
        run(caller, drawn)
        device.context.synchronize()
        drawn.check_all(seed, "y", "dx", "dweight")


@pytest.mark.parametrize(
    ("run", "sizes", "kind"),
    [
        (call_medium, (2, 3, 512, 128), H),
        (call_medium, (1, 1, 4096, 1024), B16),
        (call_long, (2, 1, 4096, 4096), F),
        (call_long, (1, 1, 65536, 65536), F),
    ],
)
def test_long_filters(caller: Caller, device: Runtime, run: Any, sizes: tuple[int, int, int, int], kind: Any) -> None:
    drawn = Drawn(device, seed := fresh_seed(), sizes, kind)
    run(caller, drawn)
    device.context.synchronize()
    drawn.check_all(seed, "y", "dx", "dweight")


@pytest.mark.parametrize(
    ("changed", "status", "message"),
    [
        ({"x": None}, Status.BAD_PARAM_NULL_POINTER, f"{FFT}Forward.x"),
        ({"weight": None}, Status.BAD_PARAM_NULL_POINTER, f"{FFT}Forward.weight"),
        ({"batch": 0}, Status.BAD_PARAM, f"{FFT}Forward.batch: expected 1 or more, got 0"),
        ({"taps": 0}, Status.BAD_PARAM, f"{FFT}Forward.kernelSize: expected 1 or more, got 0"),
        ({"type": DataType.INT8}, Status.NOT_SUPPORTED, f"{FFT}Forward.dataType: expected one of FLOAT"),
    ],
)
def test_what_is_refused(
    caller: Caller, device: Runtime, changed: dict[str, Any], status: Status, message: str
) -> None:
    address = Memory(device).put(np.zeros(64, np.float32))
    given: dict[str, Any] = dict.fromkeys(("x", "weight", "y"), address)
    given |= {"batch": 1, "dim": 2, "length": 9, "taps": 4, "type": F} | changed
    assert caller.status(f"{FFT}Forward", 0, *given.values()) is status
    assert message in caller.last_error()


def test_buffers_that_are_too_small(caller: Caller, device: Runtime) -> None:
    drawn = Drawn(device, fresh_seed(), (1, 2, 4096, 4096), F)
    workspace, workspace_bytes, reserve, reserve_bytes = buffers_of(caller, drawn)
    assert workspace_bytes > 0
    assert reserve_bytes == (2 * 4096 + 2 * 4096) * 4
    tensors = (0, drawn.given["x"], drawn.given["weight"], drawn.made["y"], *drawn.sizes)
    before = drawn.memory.get(drawn.made["y"]).copy()
    for buffers, argument in (
        ((workspace, workspace_bytes - 1, reserve, reserve_bytes), "workspaceSizeInBytes"),
        ((workspace, workspace_bytes, reserve, reserve_bytes - 1), "reserveSpaceSizeInBytes"),
    ):
        assert caller.status(f"{LONG}Forward", *tensors, *buffers) is Status.BAD_PARAM_SIZE_INSUFFICIENT
        assert f"{LONG}Forward.{argument}: expected at least" in caller.last_error()
    missing = (workspace, workspace_bytes, None, reserve_bytes)
    assert caller.status(f"{LONG}Forward", *tensors, *missing) is Status.BAD_PARAM_NULL_POINTER
    device.context.synchronize()
    np.testing.assert_array_equal(drawn.memory.get(drawn.made["y"]), before)
