from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.divisive_normalization import DivisiveNormalizationBackward, DivisiveNormalizationForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.errors import raises

DIMS = ((1, 2, 4, 3), (1, 1, 2, 4, 3))
PARAMETERS = {"lrn_alpha": 0.5, "lrn_beta": 1.25, "lrn_k": 1.5}


def tensor(uid: int, dims: tuple[int, ...]) -> Tensor:
    return Tensor(uid, DataType.DOUBLE, dims, packed_strides(dims), 16)


def forward(dims: tuple[int, ...], **parameters: Any) -> DivisiveNormalizationForward:
    return DivisiveNormalizationForward(tensor(1, dims), tensor(2, dims), tensor(3, dims), **parameters)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_formula_element_by_element(dims: tuple[int, ...], n: int) -> None:
    """The window begins floor((n - 1) / 2) places before each one, and ends where the image does."""
    rng = np.random.default_rng(5)
    x, means = rng.standard_normal(dims), rng.standard_normal(dims)
    y = forward(dims, lrn_n=n, **PARAMETERS).reference({"x": x, "means": means})["y"]
    for place in np.ndindex(*dims):
        firsts = [at - (n - 1) // 2 for at in place[2:]]
        around = (*place[:2], *(slice(max(first, 0), first + n) for first in firsts))
        squares = np.sum((x - means)[around] ** 2)
        expected = x[place] / (1.5 + 0.5 / n ** (len(dims) - 2) * squares) ** 1.25
        np.testing.assert_allclose(y[place], expected, rtol=1e-13)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_gradients_are_those_of_the_formula(dims: tuple[int, ...], n: int) -> None:
    rng = np.random.default_rng(6)
    x, dy, means = (rng.standard_normal(dims) for _ in range(3))
    tensors = [tensor(uid, dims) for uid in range(1, 6)]
    backward = DivisiveNormalizationBackward(*tensors, lrn_n=n, **PARAMETERS)
    gradients = backward.reference({"x": x, "dy": dy, "means": means})
    step, operation = 1e-6, forward(dims, lrn_n=n, **PARAMETERS)
    for place in np.ndindex(*dims):
        moved = np.zeros(dims)
        moved[place] = step
        for port, given in {"dx": "x", "dmeans": "means"}.items():
            values = {"x": x, "means": means}
            high, low = (operation.reference(values | {given: values[given] + s * moved})["y"] for s in (1, -1))
            expected = np.sum(dy * (high - low)) / (2 * step)
            np.testing.assert_allclose(gradients[port][place], expected, rtol=1e-6, atol=1e-8)


def test_without_means_they_are_0() -> None:
    x = np.random.default_rng(7).standard_normal(DIMS[0])
    plain = DivisiveNormalizationForward(tensor(1, DIMS[0]), tensor(2, DIMS[0]))
    expected = forward(DIMS[0]).reference({"x": x, "means": np.zeros(DIMS[0])})["y"]
    np.testing.assert_array_equal(plain.reference({"x": x})["y"], expected)


def test_what_an_operation_checks() -> None:
    dims = DIMS[0]
    with raises(BadParamError, "divisive_normalization.lrn_n", expected="1 to 16", got="0"):
        forward(dims, lrn_n=0)
    with raises(ShapeMismatchError, "divisive_normalization.means.dims", expected=str(list(dims)), got="[1, 2, 4, 4]"):
        DivisiveNormalizationForward(tensor(1, dims), tensor(2, dims), tensor(3, (1, 2, 4, 4)))
    with raises(BadParamError, "divisive_normalization_backward.dmeans", expected="none without means"):
        DivisiveNormalizationBackward(*(tensor(uid, dims) for uid in (1, 2, 3)), dmeans=tensor(4, dims))
