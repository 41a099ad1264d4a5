"""Cuts a graph into sub-graphs that engines take: the cheapest sequence of intervals of a topological order.

An interval of a topological order is convex, so its parts can run one after the other. Two orders are tried, the
graph's own and a depth-first one that keeps producers beside their consumers; among all cuts of both, the ones win
whose parts keep the inputs' precision wherever that can be, of these the one with the least estimated time, and the
first one found where they tie. Time is the sum over launches of the launch overhead, bytes / bandwidth and arithmetic /
rate: between cuts with the same launches and arithmetic, the fewest bytes moved win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import anchored, reasons
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.plan import Launch, Plan


@dataclass(frozen=True)
class Part:
    """A sub-graph and the plan for it."""

    graph: OperationGraph
    plan: Plan


@dataclass(frozen=True)
class Uncovered:
    """No cut exists, because no engine takes ``operation`` by itself, and why."""

    operation: Operation
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        label = ", ".join(tensor.label for tensor in outputs_of(self.operation).values())
        return f"no engine takes {type(self.operation).__name__} that writes {label}: {'; '.join(self.reasons)}"


def partition(graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> tuple[Part, ...] | Uncovered:
    """The cheapest cut of ``graph``, or why there is none."""
    search = _Search(graph, arch, engines)
    cuts = [search.cheapest_cut(order) for order in _orders(graph)]
    cost, parts = min(cuts, key=lambda cut: cut[0])
    return parts if cost < _NO_CUT else search.uncovered()


def find_uncovered(graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> Uncovered | None:
    """Why there is no cut, or None; cheap where every operation is taken by itself."""
    parts = (graph.subgraph((operation,)) for operation in graph.operations)
    if all(any(engine.refuse(part, arch) is None for engine in anchored(engines, part)) for part in parts):
        return None
    found = partition(graph, arch, engines)
    return found if isinstance(found, Uncovered) else None


def estimated_time_s(plan: Plan, arch: ArchSpec) -> float:
    """An upper estimate of the plan's time at the rates that ``arch`` attains: nothing overlaps."""
    return sum(arch.launch_overhead_s + busy_time_s(launch, arch) for launch in plan.launches)


def busy_time_s(launch: Launch, arch: ArchSpec) -> float:
    """Of a launch, its overhead aside."""
    work = launch.work
    return work.bytes / arch.copy_bytes_per_s + work.flops / arch.attained_rate(work.unit)


#: Parts that lower the inputs' precision, and seconds.
_Cost = tuple[int, float]
_NO_CUT: _Cost = (1 << 30, inf)


class _Search:
    """Dynamic programming over the cuts of one order; plans of the same operations are made once."""

    def __init__(self, graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> None:
        self._graph = graph
        self._arch = arch
        self._engines = engines
        self._parts: dict[frozenset[int], Part | None] = {}

    def cheapest_cut(self, order: tuple[Operation, ...]) -> tuple[_Cost, tuple[Part, ...]]:
        """(cost, parts in launch order); the cost is _NO_CUT where there is no cut."""
        best: list[tuple[_Cost, tuple[Part, ...]]] = [((0, 0.0), ())]
        for end in range(1, len(order) + 1):
            found: tuple[_Cost, tuple[Part, ...]] = (_NO_CUT, ())
            for start in range(end):
                cost, parts = best[start]
                part = self._part(order[start:end]) if cost != _NO_CUT else None
                if part is None:
                    continue
                seconds = estimated_time_s(part.plan, self._arch)
                total = (cost[0] + _lowers_precision(part.plan), cost[1] + seconds)
                if total < found[0]:
                    found = (total, (*parts, part))
            best.append(found)
        return best[-1]

    def uncovered(self) -> Uncovered:
        """The first operation that no engine takes by itself.

        There is one: where every operation is taken by itself, the cut into single operations exists.
        """
        operation = next(op for op in self._graph.operations if self._part((op,)) is None)
        graph = self._graph.subgraph((operation,))
        refusals = filter(None, (engine.refuse(graph, self._arch) for engine in self._engines))
        return Uncovered(operation, reasons(refusals, self._engines, graph))

    def _part(self, operations: tuple[Operation, ...]) -> Part | None:
        key = frozenset(map(id, operations))
        if key not in self._parts:
            self._parts[key] = self._planned(self._graph.subgraph(operations))
        return self._parts[key]

    def _planned(self, graph: OperationGraph) -> Part | None:
        """The best plan of one engine for all of ``graph``: first those that keep the inputs' precision, then time."""
        taking = (engine for engine in anchored(self._engines, graph) if engine.refuse(graph, self._arch) is None)
        plans = [engine.plan(graph, self._arch, {}) for engine in taking]
        if not plans:
            return None
        return Part(graph, min(plans, key=lambda plan: (_lowers_precision(plan), estimated_time_s(plan, self._arch))))


def _lowers_precision(plan: Plan) -> bool:
    return NumericalNote.DOWN_CONVERT_INPUTS in plan.numerical_notes


def _orders(graph: OperationGraph) -> list[tuple[Operation, ...]]:
    """The graph's topological order and, where it differs, the depth-first one."""
    depth_first = _depth_first(graph)
    same = all(one is other for one, other in zip(graph.operations, depth_first, strict=True))
    return [graph.operations] if same else [graph.operations, depth_first]


def _depth_first(graph: OperationGraph) -> tuple[Operation, ...]:
    """A topological order in which the next operation is, where possible, one that reads the newest output."""
    waiting = list(graph.operations)
    produced_by: dict[int, int] = {}
    order: list[Operation] = []
    pending = {t.uid for op in waiting for t in outputs_of(op).values()}

    def newest_input(operation: Operation) -> int:
        return max((produced_by.get(tensor.uid, -1) for tensor in inputs_of(operation).values()), default=-1)

    while waiting:
        ready = [op for op in waiting if not any(t.uid in pending for t in inputs_of(op).values())]
        chosen = max(ready, key=newest_input)
        waiting.remove(chosen)
        for tensor in outputs_of(chosen).values():
            pending.discard(tensor.uid)
            produced_by[tensor.uid] = len(order)
        order.append(chosen)
    return tuple(order)
