from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.rows.layout import row_space
from lowdnn.enums import DataType

DIMS = (4, 64)


@pytest.mark.parametrize("alignment_bytes", [4, 8, 16, 32])
def test_groups_are_as_wide_as_the_alignment_of_each_tensor_allows(alignment_bytes: int) -> None:
    builder = CaseBuilder()
    x, y = (builder.tensor(DIMS, DataType.FLOAT) for _ in range(2))
    tensors = (x, replace(y, alignment_bytes=alignment_bytes))
    assert row_space(DIMS, (1,), tensors).vector(tensors) == min(alignment_bytes, 16) // 4


@pytest.mark.parametrize(("pitch", "skew"), [(65, (65, 1)), (69, (65, 1)), (67, ())])
def test_rows_have_a_skew_that_every_tensor_shares(pitch: int, skew: tuple[int, ...]) -> None:
    """Rows of both tensors begin at the same position in a vector of 4 elements, or at different ones."""
    builder = CaseBuilder()
    x = builder.tensor(DIMS, DataType.FLOAT, strides=(65, 1))
    y = builder.tensor(DIMS, DataType.FLOAT, strides=(pitch, 1))
    assert row_space(DIMS, (1,), (x, y)).skewed((x, y)).skew == skew
