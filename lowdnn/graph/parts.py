"""The independent parts of a graph."""

from __future__ import annotations

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of


def independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    """The sub-graphs between which no tensor goes, in the order of their first operations; inputs may be shared."""
    return graph.derive(_independent_parts)


def _independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    parts: dict[int, list[Operation]] = {}  # by the place of their first operation
    places: dict[int, int] = {}  # of the parts of operations, by the operations' ids
    for number, operation in enumerate(graph.operations):
        producers = (graph.producer(tensor) for tensor in inputs_of(operation).values())
        joined = sorted({places[id(producer)] for producer in producers if producer is not None})
        place = joined[0] if joined else number
        parts[place] = [*(op for own in joined for op in parts.pop(own)), operation]
        places.update((id(op), place) for op in parts[place])
    if len(parts) == 1:
        return (graph,)
    return tuple(graph.subgraph(part) for _, part in sorted(parts.items()))
