from __future__ import annotations

import numpy as np
import pytest

from lowdnn.enums import DataType
from lowdnn.ops.contract_band_matrix import ContractBandMatrix
from lowdnn.ops.expand_band_matrix import ExpandBandMatrix
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.errors import raises


def tensor(uid: int, dims: tuple[int, ...]) -> Tensor:
    return Tensor(uid, DataType.FLOAT, dims, packed_strides(dims), 16)


@pytest.mark.parametrize(
    ("rows", "columns", "lower", "upper"), [(5, 7, 1, 2), (7, 4, 0, 0), (3, 3, 4, 5), (6, 2, 3, 0)]
)
def test_the_formulas(rows: int, columns: int, lower: int, upper: int) -> None:
    width = lower + 1 + upper
    band = np.arange(1, 2 * rows * width + 1).reshape(2, rows, width)
    expand = ExpandBandMatrix(tensor(1, band.shape), tensor(2, (2, rows, columns)), lower, upper, 2, -1.0)
    matrix = expand.reference({"x": band})["y"]
    for n, i, j in np.ndindex(2, rows, columns):
        assert matrix[n, i, j] == (band[n, i, j - i + lower] if -lower <= j - i <= upper else -1)
    contract = ContractBandMatrix(tensor(1, matrix.shape), tensor(2, band.shape), lower, upper, 2, -2.0)
    back = contract.reference({"x": matrix})["y"]
    for n, i, d in np.ndindex(*band.shape):
        assert back[n, i, d] == (band[n, i, d] if 0 <= i + d - lower < columns else -2)


def test_rows_lie_along_the_axis_before() -> None:
    band = np.arange(12).reshape(3, 2, 2)
    operation = ExpandBandMatrix(tensor(1, band.shape), tensor(2, (3, 4, 2)), 0, 1, 1)
    assert operation.reference({"x": band})["y"][..., 0].tolist() == [[0, 2, 0, 0], [0, 4, 6, 0], [0, 0, 8, 10]]


def test_checks() -> None:
    with raises(BadParamError, "expand_band_matrix.x.lower_bandwidth", expected="0 or more", got="-1"):
        ExpandBandMatrix(tensor(1, (3, 1)), tensor(2, (3, 4)), -1, 1, 1)
    with raises(BadParamError, "contract_band_matrix.y.axis", expected="1 to 1", got="0"):
        ContractBandMatrix(tensor(1, (3, 4)), tensor(2, (3, 2)), 0, 1, 0)
    with raises(ShapeMismatchError, "expand_band_matrix.x.dims", expected="a band of [3, 3]", got="[3, 2]"):
        ExpandBandMatrix(tensor(1, (3, 2)), tensor(2, (3, 4)), 1, 1, 1)
