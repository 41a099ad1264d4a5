"""Topological orders whose intervals are tried as parts of a cut, and the places in them where long intervals end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, Operation, inputs_of, outputs_of

#: Number of operations up to which every interval is tried.
SHORT = 16


def orders_of(graph: OperationGraph) -> list[tuple[Operation, ...]]:
    """The graph's topological order and, where it differs, the depth-first one."""
    depth_first = _depth_first(graph)
    same = all(one is other for one, other in zip(graph.operations, depth_first, strict=True))
    return [graph.operations] if same else [graph.operations, depth_first]


@dataclass(frozen=True)
class Places:
    """Positions at which intervals of more than SHORT operations may begin and end.

    begins: where operations of another kind begin, or where engines end that take many.
    inside: places in runs of one kind, each up to SHORT from the run's beginning and from there on two up to each
    doubling of the distance.
    """

    begins: set[int]
    inside: set[int]

    @classmethod
    def of(cls, order: Sequence[Operation], is_run: Callable[[type[HasPorts], type[HasPorts]], bool]) -> Places:
        """is_run: whether two successive operations of these classes belong to one run."""
        places, begin = cls({0, len(order)}, set()), 0
        for place in range(1, len(order)):
            if not is_run(type(order[place - 1]), type(order[place])):
                begin = place
                places.begins.add(place)
            distance = place - begin
            if distance < SHORT or distance % (1 << distance.bit_length() - 2) == 0:
                places.inside.add(place)
        return places

    def __contains__(self, place: int) -> bool:
        return place in self.begins or place in self.inside


def _depth_first(graph: OperationGraph) -> tuple[Operation, ...]:
    """A topological order in which the next operation is, where possible, one that reads the newest output."""
    place = {id(op): number for number, op in enumerate(graph.operations)}
    producers = [{place[id(op)] for op in _producers(graph, operation)} for operation in graph.operations]
    missing = [len(needed) for needed in producers]
    turn: dict[int, int] = {}
    ready = [(1, number) for number, count in enumerate(missing) if not count]
    while ready:
        _, number = heappop(ready)
        turn[number] = len(turn)
        readers = (op for t in outputs_of(graph.operations[number]).values() for op in graph.consumers(t))
        for reader in {place[id(op)] for op in readers}:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (-max(turn[needed] for needed in producers[reader]), reader))
    return tuple(graph.operations[number] for number in turn)


def _producers(graph: OperationGraph, operation: Operation) -> list[Operation]:
    found = (graph.producer(tensor) for tensor in inputs_of(operation).values())
    return [op for op in found if op is not None]
