"""Plans whose kernels are at hand, loaded or on disk, for graphs whose best plan would have to be compiled first.

Graphs of one structure run well with few kernels. So the engines and knobs that were taken for graphs of a structure
are kept, and those whose kernels are at hand are tried for a new shape: each is planned for the shape, and the cost
model chooses.

    kept on disk, by structure and architecture: [["matmul_wgmma", {"TILE_M": 128, ...}, [1, 512, 4096, ...]], ...]

The numbers are the extents of a graph for which the choices were taken: those of extents like a new graph's come first.

Choices of bundles (``bundled_plans``) are among them.

The file is advice: an engine or a knob that this version does not have is passed over, and each plan is made here.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import log2
from threading import Lock
from typing import Any, NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.enums import KnobType
from lowdnn.forking import tell_after_fork
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.cost_model import passage_us
from lowdnn.heuristics.ranking import Candidate, candidate_for
from lowdnn.heuristics.structure import structure_of
from lowdnn.plan import KernelRef, Plan
from lowdnn.runtime.bundle import Shipped
from lowdnn.runtime.cache import DiskCache
from lowdnn.status import BadParamError, NotSupportedError

#: Structures whose choices are in memory; the least recently used goes first.
_MOST_STRUCTURES = 1024
#: Choices kept for a structure; the one that was added first goes first.
_MOST_CHOICES = 64
#: Plans at hand that are compared for a graph.
_MOST_TRIED = 8
#: The slowdown below which no others are looked at.
_NEARLY = 1.02


class EngineChoices(NamedTuple):
    """An engine by name, and a value for each of its knobs."""

    engine: str
    knobs: tuple[tuple[KnobType, int], ...]

    @classmethod
    def of(cls, plan: Plan) -> EngineChoices:
        return cls(plan.engine, plan.choices)


class _Taken(NamedTuple):
    """Choices, and the extents of a graph that they were taken for."""

    choices: EngineChoices
    extents: tuple[int, ...]


class KnownChoices:
    """The engines and knobs that were taken, by the structure of their graphs, in memory and on disk.

    Safe to share between threads. Processes share those on disk, where one that is written at the same time as another
    may be lost.
    """

    def __init__(self, cache: DiskCache | None, shipped: Sequence[Shipped] = ()) -> None:
        """shipped: bundles, whose choices are known from the start."""
        self._cache = cache
        self._shipped = shipped
        self._known: OrderedDict[str, list[_Taken]] = OrderedDict()
        self._lock = Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._lock = Lock()

    def add(self, plan: Plan, graph: OperationGraph, arch: ArchSpec) -> None:
        """Keeps the engine and the knobs of ``plan`` for other graphs of the structure of ``graph``."""
        taken, key = _Taken(EngineChoices.of(plan), extents_of(graph)), _key(graph, arch)
        with self._lock:
            known = self._of(graph, arch)
            if _is_among(taken, known):
                return
            written = [found for found in self._read(key) if found not in known]
            self._known[key] = [*known, *written, taken][-_MOST_CHOICES:]
            if self._cache is not None:
                self._cache.put(key, _encoded(self._known[key]))

    def of(self, graph: OperationGraph, arch: ArchSpec) -> Sequence[EngineChoices]:
        """The choices for graphs of this structure; first those for graphs of extents like these."""
        extents = extents_of(graph)
        with self._lock:
            known = self._of(graph, arch)
        nearest = sorted(known, key=lambda taken: _distance(taken.extents, extents))
        return list(dict.fromkeys(taken.choices for taken in nearest))

    def _of(self, graph: OperationGraph, arch: ArchSpec) -> list[_Taken]:
        key = _key(graph, arch)
        if key not in self._known:
            self._known[key] = [*self._shipped_for(graph), *self._read(key)]
            if len(self._known) > _MOST_STRUCTURES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _shipped_for(self, graph: OperationGraph) -> Iterator[_Taken]:
        for shipped in self._shipped:
            for plan in shipped.plans_like(structure_of(graph)):
                if all(name in KnobType.__members__ for name, _ in plan.choices):
                    knobs = tuple((KnobType[name], value) for name, value in plan.choices)
                    yield _Taken(EngineChoices(plan.engine, knobs), plan.extents)

    def _read(self, key: str) -> list[_Taken]:
        payload = None if self._cache is None else self._cache.get(key)
        return [] if payload is None else _decoded(payload)


def best_at_hand(
    wanted: Candidate,
    known: Iterable[EngineChoices],
    engines: Sequence[Engine],
    are_at_hand: Callable[[Sequence[KernelRef]], bool],
    is_allowed: Callable[[Plan], bool],
) -> Candidate | None:
    """The fastest candidate by estimate, for the graph of ``wanted`` with one of the first ``known`` choices, that is
    allowed and whose kernels are at hand; None where there is none.

    Its plan has no numerical note that the plan of ``wanted`` lacks. ``_MOST_TRIED`` of them are compared, and none
    more once one is nearly as fast as ``wanted``.
    """
    notes = set(wanted.plan.numerical_notes)
    there = (
        candidate
        for candidate in planned(wanted.graph, wanted.arch, known, engines)
        if notes.issuperset(candidate.plan.numerical_notes)
        and is_allowed(candidate.plan)
        and are_at_hand(candidate.plan.kernels)
    )
    best: Candidate | None = None
    for candidate in islice(there, _MOST_TRIED):
        best = min(filter(None, (best, candidate)), key=compared_us)
        if slowdown_of(best, wanted) <= _NEARLY:
            break
    return None if best is None else _in_place_of(wanted, best)


def compared_us(candidate: Candidate) -> float:
    """Predicted microseconds, for the choice among plans that their engines would not have made by themselves."""
    return max(candidate.estimated_us, passage_us(candidate.plan, candidate.arch))


def slowdown_of(taken: Candidate, best: Candidate) -> float:
    """Predicted time of ``taken`` relative to that of ``best``, at least 1: a best plan that was measured is never
    slower than one that is only estimated."""
    best_us = compared_us(best)  # 0 where nothing is launched
    return max(compared_us(taken) / best_us, 1.0) if best_us else 1.0


def planned(
    graph: OperationGraph, arch: ArchSpec, known: Iterable[EngineChoices], engines: Sequence[Engine]
) -> Iterator[Candidate]:
    """A candidate for each of the choices that its engine takes for this graph."""
    named = EngineSet.of(engines)
    for name, knobs in known:
        engine = named.named(name)
        if engine is None or engine.refuse(graph, arch) is not None:
            continue
        try:
            yield candidate_for(engine, graph, arch, dict(knobs))
        except (BadParamError, NotSupportedError):  # other values of a knob, or too much shared memory for this shape
            continue


def _in_place_of(wanted: Candidate, taken: Candidate) -> Candidate:
    """``taken`` with its slowdown, and with a reason that names both."""
    slowdown = slowdown_of(taken, wanted)
    reason = (
        f"{compared_us(taken):.1f} us estimated, kernels at hand; {slowdown:.2f} times the time of "
        f"{wanted.engine.name}, which has to be compiled"
    )
    return replace(taken, reason=reason, slowdown=slowdown, better=wanted)


def extents_of(graph: OperationGraph) -> tuple[int, ...]:
    """The extents of a graph's first input, if it has any, and first output."""
    return tuple(extent for tensor in (*graph.inputs[:1], *graph.outputs[:1]) for extent in tensor.dims)


