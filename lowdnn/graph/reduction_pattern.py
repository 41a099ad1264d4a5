"""One reduction with pointwise operations before it (over x) and after it (over y), as an engine can fuse them.

``GenStats`` is a reduction with two results over the same axes; nothing is fused after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of, refuse_index_space
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.tensor import Tensor

AnyReduction = ReductionOperation | GenStats


@dataclass(frozen=True)
class FusedReduction:
    """A reduction and what is fused with it.

    before: over x's dims; its result is x, and it may store tensors on the way.  after: for each result of the
    reduction (``GenStats`` has two), over its dims; its anchor is that result.
    """

    operation: AnyReduction
    before: PointwiseDag
    after: tuple[PointwiseDag, ...]

    @property
    def compute_type(self) -> DataType:
        operation = self.operation
        return operation.compute_type if isinstance(operation, GenStats) else operation.reduction.compute_type


def match_reduction(graph: OperationGraph) -> FusedReduction | str:
    """The graph as one reduction with pointwise operations around it, or why it is not one."""
    reductions = [op for op in graph.operations if isinstance(op, AnyReduction)]
    if len(reductions) != 1:
        return f"operations: expected exactly one ReductionOperation or GenStats, got {len(reductions)}"
    reduction = reductions[0]
    others = tuple(op for op in graph.operations if isinstance(op, PointwiseOperation))
    if len(others) + 1 != len(graph.operations):
        other = next(op for op in graph.operations if not isinstance(op, PointwiseOperation | AnyReduction))
        return f"operations: expected a reduction and pointwise operations, got {type(other).__name__}"
    if graph.producer(reduction.x) is None and reduction.x.is_scalar_value:
        return f"{type(reduction).__name__}.x: expected a tensor in device memory, got {reduction.x.label}"
    before, after = _split(graph, reduction, others)
    if isinstance(reduction, GenStats) and after:
        return f"operations: expected none behind GenStats, got {type(after[0]).__name__}"
    reduced = next(iter(outputs_of(reduction).values()))
    refused = refuse_index_space(before, reduction.x.dims) or refuse_index_space(after, reduced.dims)
    return refused or _refuse_crossing(before, after) or _fused(reduction, before, after)


def _split(
    graph: OperationGraph, reduction: AnyReduction, others: tuple[PointwiseOperation, ...]
) -> tuple[tuple[PointwiseOperation, ...], tuple[PointwiseOperation, ...]]:
    """Before: operations that x needs, and others with x's dims that do not need y. After: the rest."""
    needed = ancestors(graph, reduction)
    behind = descendants(graph, (reduction,))
    before = tuple(
        op for op in others if id(op) in needed or (id(op) not in behind and op.output.dims == reduction.x.dims)
    )
    chosen = {id(op) for op in before}
    return before, tuple(op for op in others if id(op) not in chosen)


def ancestors(graph: OperationGraph, operation: Operation) -> frozenset[int]:
    """The ids of the operations whose results ``operation``, which is one of the graph's, depends on."""
    found: set[int] = set()
    waiting = [operation]
    while waiting:
        producers = (graph.producer(tensor) for tensor in inputs_of(waiting.pop()).values())
        new = [producer for producer in producers if producer is not None and id(producer) not in found]
        found.update(map(id, new))
        waiting += new
    return frozenset(found)


def descendants(graph: OperationGraph, operations: Iterable[Operation]) -> frozenset[int]:
    """The ids of the operations that depend on results of one of ``operations``."""
    dependent, found = {id(operation) for operation in operations}, set[int]()
    for operation in graph.operations:
        producers = (graph.producer(tensor) for tensor in inputs_of(operation).values())
        if any(id(producer) in dependent for producer in producers):
            dependent.add(id(operation))
            found.add(id(operation))
    return frozenset(found)


def _refuse_crossing(before: tuple[PointwiseOperation, ...], after: tuple[PointwiseOperation, ...]) -> str:
    """Values of single elements of x are gone once they are reduced."""
    written = {op.output.uid for op in before}
    for op in after:
        for port, tensor in op.operands.items():
            if tensor.uid in written:
                return (
                    f"pointwise.{port}: expected a tensor that is not computed before the reduction, got {tensor.label}"
                )
    return ""


def _fused(
    reduction: AnyReduction, before: tuple[PointwiseOperation, ...], after: tuple[PointwiseOperation, ...]
) -> FusedReduction:
    prologue = dag_of(reduction.x.dims, before, result=reduction.x)
    if all(op.output.uid != reduction.x.uid for op in before):
        prologue = replace(prologue, loads=_with(prologue.loads, reduction.x))
    epilogues = (dag_of(output.dims, after, anchor=output) for output in outputs_of(reduction).values())
    return FusedReduction(reduction, prologue, tuple(epilogues))


def _with(tensors: tuple[Tensor, ...], tensor: Tensor) -> tuple[Tensor, ...]:
    return tensors if any(t.uid == tensor.uid for t in tensors) else (*tensors, tensor)
