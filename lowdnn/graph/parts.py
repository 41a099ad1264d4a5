"""The independent parts of a graph."""

from __future__ import annotations

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of


def independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    """The sub-graphs between which no tensor goes, in the order of their first operations; inputs may be shared."""
    return graph.derive(_independent_parts)


def _independent_parts(graph: OperationGraph) -> tuple[OperationGraph, ...]:
    roots = list(range(len(graph.operations)))  # the first operation of each one's part, or one nearer to it

    def root(number: int) -> int:
        while roots[number] != number:
            roots[number] = number = roots[roots[number]]
        return number

    numbers = {id(operation): number for number, operation in enumerate(graph.operations)}
    for number, operation in enumerate(graph.operations):
        producers = (graph.producer(tensor) for tensor in inputs_of(operation).values())
        joined = {number, *(root(numbers[id(producer)]) for producer in producers if producer is not None)}
        for other in joined:
            roots[other] = min(joined)
    parts: dict[int, list[Operation]] = {}
    for number, operation in enumerate(graph.operations):
        parts.setdefault(root(number), []).append(operation)
    if len(parts) == 1:
        return (graph,)
    return tuple(graph.subgraph(part) for _, part in sorted(parts.items()))
