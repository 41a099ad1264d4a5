"""The one tolerance table, and the comparison that reports where two arrays differ.

A result passes where |actual - expected| <= relative * |expected| + absolute. Float defaults are those that
``torch.testing.assert_close`` uses; a sum of ``length`` terms of unit size adds the rounding of its accumulator.
Integers may be one off where they are rounded from float arithmetic.
NaN must meet NaN and an infinity the same infinity. Integer-filled data sized for exactness is compared with
``assert_exact``, without any tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import DataType

_MAX_SHOWN = 5

#: (relative, absolute) of one rounded result.
_BASE = {
    DataType.DOUBLE: (1e-13, 1e-13),
    DataType.FLOAT: (1.3e-6, 1e-5),
    DataType.HALF: (1e-3, 1e-5),
    DataType.BFLOAT16: (1.6e-2, 1e-5),
    DataType.FP8_E4M3: (0.125, 2.0**-9),
    DataType.FP8_E5M2: (0.25, 2.0**-16),
}
_TF32_EPSILON = 2.0**-10


class OpClass(Enum):
    """What bounds an operation's error besides the rounding of its result."""

    POINTWISE = "pointwise"  #: nothing
    REDUCTION = "reduction"  #: a sum or a product in the compute type
    CONTRACTION = "contraction"  #: a sum of products in the compute type
    CONTRACTION_TF32 = "contraction_tf32"  #: the same, with operands rounded to TF32


@dataclass(frozen=True)
class Tolerance:
    relative: float
    absolute: float


def tolerance(
    op_class: OpClass, data_type: DataType, length: int = 1, compute_type: DataType = DataType.FLOAT
) -> Tolerance:
    """The tolerance of an output of ``data_type`` that sums ``length`` terms of unit size in ``compute_type``."""
    relative, absolute = _BASE.get(data_type, (0.0, 0.0))
    accumulated = dtypes.info(compute_type).epsilon * length
    if dtypes.info(data_type).kind in (dtypes.Kind.SIGNED, dtypes.Kind.UNSIGNED):
        absolute = 1.0 if dtypes.info(compute_type).kind is dtypes.Kind.FLOAT else 0.0
    if op_class is not OpClass.POINTWISE:
        absolute += accumulated
    if op_class is OpClass.REDUCTION:
        relative += accumulated
    if op_class is OpClass.CONTRACTION_TF32:
        absolute += 4 * _TF32_EPSILON * float(np.sqrt(length))
    return Tolerance(relative, absolute)


def assert_close(
    actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, allowed: Tolerance, context: str = ""
) -> None:
    """Fails with the count of differing elements, the first coordinates and both values; arrays are storage arrays.

    context: printed with a failure; the case text and the seed, so that the run can be repeated.
    """
    assert actual.shape == expected.shape, f"{context}: shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype == expected.dtype, f"{context}: storage {actual.dtype}, expected {expected.dtype}"
    got, wanted = (dtypes.to_values(array, data_type).astype(np.float64) for array in (actual, expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(got - wanted) <= allowed.relative * np.abs(wanted) + allowed.absolute
    same = near & np.isfinite(wanted) | (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    assert bool(same.all()), _report(got, wanted, ~same, f"tolerance {allowed}", context)


def assert_exact(actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, context: str = "") -> None:
    """Fails unless every number is the same; the signs of zeros and the bits of NaNs may differ."""
    assert_close(actual, expected, data_type, Tolerance(0.0, 0.0), context)


def _report(
    got: NDArray[np.float64], wanted: NDArray[np.float64], bad: NDArray[np.bool_], rule: str, context: str
) -> str:
    places = np.argwhere(bad)
    lines = [f"{context}: {len(places)} of {bad.size} elements differ ({rule})"]
    for place in places[:_MAX_SHOWN]:
        index = tuple(int(i) for i in place)
        lines.append(f"  at {index}: got {got[index]!r}, expected {wanted[index]!r}")
    return "\n".join(lines)
