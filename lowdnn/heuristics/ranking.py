"""Ranked candidates for a graph: which engines take it, in which order, and why the others do not.

Modes, as cuDNN names them:

    INSTANT    every engine that takes the graph, fastest first by the cost model
    A, B       the same list, behind what a bundle has for this very graph (``bundled_plans``), and what was fastest for
               it where it was measured (``tuning.records``); there is no second, slower model, but a
               handle may tune a new graph first in mode B (``backend.autotuning``)
    FALLBACK   only engines as accurate as the declared types: without tensor cores, or by three TF32 products

An engine whose lower bound is already above the best estimate gets no plan: its bound is its estimate, and its plan is
made when somebody asks for it. Whoever wants only the first choice gets it without a question to such engines. A plan
that was made, the best one above all, is listed once more, further down, where it splits a sum, with partial sums in
the workspace: without the split, for whoever has less workspace to give. So is one of ``composite`` with a part by a
transform: without transforms, for whoever wants no plan with their notes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Engine, LastResort, OptIn, Refusal, keeps_precision
from lowdnn.engines.engine_set import anchored, reasons
from lowdnn.engines.floor import bound_us, modelled_us
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.tuning.record_books import Found, Records, released_records
from lowdnn.heuristics.tuning.records import RecordClock
from lowdnn.one_line import listed
from lowdnn.plan import Plan
from lowdnn.status import BadParamError, NotSupportedError, Status

#: Knobs that count the parts of a sum.
SPLITS = (KnobType.SPLIT_K_SLC, KnobType.TILE_CGA_K)
#: Notes of plans that transform their operands.
TRANSFORM_NOTES = frozenset({NumericalNote.FFT, NumericalNote.WINOGRAD})


class PlanSource(StrEnum):
    """Who chose a plan: the cost model, a tuning record, a bundle, or the document of a stored plan."""

    HEURISTIC = "heuristic"
    RECORD = "record"
    BUNDLE = "bundle"
    DOCUMENT = "document"


@dataclass(frozen=True)
class Candidate:
    """One engine with knob choices for one graph; ``plan`` is made at first use.

    choices: knobs that differ from the engine's defaults, or all of them.
    estimated_us: see ``engines.model.plan_time``; as measured where a tuning record says.
    reason: one line on why the candidate stands where it does.  made_plan: the plan, where ranking has made it.
    is_measured: whether ``estimated_us`` was measured.  source: who chose it.
    slowdown: predicted time relative to that of the candidate in whose place it is (``kernels_at_hand``), else 1.
    better: the candidate in whose place it is, where an execute may switch to that one.
    """

    engine: Engine
    graph: OperationGraph
    arch: ArchSpec
    choices: Choices
    estimated_us: float
    reason: str
    made_plan: Plan | None = field(default=None, repr=False, compare=False)
    is_measured: bool = field(default=False, compare=False)
    source: PlanSource = field(default=PlanSource.HEURISTIC, compare=False)
    slowdown: float = field(default=1.0, compare=False)
    better: Candidate | None = field(default=None, repr=False, compare=False)

    @cached_property
    def plan(self) -> Plan:
        return self.made_plan or self.engine.plan(self.graph, self.arch, self.choices)

    @property
    def is_bundled(self) -> bool:
        return self.source is PlanSource.BUNDLE

    @property
    def workspace_bytes(self) -> int:
        """Bytes that its plan needs, and the better one, to which an execute may switch."""
        return max(self.plan.workspace_bytes, self.better.workspace_bytes if self.better else 0)


class KnownPlans(Protocol):
    """Candidates that are known beforehand, by graph."""

    def candidate(self, graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> Candidate | None:
        """The candidate for ``graph`` on ``arch``, of one of ``engines``."""


class Ranking:
    """The engines that take ``graph`` on ``arch``, fastest first, and the reasons of those that do not.

    Worked out as far as it is asked for: ``best`` asks only the engines that may be faster than those asked before,
    ``candidates`` and ``refusals`` ask all.
    """

    def __init__(
        self,
        graph: OperationGraph,
        arch: ArchSpec,
        mode: HeurMode,
        engines: Sequence[Engine],
        records: Records,
        known: KnownPlans | None = None,
    ) -> None:
        self._graph = graph
        self._arch = arch
        self._engines = engines
        self._mode = mode
        self._records = records
        self._known = known
        self._planned: dict[int, Candidate] = {}

    @cached_property
    def ready(self) -> Candidate | None:
        """The candidate of a bundle, which is the first of all; found without a question to any other engine."""
        if self._known is None or self._mode not in (HeurMode.A, HeurMode.B):
            return None
        return self._known.candidate(self._graph, self._arch, self._engines)

    @property
    def best(self) -> Candidate | None:
        """The first of ``candidates``, without the work for the others; None where no engine takes the graph."""
        return self.ready or next(iter(self._recorded), None) or self._estimated_best

    @property
    def is_recorded(self) -> bool:
        """Whether a tuning record of the graph stands before the cost model's choice."""
        return bool(self._recorded)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Best first."""
        first: dict[Plan, Candidate] = {}
        for candidate in filter(None, (self.ready, *self._recorded)):
            for found in (candidate, *_plainer(candidate)):
                first.setdefault(found.plan, found)
        estimated = sorted(self._estimated(), key=_order)
        return (*first.values(), *(found for found in estimated if found.made_plan not in first))

    @cached_property
    def refusals(self) -> tuple[Refusal, ...]:
        """In the registry's order."""
        return tuple(filter(None, (self._barred(engine) or self._refusal(engine) for engine in self._engines)))

    def explain(self) -> str:
        """One line for each engine that takes the graph: rank, name, estimate; then why the others do not."""
        ranked = [
            f"{number}. {candidate.engine.name}: {candidate.reason}"
            for number, candidate in enumerate(self.candidates, 1)
        ]
        refused = reasons(self.refusals, self._engines, self._graph)
        return "\n".join([*ranked, *(f"-  {reason}" for reason in refused)])

    @cached_property
    def _recorded(self) -> tuple[Candidate, ...]:
        """The candidates of tuning records, one for each workspace limit, fastest first."""
        if self._mode not in (HeurMode.A, HeurMode.B):
            return ()
        return tuple(filter(None, map(self._recorded_candidate, self._records.of(self._graph, self._arch))))

    def _recorded_candidate(self, found: Found) -> Candidate | None:
        """The candidate of a record; None where its engine is not among those asked, or the record does not hold."""
        record = found.record
        engine = next((engine for engine in self._admitted if engine.name == record.engine), None)
        if engine is None:
            return None
        try:
            plan = engine.plan(self._graph, self._arch, record.choices)
        except (BadParamError, NotSupportedError) as error:
            self._records.refuse(found, error)
            return None
        if not self._records.holds(found, plan):
            return None
        is_measured = record.clock is RecordClock.EVENTS
        reason = (
            f"{record.us:.1f} us {'measured' if is_measured else 'estimated in tuning'}, the fastest of those timed"
        )
        return Candidate(
            engine,
            self._graph,
            self._arch,
            record.choices,
            record.us,
            reason,
            plan,
            is_measured,
            source=PlanSource.RECORD,
        )

    @cached_property
    def _admitted(self) -> tuple[Engine, ...]:
        """The engines that may take the graph, in the registry's order, without those that the mode leaves out."""
        engines = anchored(self._engines, self._graph.operations)
        if self._mode is not HeurMode.FALLBACK:
            return engines
        return tuple(engine for engine in engines if self._barred(engine) is None)

    def _barred(self, engine: Engine) -> Refusal | None:
        """Why the mode leaves ``engine`` out, where it does."""
        if self._mode is not HeurMode.FALLBACK or NumericalNote.TENSOR_CORE not in engine.numerical_notes:
            return None
        return Refusal(
            engine.name,
            "mode: expected an engine that computes in the declared types for FALLBACK, got TENSOR_CORE",
            Status.NOT_SUPPORTED,
        )

    @cached_property
    def _bounded(self) -> list[tuple[float, Engine]]:
        """The admitted engines, each with its lower bound, lowest first; last ``composite``, which asks all others.

        Later engines come first among equal bounds: they were made to outdo the earlier ones.
        """
        bounded = [(bound_us(self._graph, engine, self._arch), engine) for engine in self._admitted]
        return sorted(bounded, key=_turn)

    def _is_needless(self, engine: Engine, found: Candidate) -> bool:
        """Whether ``engine`` stands behind that of ``found`` whatever its time, or is sure to refuse the graph."""
        if isinstance(engine, OptIn):
            return not isinstance(found.engine, OptIn)
        return isinstance(engine, LastResort) and keeps_precision(found.engine, self._graph)

    def _refusal(self, engine: Engine) -> Refusal | None:
        return self._graph.derive(engine.refuse, self._arch)

    def _candidate(self, engine: Engine) -> Candidate:
        """With the engine's default knobs; its plan is made once."""
        if engine.index not in self._planned:
            plan = engine.plan(self._graph, self._arch, {})
            estimate = plan_us(plan, self._arch)
            reason = _reason(plan, estimate)
            self._planned[engine.index] = Candidate(engine, self._graph, self._arch, {}, estimate, reason, plan)
        return self._planned[engine.index]

    @cached_property
    def _estimated_best(self) -> Candidate | None:
        """The candidate with the least estimate, as ``best``."""
        best: Candidate | None = None
        waiting = list(self._bounded)
        while waiting:
            bound, engine = waiting.pop(0)
            if best is not None and (bound > best.estimated_us or self._is_needless(engine, best)):
                continue
            if self._refusal(engine) is not None:
                continue
            near_bound = max(bound, modelled_us(self._graph, engine, self._arch))
            if waiting and near_bound > max(bound, waiting[0][0]):
                insort(waiting, (near_bound, engine), key=_turn)
                continue
            best = min(filter(None, (best, self._candidate(engine))), key=_order)
        return best

    def _estimated(self) -> Iterable[Candidate]:
        """All, in no order; those that are sure to be slower than the best get no plan."""
        best = self._estimated_best
        for bound, engine in self._bounded:
            if best is None or self._refusal(engine) is not None:
                continue
            least_us = self._least_us(bound, engine, best)
            if least_us > best.estimated_us:
                reason = f"at least {least_us:.1f} us, the best candidate is estimated at {best.estimated_us:.1f} us"
                yield Candidate(engine, self._graph, self._arch, {}, least_us, reason)
            else:
                candidate = self._candidate(engine)
                yield candidate
                yield from _plainer(candidate)

    def _least_us(self, bound: float, engine: Engine, best: Candidate) -> float:
        """A lower bound of an engine that takes the graph; the dearer one where that may tell it from the best."""
        if engine is best.engine:
            return best.estimated_us
        return bound if bound > best.estimated_us else max(bound, modelled_us(self._graph, engine, self._arch))


