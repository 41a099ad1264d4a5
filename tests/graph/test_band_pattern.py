from __future__ import annotations

from math import inf, nan

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.band_pattern import Band, band_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation


def band(mode: PointwiseMode, *, compute: DataType = DataType.INT32, alpha1: float = 1.0, shift: float = 0.0) -> Band:
    """Scores of 20 queries and 30 keys, kept where ``alpha1 * (query + shift) mode key`` holds."""
    builder = CaseBuilder()
    scores = builder.tensor((1, 1, 20, 30), DataType.FLOAT)
    query, key = (
        builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=axis), scores) for axis in (2, 3)
    )
    if shift:
        query = builder.pointwise(PointwiseMode.ADD, query, builder.constant(4, compute, shift), compute_type=compute)
    seen = builder.pointwise(mode, query, key, compute_type=compute, virtual=DataType.BOOLEAN, alpha1=alpha1)
    nothing = builder.constant(4, DataType.FLOAT, -inf)
    masked = builder.pointwise(PointwiseMode.BINARY_SELECT, scores, nothing, seen, store=DataType.FLOAT)
    operations = tuple(op for op in builder.graph().operations if isinstance(op, PointwiseOperation))
    return band_of(operations, masked)


@pytest.mark.parametrize(
    ("mode", "bounds"),
    [
        (PointwiseMode.CMP_GE, (None, 0)),
        (PointwiseMode.CMP_GT, (None, -1)),
        (PointwiseMode.CMP_LE, (0, None)),
        (PointwiseMode.CMP_LT, (-1, None)),
        (PointwiseMode.CMP_EQ, (None, None)),
    ],
)
def test_comparisons_of_places_are_bounds(mode: PointwiseMode, bounds: tuple[int | None, int | None]) -> None:
    found = band(mode)
    assert (found.left, found.right) == bounds


def test_scaled_or_rounded_places_are_no_bounds() -> None:
    """In HALF places from 2049 on are rounded; twice a query's place is another one."""
    assert band(PointwiseMode.CMP_GE, compute=DataType.FLOAT).right == 0
    assert band(PointwiseMode.CMP_GE, compute=DataType.HALF).right is None
    assert band(PointwiseMode.CMP_GE, compute=DataType.FLOAT, alpha1=2.0).right is None


@pytest.mark.parametrize("shift", [inf, -inf, nan, 0.5, 2.0**24])
def test_offsets_that_are_no_places_are_no_bounds(shift: float) -> None:
    """In FLOAT places from 2^24 on are rounded."""
    assert band(PointwiseMode.CMP_GE, compute=DataType.FLOAT, shift=3.0).right == 3
    assert band(PointwiseMode.CMP_GE, compute=DataType.FLOAT, shift=shift).right is None
