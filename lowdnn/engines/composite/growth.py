"""Finds the engines that may take an interval of a graph's operations, from the limits that they declare (``limits``).
The interval grows operation by operation."""

from __future__ import annotations

from functools import lru_cache

from lowdnn.engines.base import Engine
from lowdnn.engines.limits import Limits, with_space
from lowdnn.ops.base import HasPorts, Operation, inputs_of, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation


class Rules:
    """The distinct limits of engines, by number; an interval is within some of them."""

    def __init__(self, engines: tuple[Engine, ...]) -> None:
        self.limits = tuple(dict.fromkeys(engine.limits for engine in engines))
        numbers = {limits: number for number, limits in enumerate(self.limits)}
        self._engines = tuple((numbers[engine.limits], engine) for engine in engines)
        self._groups: dict[type[HasPorts], tuple[int | None, ...]] = {}
        self._uncounted: dict[type[HasPorts], frozenset[int]] = {}

    def engines_within(self, kept: frozenset[int]) -> tuple[Engine, ...]:
        """The engines whose limits are ``kept``, in the order of all engines."""
        return tuple(engine for number, engine in self._engines if number in kept)

    def are_endless(self, kind: type[HasPorts], other: type[HasPorts]) -> bool:
        """Whether some engine takes any number of operations of both classes."""
        return not self._endless(kind).isdisjoint(self._endless(other))

    def groups_of(self, kind: type[HasPorts]) -> tuple[int | None, ...]:
        """The group of operations of class ``kind`` in each of the limits."""
        if kind not in self._groups:
            self._groups[kind] = tuple(limits.group_of(kind) for limits in self.limits)
        return self._groups[kind]

    def _endless(self, kind: type[HasPorts]) -> frozenset[int]:
        """Numbers of the limits that do not bound the number of operations of class ``kind``."""
        if kind not in self._uncounted:
            self._uncounted[kind] = frozenset(
                number
                for number, (limits, group) in enumerate(zip(self.limits, self.groups_of(kind), strict=True))
                if group is not None and (limits.are_independent or limits.groups[group].most is None)
            )
        return self._uncounted[kind]


@lru_cache(maxsize=16)
def rules_of(engines: tuple[Engine, ...]) -> Rules:
    """The rules of ``engines``, made once."""
    return Rules(engines)


class Growth:
    """An interval that grows by one operation at a time. kept: the numbers of the limits that it is within."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._states = {number: _state_of(limits) for number, limits in enumerate(rules.limits)}
        self.kept = frozenset(self._states)

    @property
    def is_bounded(self) -> bool:
        """Whether some engine that may take the interval limits the number of one of its operations."""
        return any(state.is_bounded for state in self._states.values())

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines that may take the interval as it is, in the order of all engines."""
        whole = frozenset(number for number, state in self._states.items() if state.is_whole)
        return self._rules.engines_within(whole)

    def add(self, operation: Operation) -> None:
        """Appends ``operation`` to the interval."""
        groups = self._rules.groups_of(type(operation))
        lost = [number for number, state in self._states.items() if not state.keeps(operation, groups[number])]
        for number in lost:
            del self._states[number]
        if lost:
            self.kept = frozenset(self._states)


class _State:
    """The numbers of operations of an interval, as far as ``limits`` bounds them.

    is_bounded: whether the interval has an operation whose number is limited.
    is_whole: whether the interval needs no further operations to be what the limits describe.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.is_bounded, self.is_whole = False, True
        self._counts: dict[int, int] = {}
        self._spaces: tuple[tuple[int, ...], ...] = ()

    def keeps(self, operation: Operation, group: int | None) -> bool:
        """Adds ``operation``. Returns whether the interval is still within the limits."""
        if group is None:
            return False
        most = self.limits.groups[group].most
        if most is not None:
            self.is_bounded = True
            self._counts[group] = self._counts.get(group, 0) + 1
        return (most is None or self._counts[group] <= most) and self._keeps_spaces(operation)

    def _keeps_spaces(self, operation: Operation) -> bool:
        if isinstance(operation, PointwiseOperation) and self.limits.spaces is not None:
            self._spaces = with_space(self._spaces, operation.output.dims)
        return self.limits.spaces is None or len(self._spaces) <= self.limits.spaces


class _StateApart(_State):
    """The counts of a list of independent graphs, each of which must have one operation of the first group.

    Graphs that have none yet are taken for one graph as far as index spaces go.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._makers: dict[int, int] = {}  # number of the independent graph, by the uids of its outputs
        self._joined: list[int] = []  # by graph: the graph that it was merged into, or itself
        self._empty: set[int] = set()

    def keeps(self, operation: Operation, group: int | None) -> bool:
        if group is None:
            return False
        made = (self._makers.get(tensor.uid) for tensor in inputs_of(operation).values())
        joined = {self._root(graph) for graph in made if graph is not None}
        filled = len(joined - self._empty) + (group == 0)
        own = len(self._joined)
        self._joined.append(own)
        for graph in joined:
            self._joined[graph] = own
        self._makers.update((tensor.uid, own) for tensor in outputs_of(operation).values())
        self._empty -= joined
        if not filled:
            self._empty.add(own)
        self.is_whole = not self._empty
        return filled <= 1 and (filled == 1 or self._keeps_spaces(operation))

    def _root(self, graph: int) -> int:
        while self._joined[graph] != graph:
            self._joined[graph] = self._joined[self._joined[graph]]
            graph = self._joined[graph]
        return graph


def _state_of(limits: Limits) -> _State:
    return _StateApart(limits) if limits.are_independent else _State(limits)
