"""Band matrices: what expanding and contracting them share.

A band matrix (..., M, N) is zero, or ``pad``, but for the diagonals from ``lower`` below the main one to ``upper``
above it. Its band (..., M, lower + 1 + upper) has row i's elements from the lowest diagonal to the highest:

    band[i, d] = matrix[i, i + d - lower]

Columns lie along an operation's ``axis``, rows along the axis before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, ShapeMismatchError


def check(where: str, matrix: Tensor, band: Tensor, axis: int, lower: int, upper: int) -> None:
    """Checks the tensors of either operation; raises BadParamError, ShapeMismatchError."""
    for field, value in (("lower_bandwidth", lower), ("upper_bandwidth", upper)):
        if value < 0:
            raise BadParamError.at(f"{where}.{field}", expected="0 or more", got=value)
    if not 1 <= axis < matrix.rank:
        raise BadParamError.at(f"{where}.axis", expected=f"1 to {matrix.rank - 1}", got=axis)
    expected = (*matrix.dims[:axis], lower + 1 + upper, *matrix.dims[axis + 1 :])
    if band.dims != expected:
        raise ShapeMismatchError.at(
            f"{where}.dims", expected=f"a band of {list(expected)} for {list(matrix.dims)}", got=list(band.dims)
        )


def skewed(values: NDArray[Any], axis: int, extent: int, slope: int, shift: int, pad: float) -> NDArray[Any]:
    """result[i, j] = values[i, j + slope * i + shift] for ``extent`` columns j, ``pad`` where there is none."""
    rows = np.moveaxis(values, (axis - 1, axis), (-2, -1))
    row = np.arange(rows.shape[-2])[:, np.newaxis]
    column = np.arange(extent) + slope * row + shift
    inside = (column >= 0) & (column < rows.shape[-1])
    if not rows.shape[-1]:
        return np.full((*values.shape[:axis], extent, *values.shape[axis + 1 :]), pad)
    found = np.where(inside, rows[..., row, np.where(inside, column, 0)], pad)
    return np.moveaxis(found, (-2, -1), (axis - 1, axis))
