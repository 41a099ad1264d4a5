from __future__ import annotations

from collections.abc import Callable

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.prologue_pattern import Prologued, match_prologued
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor

FLOAT = DataType.FLOAT


def matched(build: Callable[[CaseBuilder, Tensor, Tensor], object]) -> Prologued[MatmulOperation] | str:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), FLOAT, name=name) for name in "ab")
    build(builder, a, b)
    return match_prologued(builder.graph(), MatmulOperation)


@pytest.mark.parametrize("port", ["a", "b"])
def test_both_sides_of_the_anchor_are_found(port: str) -> None:
    def build(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        scale = builder.tensor((1, 4), FLOAT, name="scale")
        operand = builder.pointwise(PointwiseMode.RELU_FWD, builder.pointwise(PointwiseMode.MUL, a, scale))
        value = builder.matmul(*((operand, b) if port == "a" else (b, operand)))
        builder.pointwise(PointwiseMode.ADD, value, a, store=FLOAT)

    found = matched(build)
    assert isinstance(found, Prologued)
    assert found.port == port
    assert [op.mode.name for op in found.prologue.operations] == ["MUL", "RELU_FWD"]
    assert [tensor.name for tensor in found.prologue.loads] == ["a", "scale"]
    assert found.prologue.stores == ()
    assert found.prologue.result == found.prologue.operations[-1].output
    assert [op.mode.name for op in found.matched.epilogue.operations] == ["ADD"]


def test_what_is_no_prologue_is_refused_by_name() -> None:
    relu = PointwiseMode.RELU_FWD

    def reduced(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        builder.matmul(builder.reduction(ReduceTensorOp.ADD, a, (0,)), b, store=FLOAT)

    def indexed(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        builder.matmul(builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, FLOAT, axis=0), a), b, store=FLOAT)

    def read_again(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        operand = builder.pointwise(relu, a)
        builder.pointwise(PointwiseMode.ADD, builder.matmul(operand, b), operand, store=FLOAT)

    def stored(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        builder.matmul(builder.pointwise(relu, a, store=FLOAT), b, store=FLOAT)

    def both(builder: CaseBuilder, a: Tensor, b: Tensor) -> None:
        builder.matmul(builder.pointwise(relu, a), builder.pointwise(relu, b), store=FLOAT)

    assert "expected pointwise operations before it, none GEN_INDEX, got ReductionOperation" in str(matched(reduced))
    assert "none GEN_INDEX, got GEN_INDEX" in str(matched(indexed))
    assert "expected a virtual tensor that only" in str(matched(read_again))
    assert "expected a virtual tensor that only" in str(matched(stored))
    assert "expected one input with operations before it, got 2" in str(matched(both))