def _key(graph: OperationGraph, arch: ArchSpec) -> str:
    return hashlib.sha256(f"choices of {structure_of(graph)} on {arch.name}".encode()).hexdigest()


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """How far extents lie apart: in how many octaves, together."""
    return sum(abs(log2((a + 1) / (b + 1))) for a, b in zip(one, other, strict=False))


def _is_among(taken: _Taken, known: Iterable[_Taken]) -> bool:
    """Whether the same choices are known for extents within an octave."""
    same = (found for found in known if found.choices == taken.choices)
    return any(_distance(found.extents, taken.extents) < 1 for found in same)


def _encoded(known: Iterable[_Taken]) -> bytes:
    document = [
        [choices.engine, {knob.name: value for knob, value in choices.knobs}, extents] for choices, extents in known
    ]
    return json.dumps(document, separators=(",", ":")).encode()


def _decoded(payload: bytes) -> list[_Taken]:
    """The choices of a file; those of another form are passed over."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        return []
    return [found for item in document[:_MOST_CHOICES] if (found := _taken(item))] if type(document) is list else []


def _taken(item: Any) -> _Taken | None:
    if not (type(item) is list and [type(part) for part in item] == [str, dict, list]):
        return None
    name, knobs, extents = item
    if not all(knob in KnobType.__members__ and type(value) is int for knob, value in knobs.items()):
        return None
    if not all(type(extent) is int and 0 <= extent < 2**63 for extent in extents):
        return None
    return _Taken(EngineChoices(name, tuple((KnobType[knob], value) for knob, value in knobs.items())), tuple(extents))
