"""The handle's compile policy: which plan runs in place of one whose kernels would have to be compiled first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from lowdnn.backend.handle import Handle
from lowdnn.config import CompilePolicy
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.kernels_at_hand import best_at_hand
from lowdnn.heuristics.ranking import Candidate
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.plan import Plan
from lowdnn.runtime.kernel_images import KernelImages
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.switching_plan import SwitchingPlan


def choice_at_hand(
    handle: Handle, wanted: Candidate, is_allowed: Callable[[Plan], bool] = lambda plan: True, *, switches: bool = True
) -> Candidate:
    """``wanted``, or by the handle's compile policy (``config.CompilePolicy``) what runs in its place.

    is_allowed: whether a plan may.  switches: whether the caller loads the plan by ``load``, which may switch later;
    otherwise what is compiled meanwhile serves later graphs.
    A graph that asks for the same bits in every run waits for its best plan under each policy.
    Counts ``compile_waits``: wanted plans whose kernels have to be compiled now; ``plans_at_hand``: those in whose
    place another one runs.
    """
    policy = handle.runtime.config.compile_policy
    if policy == CompilePolicy.WAIT or _asks_for_same_bits(wanted.graph):
        return wanted
    found = _found_at_hand(handle, wanted, is_allowed)
    handle.known_choices.add(found.plan, wanted.graph, wanted.arch)
    if policy == CompilePolicy.BACKGROUND and found.better is not None:
        if switches:
            return found
        handle.begin(found.better.plan)
    return replace(found, better=None)


def load(handle: Handle, candidate: Candidate, kept: KernelImages | None = None) -> LoadedPlan | SwitchingPlan:
    """Loads the candidate's plan on the handle's device; it is replaced by the better plan as soon as that is loaded,
    too. kept, errors: as in ``Handle.load_candidate``.
    """
    loaded = handle.load_candidate(candidate, kept)
    better = candidate.better
    if better is None:
        return loaded

    def keep(switched: LoadedPlan) -> None:
        handle.adopt(better, switched)
        handle.known_choices.add(switched.plan, candidate.graph, candidate.arch)

    return SwitchingPlan(loaded, better.plan, handle.loader, keep)


def _found_at_hand(handle: Handle, wanted: Candidate, is_allowed: Callable[[Plan], bool]) -> Candidate:
    are_at_hand, counters = handle.loader.modules.are_at_hand, handle.runtime.counters
    if are_at_hand(wanted.plan.kernels):
        return wanted
    known = handle.known_choices.of(wanted.graph, wanted.arch)
    found = best_at_hand(wanted, known, handle.engines, are_at_hand, is_allowed)
    fields = {"wanted": wanted.plan.name}
    if found is None:
        counters.add("compile_waits")
        emit(event_logger("backend"), logging.WARNING, "compile_wait", fields)
        return wanted
    counters.add("plans_at_hand")
    fields |= {"plan": found.plan.name, "slowdown": f"{found.slowdown:.2f}"}
    emit(event_logger("backend"), logging.INFO, "plan_at_hand", fields)
    return found


def _asks_for_same_bits(graph: OperationGraph) -> bool:
    return any(isinstance(op, SdpaBackward) and op.is_deterministic for op in graph.operations)
