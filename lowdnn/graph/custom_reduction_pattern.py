"""One custom reduction with pointwise operations that make what it reduces, and others behind single results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, refuse_index_space
from lowdnn.graph.reduction_pattern import ancestors, descendants
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor

Pointwise = tuple[PointwiseOperation, ...]


@dataclass(frozen=True)
class FusedCustomReduction:
    """A custom reduction and what is fused with it.

    before: for each x, over its dims, with x as its result. A tensor that two of them need is computed
    by both and stored by one.
    after: for each y, over its dims, with y as its anchor.
    """

    operation: CustomReduction
    before: tuple[PointwiseDag, ...]
    after: tuple[PointwiseDag, ...]


#: The pattern, or why a graph is not one.
Fusable = FusedCustomReduction | str


def match_custom_reduction(graph: OperationGraph) -> Fusable:
    """The graph as one custom reduction with pointwise operations around it, or why it is not one."""
    found = [op for op in graph.operations if isinstance(op, CustomReduction)]
    if len(found) != 1:
        return f"operations: expected exactly one CustomReduction, got {len(found)}"
    reduction = found[0]
    others = tuple(op for op in graph.operations if isinstance(op, PointwiseOperation))
    if len(others) + 1 != len(graph.operations):
        other = next(op for op in graph.operations if not isinstance(op, PointwiseOperation | CustomReduction))
        return f"operations: expected a custom reduction and pointwise operations, got {type(other).__name__}"
    for tensor in reduction.x:
        if tensor.is_scalar_value:
            return f"CustomReduction.x: expected tensors in device memory, got {tensor.label}"
    needed, behind = ancestors(graph, reduction), descendants(graph, (reduction,))
    before = tuple(op for op in others if id(op) in needed)
    after = tuple(op for op in others if id(op) in behind)
    if len(before) + len(after) < len(others):
        return "operations: expected pointwise operations before or behind the reduction, got others beside it"
    refused = refuse_index_space(before, reduction.x[0].dims) or refuse_index_space(after, reduction.y[0].dims)
    return refused or _fused(graph, reduction, before, after)


def _fused(graph: OperationGraph, reduction: CustomReduction, before: Pointwise, after: Pointwise) -> Fusable:
    groups = [_behind(graph, after, y) for y in reduction.y]
    if sum(map(len, groups)) > len(after):
        return "operations: expected none that reads two results of the reduction, got one"
    made = {op.output.uid for op in before}
    for op in after:
        for tensor in op.operands.values():
            if tensor.uid in made:
                return f"operations: expected none behind that reads what is before, got a reader of {tensor.label}"
    stored: set[int] = set()
    dags = []
    for x in reduction.x:
        dag = dag_of(x.dims, _making(graph, before, x), result=x)
        loads = dag.loads if x.uid in made or x in dag.loads else (*dag.loads, x)
        dags.append(replace(dag, loads=loads, stores=tuple(t for t in dag.stores if t.uid not in stored)))
        stored |= {tensor.uid for tensor in dag.stores}
    behind = (dag_of(y.dims, group, anchor=y) for y, group in zip(reduction.y, groups, strict=True))
    return FusedCustomReduction(reduction, tuple(dags), tuple(behind))


def _making(graph: OperationGraph, operations: Pointwise, x: Tensor) -> Pointwise:
    """The operations that ``x`` depends on."""
    maker = graph.producer(x)
    needed = frozenset() if maker is None else ancestors(graph, maker) | {id(maker)}
    return tuple(op for op in operations if id(op) in needed)


def _behind(graph: OperationGraph, operations: Pointwise, y: Tensor) -> Pointwise:
    """The operations that depend on ``y``."""
    readers = graph.consumers(y)
    found = descendants(graph, readers) | set(map(id, readers))
    return tuple(op for op in operations if id(op) in found)
