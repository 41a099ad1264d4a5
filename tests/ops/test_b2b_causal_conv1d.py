"""``B2BCausalConv1dForward`` and its gradient: checks, and references against other forms of the sums."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.b2b_causal_conv1d_backward import B2BCausalConv1dBackward
from lowdnn.ops.b2b_causal_conv1d_forward import B2BCausalConv1dForward
from lowdnn.ops.base import inputs_of
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import LowdnnError
from tests.support.data import fresh_seed

#: (B, D, L), and the dims of the inputs.
DIMS = (2, 2, 9)
GIVEN = {"x": (2, 6, 9), "weights_proj": (6, 3), "weights_mixer": (2, 4), "skip_bias": (2,)}


def tensor(uid: int, *dims: int, data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def given() -> dict[str, Tensor]:
    return {port: tensor(uid, *dims) for uid, (port, dims) in enumerate(GIVEN.items())}


def forward(**changes: Any) -> B2BCausalConv1dForward:
    return B2BCausalConv1dForward(**given() | {"y": tensor(8, *DIMS), "y_gated": tensor(9, *DIMS)} | changes)


def backward(**changes: Any) -> B2BCausalConv1dBackward:
    ports = {"y": tensor(8, *DIMS), "dy": tensor(9, *DIMS)}
    ports |= {f"d{port}": tensor(10 + uid, *dims) for uid, (port, dims) in enumerate(GIVEN.items())}
    return B2BCausalConv1dBackward(**given() | ports | changes)


def values_of(operation: B2BCausalConv1dForward | B2BCausalConv1dBackward) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(fresh_seed())
    return {port: rng.standard_normal(found.dims) for port, found in inputs_of(operation).items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": tensor(1, 2, 54)}, "x.dims: expected [batch, 3 * channels, length], got [2, 54]"),
        ({"x": tensor(1, 2, 5, 9)}, "x.dims: expected [2, 6, 9], got [2, 5, 9]"),
        ({"weights_proj": tensor(2, 2, 3)}, "weights_proj.dims: expected [6, 3], got [2, 3]"),
        (
            {"weights_mixer": tensor(2, 2, 0)},
            "weights_mixer.dims: expected [channels, filter length] of 1 or more taps, got [2, 0]",
        ),
        ({"skip_bias": tensor(2, 6)}, "skip_bias.dims: expected [2], got [6]"),
        ({"y": tensor(2, 2, 2, 8)}, "y.dims: expected [2, 2, 9], got [2, 2, 8]"),
        ({"y_gated": tensor(2, 2, 6, 9)}, "y_gated.dims: expected [2, 2, 9], got [2, 6, 9]"),
        ({"skip_bias": tensor(2, 2, data_type=DataType.INT32)}, "skip_bias.data_type: expected"),
    ],
)
def test_what_is_refused(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(LowdnnError, match=re.escape(f" b2b_causal_conv1d_forward.{message}")):
        forward(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dy": tensor(3, 2, 6, 9)}, "dy.dims: expected [2, 2, 9], got [2, 6, 9]"),
        ({"dx": tensor(3, 2, 2, 9)}, "dx.dims: expected [2, 6, 9], got [2, 2, 9]"),
        ({"dweights_mixer": tensor(3, 2, 3)}, "dweights_mixer.dims: expected [2, 4], got [2, 3]"),
        ({"dskip_bias": tensor(3, 2, data_type=DataType.INT8)}, "dskip_bias.data_type: expected"),
    ],
)
def test_what_is_refused_of_gradients(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(LowdnnError, match=re.escape(f" b2b_causal_conv1d_backward.{message}")):
        backward(**changes)


def test_it_is_two_convolutions_with_gates() -> None:
    operation = forward()
    values = values_of(operation)
    found = operation.reference(values)
    for b in range(DIMS[0]):
        for d in range(DIMS[1]):
            rows = (
                np.convolve(values["x"][b, 3 * d + i], values["weights_proj"][3 * d + i, ::-1])[:9] for i in range(3)
            )
            own, one, other = rows
            gate = one * other
            y = np.convolve(gate, values["weights_mixer"][d, ::-1])[:9] + values["skip_bias"][d] * gate
            np.testing.assert_allclose(found["y"][b, d], y)
            np.testing.assert_allclose(found["y_gated"][b, d], y * own)


def test_gradients_are_those_of_differences() -> None:
    ahead, back, step = forward(), backward(), 1e-6
    values = values_of(back)
    values["y"] = ahead.reference(values)["y"]
    found = back.reference(values)
    for port in GIVEN:
        numeric = np.zeros(values[port].shape)
        for at in np.ndindex(values[port].shape):
            sums = []
            for sign in (1, -1):
                moved = values[port].copy()
                moved[at] += sign * step
                sums.append(np.sum(values["dy"] * ahead.reference({**values, port: moved})["y_gated"]))
            numeric[at] = (sums[0] - sums[1]) / (2 * step)
        np.testing.assert_allclose(found[f"d{port}"], numeric, rtol=1e-5, atol=1e-5, err_msg=port)
