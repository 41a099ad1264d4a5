"""Plans within a limit of shared memory: the nearest knobs of an engine with which its blocks need no more."""

from __future__ import annotations

from lowdnn.heuristics.ranking import Candidate, candidate_for
from lowdnn.plan import Plan
from lowdnn.status import LowdnnError


def shared_memory_of(plan: Plan) -> int:
    """Bytes of dynamic shared memory of a block, of the launch with the most."""
    return max((launch.shared_bytes for launch in plan.launches), default=0)


def within(candidate: Candidate, limit_bytes: int) -> Candidate | None:
    """``candidate``, or one of its engine with other knobs, whose plan needs at most ``limit_bytes``, or None.

    Each step changes the knob that saves the most; of equal ones, the one with the least estimated time.
    """
    while shared_memory_of(candidate.plan) > limit_bytes:
        known = shared_memory_of(candidate.plan)
        saving = [other for other in _neighbours(candidate) if shared_memory_of(other.plan) < known]
        if not saving:
            return None
        candidate = min(saving, key=lambda other: (shared_memory_of(other.plan), other.estimated_us))
    return candidate


def _neighbours(candidate: Candidate) -> list[Candidate]:
    """Candidates with one knob changed."""
    found: list[Candidate] = []
    for knob in candidate.engine.knobs(candidate.graph, candidate.arch):
        for value in knob.values:
            choices = {**candidate.choices, knob.type: value}
            try:
                found.append(candidate_for(candidate.engine, candidate.graph, candidate.arch, choices))
            except LowdnnError:  # not every combination is one that the engine has
                continue
    return found
