"""Transpose, slice, concat, reshape: checks and references."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.enums import DataType, ReshapeMode
from lowdnn.ops.concat import Concat
from lowdnn.ops.memory import from_memory, to_memory
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.slice import Slice
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.transpose import Transpose
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.errors import raises

X = np.arange(24.0).reshape(2, 3, 4)


def tensor(uid: int, dims: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Tensor:
    return Tensor(uid, DataType.DOUBLE, dims, packed_strides(dims) if strides is None else strides, 16)


def test_transpose() -> None:
    y = Transpose(tensor(1, X.shape), tensor(2, (4, 2, 3)), (2, 0, 1)).reference({"x": X})["y"]
    assert all(y[i, j, k] == X[j, k, i] for i in range(4) for j in range(2) for k in range(3))
    with raises(BadParamError, "transpose.permutation", expected="each axis of 0 to 2 once", got="[0, 0, 1]"):
        Transpose(tensor(1, X.shape), tensor(2, (2, 2, 3)), (0, 0, 1))
    with raises(ShapeMismatchError, "transpose.y.dims", expected="[4, 2, 3]", got="[2, 3, 4]"):
        Transpose(tensor(1, X.shape), tensor(2, X.shape), (2, 0, 1))


def test_slice() -> None:
    y = Slice(tensor(1, X.shape), tensor(2, (1, 2, 2)), (1, 0, 1), (2, 3, 4), (1, 2, 2)).reference({"x": X})["y"]
    assert y.tolist() == [[[13, 15], [21, 23]]]
    whole = Slice(tensor(1, X.shape), tensor(2, (2, 0, 4)), (0, 3, 0), (2, 3, 4))
    assert whole.reference({"x": X})["y"].shape == (2, 0, 4)
    with raises(BadParamError, "slice axis 1", expected="0 <= start <= limit <= 3", got="start 2, limit 4"):
        Slice(tensor(1, X.shape), tensor(2, (2, 2, 4)), (0, 2, 0), (2, 4, 4))
    with raises(BadParamError, "slice axis 1", expected="0 <= start <= limit <= 3", got="start 2, limit 1"):
        Slice(tensor(1, X.shape), tensor(2, (2, 0, 4)), (0, 2, 0), (2, 1, 4), (1, 2, 1))
    with raises(BadParamError, "slice.strides[0]", expected="1 or more", got="0"):
        Slice(tensor(1, X.shape), tensor(2, X.shape), (0, 0, 0), X.shape, (0, 1, 1))
    with raises(BadParamError, "slice.limit", expected="3 values, as x's rank", got="[2]"):
        Slice(tensor(1, X.shape), tensor(2, X.shape), (0, 0, 0), (2,))
    with raises(ShapeMismatchError, "slice.y.dims", expected="[2, 2, 4]", got="[2, 3, 4]"):
        Slice(tensor(1, X.shape), tensor(2, X.shape), (0, 1, 0), X.shape)


def test_concat() -> None:
    operation = Concat(1, (tensor(1, (2, 3)), tensor(2, (2, 1))), tensor(3, (2, 4)))
    assert operation.starts == (0, 3)
    inputs = {"inputs[0]": np.arange(6).reshape(2, 3), "inputs[1]": np.array([[7], [8]])}
    assert operation.reference(inputs)["y"].tolist() == [[0, 1, 2, 7], [3, 4, 5, 8]]
    with raises(BadParamError, "concat.axis", expected="0 to 1", got="2"):
        Concat(2, (tensor(1, (2, 3)),), tensor(3, (2, 3)))
    with raises(ShapeMismatchError, "concat.inputs[1].dims", expected="[2, 3] but for axis 1", got="[1, 1]"):
        Concat(1, (tensor(1, (2, 3)), tensor(2, (1, 1))), tensor(3, (2, 4)))
    with raises(ShapeMismatchError, "concat.y.dims", expected="[2, 4]", got="[2, 5]"):
        Concat(1, (tensor(1, (2, 3)), tensor(2, (2, 1))), tensor(3, (2, 5)))
    with raises(BadParamError, "concat.in_place_index", expected="0 to 0", got="1"):
        Concat(0, (tensor(1, (2, 3)),), tensor(3, (2, 3)), 1)
    with raises(BadParamError, "concat.inputs[0]", expected="y's strides [4, 1] and type DOUBLE", got="[3, 1]"):
        Concat(1, (tensor(1, (2, 3)), tensor(2, (2, 1))), tensor(3, (2, 4)), 0)


def test_logical_reshape_keeps_the_order_of_coordinates_whatever_the_strides() -> None:
    operation = Reshape(tensor(1, X.shape, (1, 8, 2)), tensor(2, (6, 4)), ReshapeMode.LOGICAL)
    assert operation.reference({"x": X})["y"].ravel().tolist() == list(range(24))
    with raises(ShapeMismatchError, "reshape.y.dims", expected="24 elements as x", got="[5, 5]"):
        Reshape(tensor(1, X.shape), tensor(2, (5, 5)), ReshapeMode.LOGICAL)


@pytest.mark.parametrize(
    ("x_strides", "dims", "strides"),
    [
        ((12, 4, 1), (4, 6), (1, 4)),
        ((12, 4, 1), (24,), (1,)),
        ((4, 8, 1), (3, 2, 4), (8, 4, 1)),
        ((40, 10, 2), (4, 3, 1, 2), (2, 10, 77, 40)),
    ],
)
def test_a_view_is_the_same_memory(x_strides: tuple[int, ...], dims: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x, y = tensor(1, X.shape, x_strides), tensor(2, dims, strides)
    result = Reshape(x, y).reference({"x": X})["y"]
    np.testing.assert_array_equal(result, from_memory(to_memory(X, x), y))


def test_views_of_other_elements_are_refused() -> None:
    with raises(BadParamError, "reshape.y.strides", expected="a view of the elements of x", got="[5, 1]"):
        Reshape(tensor(1, X.shape), tensor(2, (6, 4), (5, 1)))
    with raises(BadParamError, "reshape.x.strides", expected="elements that do not overlap", got="[0, 4, 1]"):
        Reshape(tensor(1, X.shape, (0, 4, 1)), tensor(2, (24,)))
