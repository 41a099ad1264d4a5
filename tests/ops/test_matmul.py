from __future__ import annotations

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.matmul import Matmul, MatmulOperation, output_dims
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import (
    LowdnnError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
    UnsupportedPaddingError,
    UnsupportedShapeError,
)
from tests.support.errors import raises


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16)


def operation(
    a: tuple[int, ...],
    b: tuple[int, ...],
    compute_type: DataType = DataType.FLOAT,
    data_type: DataType = DataType.FLOAT,
) -> MatmulOperation:
    c = tensor(3, output_dims(a, b), data_type)
    return MatmulOperation(Matmul(compute_type), a=tensor(1, a, data_type), b=tensor(2, b, data_type), c=c)


def test_reference() -> None:
    a, b = np.arange(12.0).reshape(1, 3, 4), np.arange(40.0).reshape(2, 4, 5)
    got = operation((1, 3, 4), (2, 4, 5)).reference({"a": a, "b": b})["c"]
    np.testing.assert_array_equal(got, np.einsum("imk,bkn->bmn", a, b))


@pytest.mark.parametrize(
    ("a_batch", "b_batch"), [((2, 6), (2, 2)), ((2, 2), (4, 6)), ((6, 2), (3, 4)), ((1, 3), (5, 9))]
)
def test_groups_of_batches_share_a_matrix(a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng()
    a, b = rng.integers(-9, 9, (*a_batch, 3, 4)), rng.integers(-9, 9, (*b_batch, 4, 5))
    product = operation(a.shape, b.shape)
    got = product.reference({"a": a, "b": b})["c"]
    assert got.shape == product.c.dims
    for i, j in np.ndindex(*product.c.dims[:-2]):
        of_a, of_b = ((i * n // product.c.dims[0], j * m // product.c.dims[1]) for n, m in (a_batch, b_batch))
        np.testing.assert_array_equal(got[i, j], a[of_a] @ b[of_b])


def test_an_empty_sum_is_0() -> None:
    got = operation((2, 0), (0, 3)).reference({"a": np.zeros((2, 0)), "b": np.zeros((0, 3))})["c"]
    np.testing.assert_array_equal(got, np.zeros((2, 3)))


def test_integer_accumulators_wrap() -> None:
    a, b = np.full((1, 2), 2**15), np.full((2, 1), 2**15)
    got = operation((1, 2), (2, 1), DataType.INT32, DataType.INT32).reference({"a": a, "b": b})["c"]
    assert got.tolist() == [[-(2**31)]]


def test_output_dims_and_flops() -> None:
    assert output_dims((2, 1, 3, 4), (1, 5, 4, 6)) == (2, 5, 3, 6)
    assert output_dims((0, 3, 4), (1, 4, 6)) == (0, 3, 6)
    assert output_dims((2, 32, 3, 4), (4, 8, 4, 6)) == (4, 32, 3, 6)
    assert operation((2, 3, 4), (2, 4, 5)).flops == 2 * 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("a", "b", "error", "where", "expected", "got"),
    [
        ((4,), (4, 5), UnsupportedShapeError, "matmul.a.dims, b.dims", "rank >= 2", "[4]"),
        ((3, 4), (1, 4, 5), ShapeMismatchError, "matmul.b.dims", "rank 2 as a", "[1, 4, 5]"),
        ((3, 4), (5, 6), ShapeMismatchError, "matmul.b.dims[-2]", "K = 4 of a", "5"),
        ((2, 3, 4), (3, 4, 5), ShapeMismatchError, "matmul.a.dims[0]", "1, 3 of b or a divisor of 3", "2"),
        ((8, 32, 3, 4), (8, 12, 4, 5), ShapeMismatchError, "matmul.b.dims[1]", "1, 32 of a or a divisor of 32", "12"),
        ((4, 3, 4), (0, 4, 5), ShapeMismatchError, "matmul.b.dims[0]", "1, 4 of a or a divisor of 4", "0"),
    ],
)
def test_dims_are_checked(
    a: tuple[int, ...], b: tuple[int, ...], error: type[LowdnnError], where: str, expected: str, got: str
) -> None:
    with raises(error, where, expected=expected, got=got):
        output_dims(a, b)


def test_the_output_s_dims_are_checked() -> None:
    with raises(ShapeMismatchError, "matmul.c.dims", expected="[3, 5]", got="[5, 3]"):
        MatmulOperation(Matmul(DataType.FLOAT), a=tensor(1, (3, 4)), b=tensor(2, (4, 5)), c=tensor(3, (5, 3)))


def test_arithmetic_is_checked() -> None:
    with raises(UnsupportedPaddingError, "matmul.padding_value", expected="0.0", got="1.0"):
        product = Matmul(DataType.FLOAT, padding_value=1.0)
        MatmulOperation(product, a=tensor(1, (3, 4)), b=tensor(2, (4, 5)), c=tensor(3, (3, 5)))
    with raises(UnsupportedDataTypeError, "matmul.compute_type", expected="INT32 for integer operands", got="FLOAT"):
        operation((3, 4), (4, 5), DataType.FLOAT, DataType.INT8)
    operation((3, 4), (4, 5), DataType.FAST_FLOAT_FOR_FP8, DataType.FP8_E5M2)
    with raises(UnsupportedDataTypeError, "matmul: tensor uid 1.data_type", expected="FP8_E4M3", got="HALF"):
        operation((3, 4), (4, 5), DataType.FAST_FLOAT_FOR_FP8, DataType.HALF)
