"""The operations that are fused with a custom reduction, and those that are not."""

from __future__ import annotations

from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.building.operators import OPERATORS, operator_of
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.custom_reduction_pattern import FusedCustomReduction, match_custom_reduction
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.tensor import Tensor

F32, INNER = DataType.FLOAT, 1000
M = PointwiseMode
DIMS = (4, 9)


def add(builder: CaseBuilder, *x: Tensor, operator: str = "add") -> tuple[Tensor, ...]:
    """Reduces the rows of ``x``."""
    y = tuple(builder.tensor((4, 1), F32) for _ in x)
    inside = operator_of(operator, (F32,) * len(x), INNER)
    builder.add(CustomReduction(x, y, (1,), OPERATORS[operator].initial, inside))
    return y


def test_operations_on_both_sides() -> None:
    """Two tensors compute a shared operand each; a tensor on the way is stored once."""
    builder = CaseBuilder()
    shared = builder.pointwise(M.ABS, builder.tensor(DIMS, F32), store=F32)
    first, second = (builder.pointwise(mode, shared) for mode in (M.NEG, M.SQRT))
    y, z = add(builder, first, second, operator="affine")
    builder.pointwise(M.NEG, builder.pointwise(M.ABS, z), store=F32)
    found = match_custom_reduction(builder.graph())
    assert isinstance(found, FusedCustomReduction)
    assert [[op.mode for op in dag.operations] for dag in found.before] == [[M.ABS, M.NEG], [M.ABS, M.SQRT]]
    assert [[t.uid for t in dag.stores] for dag in found.before] == [[shared.uid], []]
    assert [[op.mode for op in dag.operations] for dag in found.after] == [[], [M.ABS, M.NEG]]
    assert [dag.anchor.uid for dag in found.after if dag.anchor is not None] == [y.uid, z.uid]


def test_a_graph_that_is_none() -> None:
    def reason(builder: CaseBuilder) -> str:
        found = match_custom_reduction(builder.graph())
        assert isinstance(found, str)
        return found

    beside = CaseBuilder()
    x = beside.tensor(DIMS, F32)
    add(beside, x)
    beside.pointwise(M.ABS, x, store=F32)
    assert "got others beside it" in reason(beside)

    crossing = CaseBuilder()
    made = crossing.pointwise(M.ABS, crossing.tensor((4, 1), F32), store=F32)
    wide = crossing.pointwise(M.ADD, crossing.tensor(DIMS, F32), made)
    (y,) = add(crossing, wide)
    crossing.pointwise(M.ADD, y, made, store=F32)
    assert "dims: expected [4, 9] for a stored tensor" in reason(crossing)

    twice = CaseBuilder()
    add(twice, twice.tensor(DIMS, F32))
    add(twice, twice.tensor(DIMS, F32))
    assert "exactly one CustomReduction, got 2" in reason(twice)

    other = CaseBuilder()
    product = other.matmul(other.tensor(DIMS, F32), other.tensor((9, 9), F32))
    add(other, product)
    assert "got MatmulOperation" in reason(other)
    assert isinstance(match_custom_reduction(parse_case("reduction dims=4x9 axes=1 op=add").graph()), str)
