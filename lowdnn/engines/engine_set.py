"""Sets of engines, whose modules are imported when a graph may need them, or when they are named.

So a program imports only the engines of its own operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import overload

from lowdnn.engines.base import Anchors, Engine, Refusal
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation


@dataclass(frozen=True)
class EngineEntry:
    """The attributes of an engine that are known before its module is imported, and its location.

    home: the module and class below ``lowdnn.engines`` (``matmul.matmul_mma.MatmulMma``).
    builds_on: the arguments of the class: names of engines, or of sets of engines.
    """

    index: int
    name: str
    home: str
    anchors: Anchors = ()
    builds_on: tuple[str | tuple[str, ...], ...] = ()


class EngineSet(Sequence[Engine]):
    """Engines in the order of ``entries``; each is created once, at first use, and shared with the subsets.

    It is safe to share between threads.
    """

    def __init__(self, entries: Iterable[EngineEntry], whole: EngineSet | None = None) -> None:
        """whole: the set that this one is a part of, if any."""
        self.entries = tuple(entries)
        self._by_name = {entry.name: entry for entry in self.entries}
        self._whole = whole or self
        self._made: dict[str, Engine] = {}

    @classmethod
    def of(cls, engines: Sequence[Engine]) -> EngineSet:
        """``engines`` if it is a set, otherwise a set of these engines, which exist already."""
        if isinstance(engines, EngineSet):
            return engines
        found = cls(EngineEntry(engine.index, engine.name, "", engine.anchors) for engine in engines)
        found._made.update((engine.name, engine) for engine in engines)
        return found

    def named(self, name: str) -> Engine | None:
        """The engine of the set with this name, or None."""
        entry = self._by_name.get(name)
        return None if entry is None else self.engine(entry)

    def at(self, index: int) -> Engine | None:
        """The engine of the set with this global index, or None."""
        return next((self.engine(entry) for entry in self.entries if entry.index == index), None)

    def subset(self, names: Iterable[str]) -> EngineSet:
        """The engines with these names, in their order."""
        return EngineSet((self._by_name[name] for name in names), self._whole)

    def engine(self, entry: EngineEntry) -> Engine:
        """The engine of an entry of the set."""
        whole = self._whole
        if entry.name not in whole._made:
            whole._made.setdefault(entry.name, whole._make(entry))
        return whole._made[entry.name]

    def _make(self, entry: EngineEntry) -> Engine:
        module, _, name = entry.home.rpartition(".")
        made: Engine = getattr(import_module(f"lowdnn.engines.{module}"), name)(*map(self._argument, entry.builds_on))
        return made

    def _argument(self, names: str | tuple[str, ...]) -> Engine | EngineSet:
        return self.engine(self._by_name[names]) if isinstance(names, str) else self.subset(names)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Engine]:
        return map(self.engine, self.entries)

    @overload
    def __getitem__(self, position: int) -> Engine: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[Engine]: ...

    def __getitem__(self, position: int | slice) -> Engine | Sequence[Engine]:
        if isinstance(position, slice):
            return EngineSet(self.entries[position], self._whole)
        return self.engine(self.entries[position])


def anchored(engines: Sequence[Engine], operations: Iterable[Operation]) -> tuple[Engine, ...]:
    """The engines that may take a graph of ``operations``: those without anchors, or with the class of an operation."""
    kinds = frozenset(map(type, operations))
    return _anchored(engines if isinstance(engines, EngineSet) else tuple(engines), kinds)


def reasons(refusals: Iterable[Refusal], engines: Sequence[Engine], graph: OperationGraph) -> tuple[str, ...]:
    """The reasons why engines refuse ``graph``: a line for each one that has its operations, one that counts the
    others."""
    found, others = related(refusals, engines, graph)
    lines = tuple(map(str, found))
    counted = f"{others} engine{'' if others == 1 else 's'} of operations that the graph does not have"
    return (*lines, counted) if others else lines


def related(
    refusals: Iterable[Refusal], engines: Sequence[Engine], graph: OperationGraph
) -> tuple[tuple[Refusal, ...], int]:
    """The refusals of engines that have an operation of ``graph``, and the number of the others."""
    own = {engine.name for engine in anchored(engines, graph.operations)}
    every = tuple(refusals)
    found = tuple(refusal for refusal in every if refusal.engine in own)
    return found, len(every) - len(found)


@lru_cache(maxsize=512)
def _anchored(engines: EngineSet | tuple[Engine, ...], kinds: frozenset[type]) -> tuple[Engine, ...]:
    found = EngineSet.of(engines)
    return tuple(
        found.engine(entry)
        for entry in found.entries
        if not entry.anchors or any(issubclass(kind, entry.anchors) for kind in kinds)
    )
