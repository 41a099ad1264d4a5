"""Operands and results of products are found behind views, conversions and zeros past lengths."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.product_operands import lengths_seen, operand_of, result_of
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor
from tests.support.near_misses.pattern import Sketch

EXCHANGED = (0, 1, 3, 2)
DIMS = (2, 4, 6, 8)


def cut(sketch: Sketch, x: Tensor, axis: int, lengths: Tensor, other: float = 0.0) -> Tensor:
    """``x``, with ``other`` behind the lengths."""
    index = sketch.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=axis), x)
    seen = sketch.pointwise(PointwiseMode.CMP_LT, index, lengths, compute_type=DataType.INT32, virtual=DataType.BOOLEAN)
    return sketch.pointwise(PointwiseMode.BINARY_SELECT, x, sketch.constant(4, DataType.FLOAT, other), seen)


def lengths_of(sketch: Sketch) -> Tensor:
    return sketch.holding(np.full((2, 1, 1, 1), 3), DataType.INT32, name="lengths")


@pytest.mark.parametrize("views", [0, 1, 2, 3])
def test_views_cancel_each_other(views: int) -> None:
    sketch = Sketch()
    y = x = sketch.tensor(DIMS, DataType.HALF)
    for _ in range(views):
        y = sketch.transpose(y, EXCHANGED)
    stored = sketch.pointwise(PointwiseMode.IDENTITY, y, store=DataType.FLOAT)
    operand = operand_of(OperationGraph(sketch.operations), stored)
    assert (operand.base.uid, operand.is_transposed) == (x.uid, views % 2 == 1)
    assert operand.types == {DataType.FLOAT, *([DataType.HALF] if views else [])}


@pytest.mark.parametrize(("axis", "other", "found"), [(2, 0.0, 3), (3, 0.0, 2), (2, 1.0, None)])
def test_lengths_along_axes_of_the_operand(axis: int, other: float, found: int | None) -> None:
    """Zeros before a view are along the other axis; other numbers are none."""
    sketch = Sketch()
    x, lengths = sketch.tensor(DIMS, DataType.HALF), lengths_of(sketch)
    y = sketch.transpose(cut(sketch, x, axis, lengths, other), EXCHANGED)
    stored = sketch.pointwise(PointwiseMode.IDENTITY, y, store=DataType.FLOAT)
    operand = operand_of(OperationGraph(sketch.operations), stored)
    assert {at: length.uid for at, length in operand.lengths.items()} == ({} if found is None else {found: lengths.uid})
    assert (operand.base.uid == x.uid) == (found is not None)


def test_an_index_that_repeats_is_none() -> None:
    """Such an index is 0 everywhere, so that nothing is past a length."""
    sketch = Sketch()
    one, lengths = sketch.tensor((1, 1, 1, 1), DataType.FLOAT), lengths_of(sketch)
    index = sketch.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=2), one)
    seen = sketch.pointwise(PointwiseMode.CMP_LT, index, lengths, compute_type=DataType.INT32, store=DataType.BOOLEAN)
    graph = OperationGraph(sketch.operations)
    assert lengths_seen(graph, seen, DIMS) is None
    assert lengths_seen(graph, seen, (2, 1, 1, 1)) is not None


def test_results_need_their_zeros() -> None:
    sketch = Sketch()
    x, lengths = sketch.tensor(DIMS, DataType.FLOAT), lengths_of(sketch)
    product = sketch.pointwise(PointwiseMode.NEG, x)
    rows = cut(sketch, product, 2, lengths)
    stored = sketch.pointwise(PointwiseMode.IDENTITY, rows, store=DataType.HALF)
    sketch.pointwise(PointwiseMode.ABS, product, store=DataType.FLOAT)
    graph = OperationGraph(sketch.operations)
    found = result_of(graph, product, lengths, heads=4)
    assert found is not None
    assert found.uid == stored.uid
    assert result_of(graph, rows, lengths, heads=4) is None
    assert result_of(graph, product, lengths, heads=2) is None
