from __future__ import annotations

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.reduction_pattern import FusedReduction, match_reduction
from lowdnn.ops.tensor import Tensor
from tests.support.builders import matmul_graph

MODES = PointwiseMode
ADD = ReduceTensorOp.ADD


def matched(builder: CaseBuilder) -> FusedReduction:
    found = match_reduction(builder.graph())
    assert isinstance(found, FusedReduction)
    return found


def uids(tensors: tuple[Tensor, ...]) -> set[int]:
    return {tensor.uid for tensor in tensors}


def test_operations_on_both_sides() -> None:
    builder = CaseBuilder()
    x, bias = builder.tensor((4, 8), DataType.FLOAT), builder.tensor((1, 8), DataType.FLOAT)
    moved = builder.pointwise(MODES.ADD, x, bias)
    y = builder.reduction(ADD, moved, (1,))
    scale = builder.tensor((4, 1), DataType.FLOAT)
    z = builder.pointwise(MODES.MUL, y, builder.pointwise(MODES.NEG, scale), store=DataType.FLOAT)
    fused = matched(builder)
    assert fused.before.result == moved
    assert uids(fused.before.loads) == {x.uid, bias.uid}
    assert fused.after[0].anchor == y
    assert uids(fused.after[0].loads) == {scale.uid}
    assert uids(fused.after[0].stores) == {z.uid}


def test_statistics_have_two_results() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 8, 2), DataType.HALF)
    total, squares = builder.gen_stats(builder.pointwise(MODES.RELU_FWD, x))
    fused = matched(builder)
    assert uids(fused.before.loads) == {x.uid}
    assert [dag.stores for dag in fused.after] == [(total,), (squares,)]
    assert fused.compute_type is DataType.FLOAT
    builder.pointwise(MODES.SQRT, squares, store=DataType.FLOAT)
    assert match_reduction(builder.graph()) == "operations: expected none behind GenStats, got PointwiseOperation"


def test_a_bare_reduction_loads_x_and_stores_y() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 8), DataType.FLOAT)
    y = builder.reduction(ADD, x, (0,), store=DataType.FLOAT)
    fused = matched(builder)
    assert (fused.before.loads, fused.before.operations, fused.after[0].stores) == ((x,), (), (y,))


def test_a_sibling_with_the_dims_of_x_comes_before() -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 8), DataType.FLOAT)
    relu = builder.pointwise(MODES.RELU_FWD, x, store=DataType.FLOAT)
    builder.reduction(ADD, x, (0,), store=DataType.FLOAT)
    assert uids(matched(builder).before.stores) == {relu.uid}


def test_an_element_of_x_is_gone_behind_the_reduction() -> None:
    """Even where each sum is of one element, so that the dims would fit."""
    builder = CaseBuilder()
    relu = builder.pointwise(MODES.RELU_FWD, builder.tensor((4, 1), DataType.FLOAT))
    builder.pointwise(MODES.MUL, builder.reduction(ADD, relu, (1,)), relu, store=DataType.FLOAT)
    assert "expected a tensor that is not computed before the reduction" in str(match_reduction(builder.graph()))


def test_all_that_x_is_made_of_comes_before() -> None:
    builder = CaseBuilder()
    x, bias = builder.tensor((4, 1), DataType.FLOAT), builder.tensor((1, 1), DataType.FLOAT)
    step = builder.pointwise(MODES.NEG, builder.pointwise(MODES.ABS, bias))
    builder.reduction(ADD, builder.pointwise(MODES.ADD, x, step), (0,), store=DataType.FLOAT)
    fused = matched(builder)
    assert (len(fused.before.operations), fused.after[0].operations) == (3, ())


def test_what_is_no_fused_reduction() -> None:
    assert "exactly one ReductionOperation or GenStats, got 0" in str(match_reduction(matmul_graph()))

    twice = CaseBuilder()
    y = twice.reduction(ADD, twice.tensor((4, 8), DataType.FLOAT), (0,))
    twice.reduction(ADD, y, (1,), store=DataType.FLOAT)
    assert "exactly one ReductionOperation or GenStats, got 2" in str(match_reduction(twice.graph()))

    softmax = CaseBuilder()
    x = softmax.tensor((4, 8), DataType.FLOAT)
    exp = softmax.pointwise(MODES.EXP, x)
    total = softmax.reduction(ADD, exp, (1,))
    softmax.pointwise(MODES.DIV, exp, total, store=DataType.FLOAT)
    assert "dims: expected" in str(match_reduction(softmax.graph()))


@pytest.mark.parametrize("is_by_value", [True, False])
def test_x_must_lie_in_memory(is_by_value: bool) -> None:
    builder = CaseBuilder()
    x = builder.by_value(1, DataType.FLOAT) if is_by_value else builder.tensor((1,), DataType.FLOAT)
    builder.reduction(ADD, x, (0,), store=DataType.FLOAT)
    assert isinstance(match_reduction(builder.graph()), str) is is_by_value
