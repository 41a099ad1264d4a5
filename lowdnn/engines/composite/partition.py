"""Cuts a graph into sub-graphs that engines take: the cheapest sequence of intervals of a topological order.

An interval of a topological order is convex, so its parts can run one after the other. Two orders are tried, the
graph's own and a depth-first one that keeps producers beside their consumers. Among all cuts of both, those win whose
parts keep the inputs' precision wherever that can be. The one with the least time by ``plan_us`` is taken; where times
tie, the one that moves the fewest bytes, and then the first one found.

An interval grows only while it is within the limits of some engine (``growth``). It is passed over where even a
launch that moves its tensors once would cost more than what is found. Intervals of one form are planned once
(``forms``). Where engines take any number of operations, long intervals end at some places only (``orders.Places``).
So the work grows with the graph and not with its square.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.composite.growth import Growth, rules_of
from lowdnn.engines.composite.least_cost import LeastCost
from lowdnn.engines.composite.orders import SHORT, Places, orders_of
from lowdnn.engines.composite.parts import NOTHING, PICOSECONDS_PER_US, Cost, Part, PartPlanner
from lowdnn.engines.engine_set import anchored, reasons
from lowdnn.engines.floor import least_arithmetic_s
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, outputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.matmul import MatmulOperation


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
    found = graph.derive(_cheapest_cut, arch, anchored(engines, graph.operations))
    return _uncovered(graph, arch, engines) if found is None else found


def find_uncovered(graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> Uncovered | None:
    """The reason why there is no cut, or None. It is cheap if some engine takes each operation alone."""
    found = graph.derive(_first_untaken, arch, anchored(engines, graph.operations))
    if found is None:
        return None
    parts = partition(graph, arch, engines)
    return parts if isinstance(parts, Uncovered) else None


def _uncovered(graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> Uncovered:
    """The first operation that no engine takes by itself.

    There is one: where every operation is taken by itself, the cut into single operations exists.
    """
    operation = graph.derive(_first_untaken, arch, anchored(engines, graph.operations))
    assert operation is not None, "single operations are a cut"
    alone = graph.subgraph((operation,))
    refusals = filter(None, (engine.refuse(alone, arch) for engine in engines))
    return Uncovered(operation, reasons(refusals, engines, alone))


def _cheapest_cut(graph: OperationGraph, arch: ArchSpec, engines: tuple[Engine, ...]) -> tuple[Part, ...] | None:
    """The parts of the cheapest cut of both orders (of the first one on ties); None if there is no cut."""
    search = _Search(graph, arch, engines)
    cuts = [search.cheapest_cut(order) for order in orders_of(graph)]
    cheapest = min(filter(None, cuts), key=lambda cut: cut.cost, default=None)
    return None if cheapest is None else cheapest.parts


def _first_untaken(graph: OperationGraph, arch: ArchSpec, engines: tuple[Engine, ...]) -> Operation | None:
    """The first operation that no engine takes by itself."""
    search = _Search(graph, arch, engines)
    return next((operation for operation in graph.operations if not search.takes(operation)), None)


@dataclass(frozen=True)
class _Cut:
    """The cheapest cut of the operations before a position: its last part, and the cheapest cut before that part; both
    are None at position 0."""

    cost: Cost = NOTHING
    before: _Cut | None = None
    part: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts in launch order."""
        found: list[Part] = []
        cut: _Cut | None = self
        while cut is not None and cut.part is not None:
            found.append(cut.part)
            cut = cut.before
        return tuple(reversed(found))


class _Interval(NamedTuple):
    """An interval of operations up to ``end``, the engines that may take it, and a lower bound of its picoseconds.

    is_makeshift: whether it begins or ends inside a long run, so that a longer interval may be better.
    """

    end: int
    engines: tuple[Engine, ...]
    least_ps: int
    is_makeshift: bool


class _Search:
    """Dynamic programming over the cuts of one order."""

    def __init__(self, graph: OperationGraph, arch: ArchSpec, engines: tuple[Engine, ...]) -> None:
        self._graph = graph
        self._arch = arch
        self._rules = rules_of(engines)
        self._planner = PartPlanner(graph, arch)
        products = (op for op in graph.operations if isinstance(op, MatmulOperation | ConvolutionOperation))
        self._least_s = {id(op): least_arithmetic_s(op, engines, arch) for op in products}

    def cheapest_cut(self, order: tuple[Operation, ...]) -> _Cut | None:
        """None where there is no cut."""
        best: dict[int, _Cut] = {0: _Cut()}
        places = Places.of(order, self._rules.are_endless)
        for start in range(len(order)):
            cut = best.pop(start, None)
            if cut is None:
                continue
            for interval in self._intervals(order, start, places):
                known = best.get(interval.end)
                if known is not None and _is_hopeless(interval, cut.cost, known.cost):
                    continue
                part = self._planner.part(order[start : interval.end], interval.engines)
                if part is None:
                    continue
                total = cut.cost.plus(part.cost)
                if known is None or total < known.cost:
                    best[interval.end] = _Cut(total, cut, part)
        return best.get(len(order))

    def _intervals(self, order: tuple[Operation, ...], start: int, places: Places) -> Iterator[_Interval]:
        """The intervals from ``start`` on that an engine may take.

        Adds to ``places`` where fewer engines may take a longer one.
        """
        growth, least = Growth(self._rules), LeastCost(self._graph, self._arch, self._least_s)
        growth.add(order[start])
        for end in range(start + 1, len(order) + 1):
            kept, engines, is_bounded = growth.kept, growth.engines, growth.is_bounded
            is_short = end - start <= SHORT
            if not kept or not (is_short or start in places or is_bounded):
                return
            least.add(order[end - 1])
            if end < len(order):
                growth.add(order[end])
            if growth.kept != kept and start in places.begins:
                (places.inside if is_short else places.begins).add(end)
            if engines and (is_short or end in places):
                is_usual = is_short or is_bounded or start in places.begins
                is_makeshift = not (is_usual and start in places and end in places)
                yield _Interval(end, engines, int(least.us * PICOSECONDS_PER_US), is_makeshift)

    def takes(self, operation: Operation) -> bool:
        """Whether an engine takes ``operation`` by itself."""
        growth = Growth(self._rules)
        growth.add(operation)
        return self._planner.takes((operation,), growth.engines)


def _is_hopeless(interval: _Interval, cost: Cost, known: Cost) -> bool:
    """Whether a part after a cut of this cost cannot improve on the best known cut."""
    if interval.is_makeshift and cost.lowering >= known.lowering:
        return True
    return cost.plus(Cost(time_ps=interval.least_ps)) >= known