def rank(
    graph: OperationGraph,
    arch: ArchSpec,
    mode: HeurMode,
    engines: Sequence[Engine],
    records: Records | None = None,
    known: KnownPlans | None = None,
) -> Ranking:
    """The engines that take ``graph`` on ``arch``, fastest first, and the reasons of those that do not.

    records: a handle's; by default those of the package alone.  known: plans of bundles, such as a handle has.
    """
    return Ranking(graph, arch, mode, engines, released_records() if records is None else records, known)


def candidate_for(engine: Engine, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Candidate:
    """A candidate with knob choices given by the caller; its plan is made now.

    Raises BadParamError for an unknown knob or value, NotSupportedError where the engine refuses the graph.
    """
    plan = engine.plan(graph, arch, choices)
    estimate = plan_us(plan, arch)
    return Candidate(engine, graph, arch, choices, estimate, f"{estimate:.1f} us estimated, knobs chosen", plan)


def with_parts(candidate: Candidate, most: int) -> Candidate | None:
    """The candidate with the sums of its plan in at most ``most`` parts each; None where that saves no workspace.

    Its other knobs stay; whole sums alone have knobs of their own. It is never estimated below ``candidate``: the
    engine, which knows more than the cost model, chose to split.
    Raises BadParamError for a number of parts that the engine does not know.
    """
    engine, graph, arch, plan = candidate.engine, candidate.graph, candidate.arch, candidate.plan
    choices = {knob: most for knob, value in plan.choices if knob in SPLITS and value > most}
    if not choices or not plan.workspace_bytes:
        return None
    if most > 1:
        choices = {**dict(plan.choices), **choices}
    fewer = engine.plan(graph, arch, choices)
    saved_bytes = plan.workspace_bytes - fewer.workspace_bytes
    if saved_bytes <= 0:
        return None
    estimate = max(plan_us(fewer, arch), candidate.estimated_us)
    than = "split" if most == 1 else "in more parts"
    reason = f"{_reason(fewer, estimate)}, {saved_bytes} bytes of workspace less than {than}"
    return Candidate(engine, graph, arch, choices, estimate, reason, fewer)


def _plainer(candidate: Candidate) -> Iterable[Candidate]:
    """The candidate without splits, where that saves workspace, and without transforms of parts, where it has any."""
    return filter(None, (with_parts(candidate, 1), _without_transforms(candidate)))


def _without_transforms(candidate: Candidate) -> Candidate | None:
    """The candidate with no part by FFT or Winograd; None where there is none."""
    plan = candidate.plan
    if not dict(plan.choices).get(KnobType.TRANSFORMS) or TRANSFORM_NOTES.isdisjoint(plan.numerical_notes):
        return None
    choices = {**candidate.choices, KnobType.TRANSFORMS: 0}
    plain = candidate.engine.plan(candidate.graph, candidate.arch, choices)
    estimate = max(plan_us(plain, candidate.arch), candidate.estimated_us)
    reason = f"{_reason(plain, estimate)}, without transforms"
    return Candidate(candidate.engine, candidate.graph, candidate.arch, choices, estimate, reason, plain)


def _turn(bounded: tuple[float, Engine]) -> tuple[bool, bool, float, int]:
    """When an engine with this lower bound is asked."""
    bound, engine = bounded
    return isinstance(engine, OptIn), isinstance(engine, LastResort), bound, -engine.index


def _order(candidate: Candidate) -> tuple[bool, float, int]:
    return isinstance(candidate.engine, OptIn), candidate.estimated_us, candidate.engine.index


def _reason(plan: Plan, estimate_us: float) -> str:
    work = plan.work
    launches = f"{len(plan.launches)} launch" + ("" if len(plan.launches) == 1 else "es")
    parts = f"; parts: {listed(plan.parts)}" if plan.parts else ""
    return f"{estimate_us:.1f} us estimated: {launches}, {work.flops:.3g} flops, {work.bytes:.3g} bytes{parts}"
