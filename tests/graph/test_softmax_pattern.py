from __future__ import annotations

import pytest

from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.softmax_pattern import SoftmaxGradient, match_softmax_gradient


@pytest.mark.parametrize("other", range(4))
def test_all_operations_of_a_gradient_have_one_arithmetic(other: int) -> None:
    """``other``: the operation that is in DOUBLE; 3: none."""
    types = [DataType.DOUBLE if number == other else DataType.FLOAT for number in range(3)]
    builder = CaseBuilder()
    y, dy = (builder.tensor((4, 8), DataType.FLOAT) for _ in range(2))
    product = builder.pointwise(PointwiseMode.MUL, dy, y, compute_type=types[0])
    total = builder.reduction(ReduceTensorOp.ADD, product, (1,))
    difference = builder.pointwise(PointwiseMode.SUB, dy, total, compute_type=types[1])
    builder.pointwise(PointwiseMode.MUL, difference, y, compute_type=types[2], store=DataType.FLOAT)
    assert isinstance(match_softmax_gradient(builder.graph()), SoftmaxGradient) == (other == 3)


def test_a_gradient_of_rows_that_share_y_is_none() -> None:
    builder = CaseBuilder()
    y, dy = (builder.tensor((rows, 8), DataType.FLOAT) for rows in (1, 4))
    builder.softmax_backward(dy, y, (1,), store=DataType.FLOAT)
    assert "expected an input of the graph with the dims of dy" in str(match_softmax_gradient(builder.graph()))
