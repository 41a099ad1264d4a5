"""``CausalConv1dForward`` and ``CausalConv1dBackward``: checks, and references against other forms of the sums."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType
from lowdnn.ops.base import inputs_of
from lowdnn.ops.causal_conv1d_backward import CausalConv1dBackward
from lowdnn.ops.causal_conv1d_forward import CausalConv1dForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import LowdnnError
from lowdnn.subquadratic_enums import CausalConv1dActivation

SILU = CausalConv1dActivation.SILU


def tensor(uid: int, *dims: int, data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


#: The slots of two sequences.
INDICES = tensor(4, 2, data_type=DataType.INT32)


def forward(**changes: Any) -> CausalConv1dForward:
    ports = {"x": tensor(1, 2, 3, 9), "weight": tensor(2, 3, 4), "y": tensor(3, 2, 3, 9)} | changes
    return CausalConv1dForward(**ports)


def backward(**changes: Any) -> CausalConv1dBackward:
    x, weight = tensor(1, 2, 3, 9), tensor(2, 3, 4)
    ports = {"x": x, "weight": weight, "dy": tensor(3, 2, 3, 9), "dx": tensor(4, 2, 3, 9), "dweight": tensor(5, 3, 4)}
    return CausalConv1dBackward(**ports | changes)


def values_of(operation: CausalConv1dForward | CausalConv1dBackward, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {port: rng.standard_normal(found.dims) for port, found in inputs_of(operation).items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": tensor(1, 2, 27)}, "x.dims: expected [batch, channels, length], got [2, 27]"),
        ({"weight": tensor(2, 3, 1, 4)}, "weight.dims: expected [channels, filter length], got [3, 1, 4]"),
        ({"weight": tensor(2, 3, 0)}, "weight.dims: expected [3, a filter length of 1 or more], got [3, 0]"),
        ({"weight": tensor(2, 4, 4)}, "weight.dims: expected [3, 4], got [4, 4]"),
        ({"bias": tensor(4, 4)}, "bias.dims: expected [3], got [4]"),
        ({"y": tensor(3, 2, 3, 8)}, "y.dims: expected [2, 3, 9], got [2, 3, 8]"),
        ({"lengths": tensor(4, 3, data_type=DataType.INT32)}, "lengths.dims: expected [2], got [3]"),
        ({"lengths": tensor(4, 2)}, "lengths.data_type: expected INT32 or INT64, got FLOAT"),
        (
            {"offsets": tensor(4, 3, data_type=DataType.INT32)},
            "x.dims: expected a batch of 1 with offsets, got [2, 3, 9]",
        ),
        (
            {"offsets": tensor(4, 0, data_type=DataType.INT32)},
            "offsets.dims: expected [sequences + 1], got [0]",
        ),
        (
            {
                "lengths": tensor(4, 2, data_type=DataType.INT32),
                "offsets": tensor(5, 3, data_type=DataType.INT32),
            },
            "offsets: expected none beside lengths, got tensor uid 5",
        ),
        ({"initial_states": tensor(4, 2, 3, 4)}, "initial_states.dims: expected [2, 3, 3], got [2, 3, 4]"),
        (
            {"final_states": tensor(4, 2, 3, 3, data_type=DataType.HALF)},
            "final_states.data_type: expected FLOAT, as of x, got HALF",
        ),
        ({"state_indices": INDICES}, "state_indices: expected none without states, got one"),
        (
            {"state_indices": tensor(4, 3, data_type=DataType.INT32), "initial_states": tensor(5, 7, 3, 3)},
            "state_indices.dims: expected [2], got [3]",
        ),
        (
            {"state_indices": tensor(4, 2), "initial_states": tensor(5, 7, 3, 3)},
            "state_indices.data_type: expected INT32 or INT64, got FLOAT",
        ),
        (
            {"state_indices": INDICES, "initial_states": tensor(5, 7, 3, 3), "final_states": tensor(6, 2, 3, 3)},
            "final_states.dims: expected [7, 3, 3], got [2, 3, 3]",
        ),
        (
            {"state_indices": INDICES, "final_states": replace(tensor(6, 7, 3, 3), is_virtual=True)},
            "final_states: expected an output beside state_indices, since it keeps its other slots, got a virtual",
        ),
        (
            {"weight": tensor(2, 3, 1), "final_states": tensor(4, 2, 3, 0)},
            "final_states: expected none of a filter of length 1, got tensor uid 4",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(LowdnnError, match=re.escape(f" causal_conv1d_forward.{message}")):
        forward(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dy": tensor(3, 2, 3, 8)}, "dy.dims: expected [2, 3, 9], got [2, 3, 8]"),
        ({"dweight": tensor(5, 4, 3)}, "dweight.dims: expected [3, 4], got [4, 3]"),
        ({"dbias": tensor(6, 4)}, "dbias.dims: expected [3], got [4]"),
        ({"dinitial_states": tensor(6, 1, 3, 3)}, "dinitial_states.dims: expected [2, 3, 3], got [1, 3, 3]"),
    ],
)
def test_what_is_refused_of_gradients(changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(LowdnnError, match=re.escape(f" causal_conv1d_backward.{message}")):
        backward(**changes)


def test_it_is_a_convolution_of_each_channel() -> None:
    operation = forward(bias=tensor(4, 3))
    values = values_of(operation, 1)
    y = operation.reference(values)["y"]
    for b in range(2):
        for d in range(3):
            wanted = np.convolve(values["x"][b, d], values["weight"][d, ::-1])[:9] + values["bias"][d]
            np.testing.assert_allclose(y[b, d], wanted)


def test_parts_of_a_sequence_follow_each_other() -> None:
    """The states after one part are those before the next, also where a part is shorter than they are."""
    whole = forward(bias=tensor(4, 3), activation=SILU)
    values = values_of(whole, 2)
    wanted = whole.reference(values)["y"]
    states, first = np.zeros((2, 3, 3)), 0
    for length in (1, 2, 5, 1):
        dims, kept = (2, 3, length), tensor(9, 2, 3, 3)
        part = forward(
            x=tensor(1, *dims), y=tensor(3, *dims), bias=tensor(4, 3), activation=SILU,
            initial_states=tensor(8, 2, 3, 3), final_states=kept,
        )  # fmt: skip
        given = {"x": values["x"][:, :, first : first + length], "initial_states": states}
        found = part.reference({**values, **given})
        np.testing.assert_allclose(found["y"], wanted[:, :, first : first + length])
        states, first = found["final_states"], first + length
    np.testing.assert_array_equal(states, values["x"][:, :, -3:])


def test_a_pool_is_the_states_of_each_sequence_in_its_slot() -> None:
    """A sequence without a slot is empty; slots without a sequence stay; the last sequence of a slot counts."""
    dims, pool = (4, 3, 5), tensor(8, 6, 3, 3)
    shared = {"x": tensor(1, *dims), "y": tensor(3, *dims)}
    plain = forward(**shared, initial_states=tensor(8, 4, 3, 3), final_states=tensor(9, 4, 3, 3))
    indices = tensor(10, 4, data_type=DataType.INT64)
    pooled = forward(**shared, initial_states=pool, final_states=tensor(9, 6, 3, 3), state_indices=indices)
    values = values_of(pooled, 4) | {"state_indices": np.array([2, -1, 4, 2])}
    old = values["final_states"] = np.random.default_rng(5).standard_normal((6, 3, 3))
    found = pooled.reference(values)
    wanted = plain.reference(values | {"initial_states": values["initial_states"][[2, 0, 4, 2]]})
    np.testing.assert_array_equal(found["y"][[0, 2, 3]], wanted["y"][[0, 2, 3]])
    np.testing.assert_array_equal(found["y"][1], 0)
    np.testing.assert_array_equal(found["final_states"][[2, 4]], wanted["final_states"][[3, 2]])
    np.testing.assert_array_equal(found["final_states"][[0, 1, 3, 5]], old[[0, 1, 3, 5]])
    del values["final_states"]
    with pytest.raises(LowdnnError, match="final_states: expected old values beside state_indices, got none"):
        pooled.reference(values)


@pytest.mark.parametrize("activation", CausalConv1dActivation)
@pytest.mark.parametrize("form", ["", "lengths", "offsets"])
def test_gradients_are_those_of_differences(activation: CausalConv1dActivation, form: str) -> None:
    batch = 1 if form == "offsets" else 2
    count = 3 if form == "offsets" else batch
    dims, kept, step = (batch, 3, 9), (count, 3, 3), 1e-6
    shared: dict[str, Any] = {"bias": tensor(6, 3), "initial_states": tensor(7, *kept), "activation": activation}
    bounds = {"lengths": np.array([5, 0]), "offsets": np.array([0, 2, 2, 8])}
    if form:
        shared[form] = tensor(8, *bounds[form].shape, data_type=DataType.INT64)
    ahead = forward(x=tensor(1, *dims), y=tensor(3, *dims), **shared)
    back = backward(
        x=tensor(1, *dims), dy=tensor(3, *dims), dx=tensor(4, *dims), dbias=tensor(9, 3),
        dinitial_states=tensor(10, *kept), **shared,
    )  # fmt: skip
    values = values_of(back, 3) | ({form: bounds[form]} if form else {})
    found = back.reference(values)
    for port in ("x", "weight", "bias", "initial_states"):
        numeric = np.zeros(values[port].shape)
        for at in np.ndindex(values[port].shape):
            sums = []
            for sign in (1, -1):
                moved = values[port].copy()
                moved[at] += sign * step
                sums.append(np.sum(values["dy"] * ahead.reference({**values, port: moved})["y"]))
            numeric[at] = (sums[0] - sums[1]) / (2 * step)
        np.testing.assert_allclose(found[f"d{port}"], numeric, atol=1e-7, err_msg=port)
