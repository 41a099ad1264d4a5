from __future__ import annotations

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.parts import independent_parts


def test_parts_share_inputs_and_no_results() -> None:
    builder = CaseBuilder()
    x, y = (builder.tensor((4, 4), DataType.FLOAT) for _ in "xy")
    first = builder.pointwise(PointwiseMode.ADD, x, y)
    other = builder.pointwise(PointwiseMode.MUL, x, y)
    builder.pointwise(PointwiseMode.NEG, other, store=DataType.FLOAT)
    builder.pointwise(PointwiseMode.ABS, first, store=DataType.FLOAT)
    parts = independent_parts(builder.graph())
    modes = [[op.mode for op in part.operations] for part in parts]  # type: ignore[attr-defined]
    assert modes == [[PointwiseMode.ADD, PointwiseMode.ABS], [PointwiseMode.MUL, PointwiseMode.NEG]]


def test_an_operation_joins_what_came_before_it() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 4), DataType.FLOAT)
    results = [builder.pointwise(PointwiseMode.NEG, x, store=DataType.FLOAT) for _ in range(3)]
    builder.pointwise(PointwiseMode.ADD, results[0], results[2], store=DataType.FLOAT)
    graph = builder.graph()
    assert [len(part.operations) for part in independent_parts(graph)] == [3, 1]
    assert [len(part.outputs) for part in independent_parts(graph)] == [3, 1]


def test_what_stores_nothing_is_left_out() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 4), DataType.FLOAT)
    builder.pointwise(PointwiseMode.NEG, x)
    builder.pointwise(PointwiseMode.ABS, x, store=DataType.FLOAT)
    (part,) = independent_parts(builder.graph())
    assert len(part.operations) == 1
