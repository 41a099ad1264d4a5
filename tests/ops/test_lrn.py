from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.lrn import LrnBackward, LrnForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError
from tests.support.errors import raises

X = (2, 7, 2, 3)


def tensor(uid: int, dims: tuple[int, ...] = X, data_type: DataType = DataType.DOUBLE) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def forward(x: tuple[int, ...] = X, **parameters: Any) -> LrnForward:
    return LrnForward(tensor(1, x), tensor(2, x), **parameters)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 16])
def test_the_formula_element_by_element(n: int) -> None:
    """The window begins floor((n - 1) / 2) channels before each one, and ends where channels do."""
    x = np.random.default_rng(5).standard_normal(X)
    y = forward(lrn_n=n, lrn_alpha=0.5, lrn_beta=1.25, lrn_k=1.5).reference({"x": x})["y"]
    for place in np.ndindex(*X):
        first = place[1] - (n - 1) // 2
        around = x[place[0], max(first, 0) : first + n, place[2], place[3]]
        expected = x[place] / (1.5 + 0.5 / n * np.sum(around**2)) ** 1.25
        np.testing.assert_allclose(y[place], expected, rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 16])
def test_the_gradient_is_that_of_the_formula(n: int) -> None:
    rng = np.random.default_rng(6)
    x, dy, step = rng.standard_normal(X), rng.standard_normal(X), 1e-6
    parameters = {"lrn_n": n, "lrn_alpha": 0.5, "lrn_beta": 1.25, "lrn_k": 1.5}
    dx = LrnBackward(tensor(1), tensor(2), tensor(3), **parameters).reference({"x": x, "dy": dy})["dx"]
    for place in np.ndindex(*X):
        moved = np.zeros(X)
        moved[place] = step
        high, low = (forward(**parameters).reference({"x": x + sign * moved})["y"] for sign in (1, -1))
        np.testing.assert_allclose(dx[place], np.sum(dy * (high - low)) / (2 * step), rtol=1e-6, atol=1e-8)


def test_what_an_operation_checks() -> None:
    with raises(UnsupportedShapeError, "lrn.x.dims", expected="rank 4 or 5", got="[2, 7, 3]"):
        forward((2, 7, 3))
    with raises(BadParamError, "lrn.lrn_n", expected="1 to 16", got="17"):
        forward(lrn_n=17)
    with raises(BadParamError, "lrn.lrn_alpha", expected="a finite number", got="inf"):
        forward(lrn_alpha=np.inf)
    with raises(BadParamError, "lrn.lrn_beta", expected="a finite number >= 0.01", got="0.009"):
        forward(lrn_beta=0.009)
    with raises(BadParamError, "lrn.lrn_k", expected="a finite number >= 1e-05", got="0.0"):
        forward(lrn_k=0.0)
    with raises(ShapeMismatchError, "lrn.y.dims", expected=str(list(X)), got="[2, 7, 2, 4]"):
        LrnForward(tensor(1), tensor(2, (2, 7, 2, 4)))
    with raises(UnsupportedDataTypeError, "lrn_backward.dy.data_type", expected="a float type", got="INT32"):
        LrnBackward(tensor(1), tensor(2, data_type=DataType.INT32), tensor(3))
