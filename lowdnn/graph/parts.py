"""The independent parts of a graph."""

from __future__ import annotations

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of


def independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    """The sub-graphs between which no tensor goes, in the order of their first operations; inputs may be shared.

    Those that store nothing are left out.
    """
    return graph.derive(_independent_parts)


def _independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    parts: list[list[Operation]] = []
    for operation in graph.operations:
        before = {id(producer) for t in inputs_of(operation).values() if (producer := graph.producer(t)) is not None}
        joined = [part for part in parts if any(id(op) in before for op in part)]
        merged = [op for part in joined for op in part]
        place = min((parts.index(part) for part in joined), default=len(parts))
        parts = [part for part in parts if part not in joined]
        parts.insert(place, [*merged, operation])
    if len(parts) == 1:
        return (graph,)
    return tuple(graph.subgraph(part) for part in parts if any(_stores(operation) for operation in part))


def _stores(operation: Operation) -> bool:
    return any(not tensor.is_virtual for tensor in outputs_of(operation).values())
