"""Plans of bundles: the choices for a graph, from which its plan is made here and compared with the one that was made
where the bundle was.

The digest of a plan does not depend on the uids and names of tensors, since each program numbers its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from lowdnn.arch.specs import ArchSpec
from lowdnn.codec import encode
from lowdnn.documents import shown
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import KnobType
from lowdnn.events import Counters, emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.kernels_at_hand import extents_of
from lowdnn.heuristics.ranking import Candidate, PlanSource
from lowdnn.heuristics.structure import structure_of
from lowdnn.plan import Plan, Work
from lowdnn.runtime.bundle import BundledPlan, Shipped
from lowdnn.status import BadParamError, LowdnnError

_UID = re.compile(r'"uid": (-?\d+)')


class BundledPlans:
    """The plans that bundles have for one device. Safe to share between threads.

    Counts ``bundled_plans``, and ``bundled_plans_refused``: choices that gave another plan here, which are not taken.
    """

    def __init__(self, arch: ArchSpec, shipped: Sequence[Shipped], counters: Counters) -> None:
        self._arch = arch
        self._shipped = shipped
        self._counters = counters

    def candidate(self, graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine]) -> Candidate | None:
        """The candidate for ``graph`` of the first bundle that has one, where ``arch`` is the device as it is.

        No other engine than that of the plan is asked anything.
        """
        if arch != self._arch:
            return None
        for found in filter(None, (shipped.plan(graph.key) for shipped in self._shipped)):
            try:
                candidate = made_again(found, graph, arch, engines, "bundle.plan")
            except LowdnnError as error:
                self._counters.add("bundled_plans_refused")
                emit(event_logger("heuristics"), logging.WARNING, "bundled_plan_refused", {"reason": error})
            else:
                self._counters.add("bundled_plans")
                return candidate
        return None


def bundled_plan(candidate: Candidate, case: str) -> BundledPlan:
    """The choices of a candidate's plan, for a bundle."""
    graph, plan = candidate.graph, candidate.plan
    return BundledPlan(
        graph=graph.key,
        engine=candidate.engine.name,
        choices=tuple((knob.name, value) for knob, value in plan.choices),
        plan=plan_digest(plan),
        structure=structure_of(graph),
        extents=extents_of(graph),
        case=case,
    )


def made_again(
    plan: BundledPlan, graph: OperationGraph, arch: ArchSpec, engines: Sequence[Engine], where: str
) -> Candidate:
    """The candidate for ``graph``, whose plan was made here, and is the one that the bundle was made with.

    Raises BadParamError where another plan came out, or none.
    """
    engine = EngineSet.of(engines).named(plan.engine)
    if engine is None:
        raise BadParamError.at(f"{where}.engine", expected="an engine of this version", got=shown(plan.engine))
    unknown = [name for name, _ in plan.choices if name not in KnobType.__members__]
    if unknown:
        raise BadParamError.at(f"{where}.choices", expected="names of knobs", got=shown(unknown[0]))
    choices = {KnobType[name]: value for name, value in plan.choices}
    try:
        made = engine.replan(graph, arch, choices)
    except Exception as error:  # values that no knob has may break anything
        raise BadParamError.at(f"{where}.choices", expected="an engine that takes them", got=error) from None
    digest = plan_digest(made)
    if digest != plan.plan:
        expected = f"{digest}, as {made.name} has here"
        raise BadParamError.at(f"{where}.plan", expected=expected, got=plan.plan, hint="export the bundle again")
    estimate = plan_us(made, arch)
    reason = f"{estimate:.1f} us estimated, the choice of a bundle"
    return Candidate(engine, graph, arch, choices, estimate, reason, made, source=PlanSource.BUNDLE)


def plan_digest(plan: Plan) -> str:
    """SHA-256 of what a plan launches, with uids in the order in which they come up.

    Names of tensors do not count, nor does a launch's work, which no device sees.
    """
    nameless = replace(
        plan,
        tensors=tuple(replace(tensor, name="") for tensor in plan.tensors),
        launches=tuple(replace(launch, work=Work()) for launch in plan.launches),
    )
    numbers: dict[str, str] = {}
    following = count()

    def numbered(found: re.Match[str]) -> str:
        uid = found[1]
        if uid not in numbers:
            numbers[uid] = str(next(following))
        return f'"uid": {numbers[uid]}'

    return hashlib.sha256(_UID.sub(numbered, json.dumps(encode(nameless))).encode()).hexdigest()
