from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.rope_backward import RopeBackward
from lowdnn.ops.rope_forward import RopeForward
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError
from tests.support.errors import raises

X = (2, 3, 4, 10)


def tensor(uid: int, dims: tuple[int, ...] = X, data_type: DataType = DataType.DOUBLE) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def forward(x: tuple[int, ...] = X, freqs: tuple[int, ...] = (4, 1, 1, 6), **more: Any) -> RopeForward:
    return RopeForward(tensor(1, x), tensor(2, x), tensor(3, freqs), **({"rope_dim": 6} | more))


def drawn() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.standard_normal(X), rng.normal(0, 10, (4, 1, 1, 6))


def test_pairs_are_complex_numbers_that_are_rotated() -> None:
    x, freqs = drawn()
    y = forward(output_scale=0.5).reference({"x": x, "freqs": freqs})["y"]
    np.testing.assert_array_equal(y[..., :4], 0.5 * x[..., :4])
    rotated = (x[..., 4:7] + 1j * x[..., 7:]) * np.exp(1j * freqs[:, 0, 0, :3])
    np.testing.assert_allclose(y[..., 4:7] + 1j * y[..., 7:], 0.5 * rotated, rtol=1e-12)


@pytest.mark.parametrize("rope_dim", [0, 2, 6])
def test_the_gradient_is_the_transpose(rope_dim: int) -> None:
    x, _ = drawn()
    dy = np.random.default_rng(6).standard_normal(X)
    freqs = np.random.default_rng(7).normal(0, 10, (4, 1, 1, rope_dim or 10))
    tensors = (tensor(1), tensor(2), tensor(3, freqs.shape))
    y = RopeForward(*tensors, 0.75, rope_dim).reference({"x": x, "freqs": freqs})["y"]
    dx = RopeBackward(*tensors, 0.75, rope_dim).reference({"dy": dy, "freqs": freqs})["dx"]
    assert (y * dy).sum() == pytest.approx((x * dx).sum(), rel=1e-12)


def test_checks() -> None:
    with raises(UnsupportedShapeError, "rope_forward.x.dims", expected="an even size", got="[2, 3, 4, 9]"):
        forward((2, 3, 4, 9))
    with raises(UnsupportedShapeError, "rope_forward.x.dims", expected="[batch, heads", got="[2, 12]"):
        forward((2, 12))
    for rope_dim in (-2, 5, 12):
        with raises(BadParamError, "rope_forward.rope_dim", expected="an even number up to 10", got=str(rope_dim)):
            forward(rope_dim=rope_dim)
    with raises(BadParamError, "rope_forward.output_scale", expected="a finite number", got="inf"):
        forward(output_scale=float("inf"))
    with raises(ShapeMismatchError, "rope_forward.freqs.dims", expected="[4, 1, 1, 6]", got="[4, 1, 1, 10]"):
        forward(freqs=(4, 1, 1, 10))
    with raises(ShapeMismatchError, "rope_backward.dx.dims", expected="[2, 3, 4, 10]", got="[2, 3, 4, 8]"):
        RopeBackward(tensor(1), tensor(2, (2, 3, 4, 8)), tensor(3, (4, 1, 1, 10)))
    with raises(UnsupportedDataTypeError, "rope_forward.freqs.data_type", expected="a float type", got="INT32"):
        RopeForward(tensor(1), tensor(2), tensor(3, (4, 1, 1, 10), DataType.INT32))
