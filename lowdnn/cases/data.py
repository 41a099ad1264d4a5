"""Input data for cases: seeded storage arrays of any data type."""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType

#: Bound of sums of products. 2**20 leaves an epilogue room to stay exact in fp32; types with fewer bits have a smaller
#: bound.
_SUM_LIMIT = 2**20
_SUM_LIMITS = {DataType.HALF: 2**10, DataType.FAST_FLOAT_FOR_FP8: 2**13}
_LARGEST_EXACT = 4


def exact_values(
    rng: np.random.Generator,
    dims: tuple[int, ...],
    data_type: DataType,
    length: int = 1,
    compute_type: DataType = DataType.FLOAT,
) -> NDArray[Any]:
    """Small integers of both signs, such that a sum of ``length`` products of two of them is exact in
    ``compute_type``."""
    limit = _SUM_LIMITS.get(compute_type, _SUM_LIMIT)
    largest = max(1, min(_LARGEST_EXACT, isqrt(limit // max(length, 1))))
    is_signed = dtypes.info(data_type).kind in (dtypes.Kind.FLOAT, dtypes.Kind.SIGNED)
    return dtypes.from_float64(rng.integers(-largest if is_signed else 0, largest + 1, dims), data_type)


def real_values(rng: np.random.Generator, dims: tuple[int, ...], data_type: DataType) -> NDArray[Any]:
    """Normal numbers of unit variance; integers over a tenth of the int8 range; booleans by a fair coin."""
    kind = dtypes.info(data_type).kind
    if kind is dtypes.Kind.FLOAT:
        return dtypes.from_float64(rng.standard_normal(dims), data_type)
    if kind is dtypes.Kind.BOOLEAN:
        return rng.integers(0, 2, dims).astype(np.bool_)
    return dtypes.from_float64(rng.integers(-12 if kind is dtypes.Kind.SIGNED else 0, 13, dims), data_type)


def unit_values(rng: np.random.Generator, dims: tuple[int, ...], data_type: DataType) -> NDArray[Any]:
    """Elements for products: 1 and -1, and in about half of the arrays one or more zeros."""
    is_signed = dtypes.info(data_type).kind in (dtypes.Kind.FLOAT, dtypes.Kind.SIGNED)
    signs = rng.choice([-1, 1] if is_signed else [1, 1], dims)
    count = max(1, int(np.prod(dims)))
    return dtypes.from_float64(np.where(rng.random(dims) < 0.7 / count, 0, signs), data_type)
