"""Assertions over ``lowdnn.cases.compare``, the one tolerance table."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lowdnn.cases.compare import EXACT, Tolerance, differences, tolerance
from lowdnn.enums import DataType

__all__ = ["Tolerance", "assert_close", "assert_exact", "tolerance"]


def assert_close(
    actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, allowed: Tolerance, context: str = ""
) -> None:
    """Fails with the count of differing elements, the first coordinates and both values; arrays are storage arrays.

    context: printed with a failure; the case text and the seed, so that the run can be repeated.
    """
    wrong = differences(actual, expected, data_type, allowed)
    assert not wrong, f"{context}: {wrong}"


def assert_exact(actual: NDArray[Any], expected: NDArray[Any], data_type: DataType, context: str = "") -> None:
    """Fails unless every number is the same; the signs of zeros and the bits of NaNs may differ."""
    assert_close(actual, expected, data_type, EXACT, context)
