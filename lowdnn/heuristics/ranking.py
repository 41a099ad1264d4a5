"""Ranked candidates for a graph: which engines take it, in which order, and why the others do not.

Modes, as cuDNN names them:

    A, INSTANT   every engine that takes the graph, fastest first by the cost model (one list, one cost: a plan is
                 made in microseconds, so there is nothing to save in INSTANT)
    B            the same list as A; there is no second, slower model
    FALLBACK     only engines that compute in the declared types (no tensor cores, no rounding of inputs)

An engine whose lower bound is already above the best estimate gets no plan: its bound is its estimate, and its plan is
made when somebody asks for it. The best engine, and any that seemed the best before it, is listed once more where it
splits a sum, with partial sums in the workspace: without the split, further down, for whoever has less workspace to
give.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Engine, Refusal
from lowdnn.engines.composite.composite import Composite, keeps_precision
from lowdnn.enums import HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.cost_model import bound_us, plan_us
from lowdnn.plan import Plan
from lowdnn.status import Status

#: Knobs that count the parts of a sum.
_SPLITS = (KnobType.SPLIT_K_SLC, KnobType.SPLIT_K_BUF)


@dataclass(frozen=True)
class Candidate:
    """One engine with knob choices for one graph; ``plan`` is made at first use.

    choices: knobs that differ from the engine's defaults.  estimated_us: see ``cost_model``.
    reason: one line on why the candidate stands where it does.  made_plan: the plan, where ranking has made it.
    """

    engine: Engine
    graph: OperationGraph
    arch: ArchSpec
    choices: Choices
    estimated_us: float
    reason: str
    made_plan: Plan | None = field(default=None, repr=False, compare=False)

    @cached_property
    def plan(self) -> Plan:
        return self.made_plan or self.engine.plan(self.graph, self.arch, self.choices)


@dataclass(frozen=True)
class Ranking:
    """Candidates, best first, and the engines that refused, in the registry's order."""

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]

    def explain(self) -> str:
        """One line for each engine: rank, name, estimate and reason, then the refusals."""
        ranked = [
            f"{number}. {candidate.engine.name}: {candidate.reason}"
            for number, candidate in enumerate(self.candidates, 1)
        ]
        return "\n".join([*ranked, *(f"-  {refusal}" for refusal in self.refusals)])


def rank(graph: OperationGraph, arch: ArchSpec, mode: HeurMode, engines: Sequence[Engine]) -> Ranking:
    """The engines that take ``graph`` on ``arch``, fastest first, and the reasons of those that do not."""
    admitted, refusals = _admitted(engines, mode)
    takers: list[tuple[float, Engine]] = []
    for engine in admitted:
        # composite would ask all the others again to find out what is known here.
        is_composite = isinstance(engine, Composite)
        better = next((taker for _, taker in takers if keeps_precision(taker, graph)), None) if is_composite else None
        refusal = _outdone(engine, better) if better else engine.refuse(graph, arch)
        if refusal is None:
            takers.append((bound_us(graph, engine.numerical_notes, arch), engine))
        else:
            refusals.append(refusal)
    # Of equal bounds the later engines first: they were made to outdo the earlier ones.
    takers.sort(key=lambda taker: (taker[0], -taker[1].index))
    candidates = sorted(_estimated(takers, graph, arch), key=lambda c: (c.estimated_us, c.engine.index))
    order = {engine.name: number for number, engine in enumerate(engines)}
    return Ranking(tuple(candidates), tuple(sorted(refusals, key=lambda refusal: order[refusal.engine])))


def candidate_for(engine: Engine, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Candidate:
    """A candidate with knob choices given by the caller; its plan is made now.

    Raises BadParamError for an unknown knob or value, NotSupportedError where the engine refuses the graph.
    """
    plan = engine.plan(graph, arch, choices)
    estimate = plan_us(plan, arch)
    return Candidate(engine, graph, arch, choices, estimate, f"{estimate:.1f} us estimated, knobs chosen", plan)


def _admitted(engines: Sequence[Engine], mode: HeurMode) -> tuple[list[Engine], list[Refusal]]:
    if mode is not HeurMode.FALLBACK:
        return list(engines), []
    admitted = [engine for engine in engines if NumericalNote.TENSOR_CORE not in engine.numerical_notes]
    barred = [
        Refusal(
            engine.name,
            "mode: expected an engine that computes in the declared types for FALLBACK, got TENSOR_CORE",
            Status.NOT_SUPPORTED,
        )
        for engine in engines
        if engine not in admitted
    ]
    return admitted, barred


def _outdone(engine: Engine, taker: Engine) -> Refusal:
    return Refusal(engine.name, f"one engine takes the whole graph: {taker.name}")


def _estimated(takers: Iterable[tuple[float, Engine]], graph: OperationGraph, arch: ArchSpec) -> Iterable[Candidate]:
    """Estimates in the order of the lower bounds, so that hopeless engines come when the best is known."""
    best_us = float("inf")
    for bound, engine in takers:
        if bound >= best_us:
            reason = f"at least {bound:.1f} us, the best candidate is estimated at {best_us:.1f} us"
            yield Candidate(engine, graph, arch, {}, bound, reason)
            continue
        plan = engine.plan(graph, arch, {})
        estimate = plan_us(plan, arch)
        yield Candidate(engine, graph, arch, {}, estimate, _reason(plan, estimate), plan)
        if estimate < best_us:
            best_us = estimate
            yield from _unsplit(engine, graph, arch, plan, estimate)


def _unsplit(
    engine: Engine, graph: OperationGraph, arch: ArchSpec, plan: Plan, plan_estimate_us: float
) -> Iterable[Candidate]:
    """The candidate with the sums of ``plan`` in one part each, where that saves workspace.

    It is never estimated below ``plan``: the engine, which knows more than the cost model, chose to split.
    """
    choices = {knob: 1 for knob, value in plan.choices if knob in _SPLITS and value > 1}
    if choices and plan.workspace_bytes:
        whole = engine.plan(graph, arch, choices)
        saved_bytes = plan.workspace_bytes - whole.workspace_bytes
        if saved_bytes > 0:
            estimate = max(plan_us(whole, arch), plan_estimate_us)
            reason = f"{_reason(whole, estimate)}, {saved_bytes} bytes of workspace less than split"
            yield Candidate(engine, graph, arch, choices, estimate, reason, whole)


def _reason(plan: Plan, estimate_us: float) -> str:
    work = plan.work
    launches = f"{len(plan.launches)} launch" + ("" if len(plan.launches) == 1 else "es")
    return f"{estimate_us:.1f} us estimated: {launches}, {work.flops:.3g} flops, {work.bytes:.3g} bytes"
