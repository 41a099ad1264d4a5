"""Sets of engines. The module of an engine is imported when a graph that it may take comes along, or when it is named.

So a program pays for the engines of its own operations, and not for all that there are.
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
    """What is known of an engine before its module is imported: the values of its attributes, and where it is.

    home: module and class below ``lowdnn.engines`` (``matmul.matmul_mma.MatmulMma``).
    builds_on: arguments of the class, by name: an engine, or a set of engines.
    """

    index: int
    name: str
    home: str
    anchors: Anchors = ()
    builds_on: tuple[str | tuple[str, ...], ...] = ()


class EngineSet(Sequence[Engine]):
    """Engines in the order of ``entries``; each is made once, at first use, and shared with the subsets.

    Safe to share between threads.
    """

    def __init__(self, entries: Iterable[EngineEntry], whole: EngineSet | None = None) -> None:
        """``whole``: the set that this one is a part of, where there is one."""
        self.entries = tuple(entries)
        self._by_name = {entry.name: entry for entry in self.entries}
        self._whole = whole or self
        self._made: dict[str, Engine] = {}

    @classmethod
    def of(cls, engines: Sequence[Engine]) -> EngineSet:
        """``engines`` themselves, or a set of those that are made already."""
        if isinstance(engines, EngineSet):
            return engines
        found = cls(EngineEntry(engine.index, engine.name, "", engine.anchors) for engine in engines)
        found._made.update((engine.name, engine) for engine in engines)
        return found

    def named(self, name: str) -> Engine | None:
        """The engine with this name, where it is one of the set."""
        entry = self._by_name.get(name)
        return None if entry is None else self.engine(entry)

    def at(self, index: int) -> Engine | None:
        """The engine with this global index, where it is one of the set."""
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
    def __getitem__(self, place: int) -> Engine: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Engine]: ...

    def __getitem__(self, place: int | slice) -> Engine | Sequence[Engine]:
        if isinstance(place, slice):
            return EngineSet(self.entries[place], self._whole)
        return self.engine(self.entries[place])


def anchored(engines: Sequence[Engine], operations: Iterable[Operation]) -> tuple[Engine, ...]:
    """Engines that may take a graph of ``operations``: it has one of their anchors, where they have any."""
    kinds = frozenset(map(type, operations))
    return _anchored(engines if isinstance(engines, EngineSet) else tuple(engines), kinds)


def reasons(refusals: Iterable[Refusal], engines: Sequence[Engine], graph: OperationGraph) -> tuple[str, ...]:
    """Why engines refuse ``graph``: a line for each one that has its operations, and one that counts the others."""
    own = {engine.name for engine in anchored(engines, graph.operations)}
    found = tuple(refusals)
    lines = tuple(str(refusal) for refusal in found if refusal.engine in own)
    others = len(found) - len(lines)
    counted = f"{others} engine{'' if others == 1 else 's'} of operations that the graph does not have"
    return (*lines, counted) if others else lines


@lru_cache(maxsize=512)
def _anchored(engines: EngineSet | tuple[Engine, ...], kinds: frozenset[type]) -> tuple[Engine, ...]:
    found = EngineSet.of(engines)
    return tuple(
        found.engine(entry)
        for entry in found.entries
        if not entry.anchors or any(issubclass(kind, entry.anchors) for kind in kinds)
    )
