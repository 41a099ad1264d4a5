from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.enums import DataType, ReduceTensorOp
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError
from tests.support.data import fresh_seed
from tests.support.errors import raises

R = ReduceTensorOp
INF, NAN = math.inf, math.nan
INT_MIN, INT_MAX = -(2**31), 2**31 - 1


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.DOUBLE) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def reduce(
    operator: ReduceTensorOp, x: NDArray[Any], y_dims: tuple[int, ...], compute_type: DataType = DataType.DOUBLE
) -> NDArray[Any]:
    operation = ReductionOperation(Reduction(operator, compute_type), x=tensor(1, x.shape), y=tensor(2, y_dims))
    y = operation.reference({"x": x})["y"]
    assert y.shape == y_dims
    return y


FORMULAS = {
    R.ADD: math.fsum,
    R.MUL: math.prod,
    R.MIN: min,
    R.MAX: max,
    R.AMAX: lambda row: max(map(abs, row)),
    R.AVG: lambda row: math.fsum(row) / len(row),
    R.NORM1: lambda row: math.fsum(map(abs, row)),
    R.NORM2: lambda row: math.sqrt(math.fsum(v * v for v in row)),
    R.MUL_NO_ZEROS: lambda row: math.prod(v for v in row if v),
}


@pytest.mark.parametrize("operator", ReduceTensorOp)
def test_formulas(operator: ReduceTensorOp) -> None:
    seed = fresh_seed()
    x = np.random.default_rng(seed).normal(0, 2, (5, 20))
    if operator is R.MUL_NO_ZEROS:
        x[:, ::7] = 0
    expected = [[FORMULAS[operator](row)] for row in x.tolist()]
    np.testing.assert_allclose(reduce(operator, x, (5, 1)), expected, rtol=1e-12, atol=1e-13, err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    ("operator", "floats", "integers"),
    [
        (R.ADD, 0, 0),
        (R.MUL, 1, 1),
        (R.MIN, INF, INT_MAX),
        (R.MAX, -INF, INT_MIN),
        (R.AMAX, 0, 0),
        (R.AVG, NAN, 0),
        (R.NORM1, 0, 0),
        (R.NORM2, 0, None),
        (R.MUL_NO_ZEROS, 1, 1),
    ],
)
def test_neutral_elements(operator: ReduceTensorOp, floats: float, integers: int | None) -> None:
    np.testing.assert_array_equal(reduce(operator, np.zeros((2, 0)), (2, 1)), [[floats], [floats]])
    if integers is not None:
        got = reduce(operator, np.zeros((2, 0), np.int64), (2, 1), DataType.INT32)
        assert got.tolist() == [[integers], [integers]]


@pytest.mark.parametrize("operator", ReduceTensorOp)
def test_nan_propagates(operator: ReduceTensorOp) -> None:
    assert np.isnan(reduce(operator, np.array([1.0, NAN, 2.0]), (1,))).all()


def test_integer_rules() -> None:
    x = np.array([INT_MAX, 1, 1])
    assert reduce(R.ADD, x, (1,), DataType.INT32).tolist() == [INT_MIN + 1]
    assert reduce(R.ADD, x, (1,), DataType.INT64).tolist() == [INT_MAX + 2]
    assert reduce(R.AVG, np.array([-3, -4]), (1,), DataType.INT32).tolist() == [-3]
    assert reduce(R.AVG, np.array([3, 4]), (1,), DataType.INT32).tolist() == [3]
    assert reduce(R.MUL, np.array([2**20, 2**12, 3]), (1,), DataType.INT32).tolist() == [0]


def test_conversion_to_the_compute_type() -> None:
    assert reduce(R.ADD, np.array([0.6, 1.6]), (1,), DataType.INT32).tolist() == [3]
    assert reduce(R.MAX, np.array([1 / 3]), (1,), DataType.FLOAT).tolist() == [float(np.float32(1 / 3))]
    third = reduce(R.AVG, np.array([1.0, 0.0, 0.0]), (1,), DataType.FLOAT)[0]
    assert third == float(np.float32(1 / 3))


def test_axes() -> None:
    operation = ReductionOperation(
        Reduction(R.ADD, DataType.FLOAT), x=tensor(1, (4, 1, 3, 5)), y=tensor(2, (4, 1, 1, 1))
    )
    assert operation.axes == (2, 3)
    assert operation.flops == 60
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(reduce(R.ADD, x, (1, 3, 1)), x.sum(axis=(0, 2), keepdims=True))
    np.testing.assert_array_equal(reduce(R.AMAX, -x, (2, 3, 4)), x)


def test_dims_are_checked() -> None:
    reduction = Reduction(R.ADD, DataType.FLOAT)
    with raises(ShapeMismatchError, "reduction.y.dims", expected="rank 2 as x", got="[3]"):
        ReductionOperation(reduction, x=tensor(1, (3, 4)), y=tensor(2, (3,)))
    with raises(ShapeMismatchError, "reduction.y.dims[1]", expected="1, 4 as x, or a part of it", got="2"):
        ReductionOperation(reduction, x=tensor(1, (3, 4)), y=tensor(2, (3, 2)))


def test_compute_types_are_checked() -> None:
    with raises(UnsupportedDataTypeError, "reduction.compute_type", expected="FLOAT, DOUBLE", got="HALF"):
        Reduction(R.ADD, DataType.HALF)
    with raises(UnsupportedDataTypeError, "reduction.compute_type", expected="for NORM2", got="INT32"):
        Reduction(R.NORM2, DataType.INT32)
