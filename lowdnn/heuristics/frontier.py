"""Time against workspace: which plans no other beats in both, and the fastest of those that a caller allows.

Ranking lists the best plan of each engine, and without its splits. Between these two lie plans that split a sum into
fewer parts, with fewer partial sums in the workspace. They are made here, for callers with less workspace than the best
plan needs: with three quarters of it such a plan is often nearly as fast, where one without a split may take twenty
times as long.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from lowdnn.engines.model.plan_time import plan_us
from lowdnn.heuristics.ranking import SPLITS, Candidate, with_parts
from lowdnn.plan import Plan
from lowdnn.status import BadParamError, NotSupportedError

#: Each number of parts on the frontier is smaller than the one before by at least this factor.
_STEP = 1.25


def frontier(candidates: Iterable[Candidate], is_allowed: Callable[[Plan], bool]) -> tuple[Candidate, ...]:
    """The allowed candidates, also in fewer parts, that need less workspace than each faster one; fastest first.

    Their estimates are those of their plans, or what was measured; no bounds.
    """
    listed = [estimated(candidate) for candidate in candidates]
    derived = [fewer for candidate in listed for fewer in in_fewer_parts(candidate)]
    # At equal estimates the engine's own number of parts comes first: its model knows more than the estimate.
    ordered = [*sorted(listed, key=_cost), *sorted(derived, key=_cost)]
    found: list[Candidate] = []
    for candidate in sorted(ordered, key=lambda each: each.estimated_us):
        is_smaller = not found or candidate.workspace_bytes < found[-1].workspace_bytes
        if is_smaller and is_allowed(candidate.plan):
            found.append(candidate)
    return tuple(found)


def best_allowed(candidates: Iterable[Candidate], is_allowed: Callable[[Plan], bool]) -> Candidate | None:
    """The fastest candidate, as it is or in fewer parts, whose plan is allowed; None where none is.

    candidates: in a ranking's order. The first of those that were measured comes before those that are estimated.
    """
    listed = tuple(candidates)
    for candidate in listed:
        if candidate.is_measured and is_allowed(candidate.plan):
            return candidate
    best: Candidate | None = None
    for candidate in listed:
        # The estimate of one without a plan is a bound.
        if best is None or candidate.estimated_us < best.estimated_us:
            allowed = _allowed(estimated(candidate), is_allowed)
            if allowed is not None and (best is None or allowed.estimated_us < best.estimated_us):
                best = allowed
    return best


def estimated(candidate: Candidate) -> Candidate:
    """``candidate`` with its plan, and with the plan's estimate in the place of a bound."""
    if candidate.made_plan is not None or candidate.is_measured:
        return candidate
    plan = candidate.plan
    return replace(candidate, estimated_us=plan_us(plan, candidate.arch), made_plan=plan)


def in_fewer_parts(candidate: Candidate) -> Iterator[Candidate]:
    """``candidate`` with its sums in fewer parts, where that saves workspace; most parts first."""
    last = math.inf
    for most in _numbers_of_parts(candidate):
        if most == 1 or most * _STEP <= last:
            last = most
            fewer = _with_parts(candidate, most)
            if fewer is not None:
                yield fewer


def _cost(candidate: Candidate) -> tuple[float, int]:
    return candidate.estimated_us, candidate.workspace_bytes


def _allowed(candidate: Candidate, is_allowed: Callable[[Plan], bool]) -> Candidate | None:
    """``candidate``, or in fewer parts that are allowed; fewer parts never need more workspace."""
    if is_allowed(candidate.plan):
        return candidate
    found: dict[int, Candidate] = {}

    def fits(most: int) -> bool:
        fewer = _with_parts(candidate, most)
        if fewer is None or not is_allowed(fewer.plan):
            return False
        found[most] = fewer
        return True

    numbers = _numbers_of_parts(candidate)
    if not numbers or not fits(numbers[-1]):
        return None  # a filter that bars the smallest plan bars the others
    bisect_left(numbers, True, hi=len(numbers) - 1, key=fits)
    # As a rule the one with the most parts, where they do not fill the device less well.
    return min(found.values(), key=lambda fewer: fewer.estimated_us)


def _with_parts(candidate: Candidate, most: int) -> Candidate | None:
    try:
        return with_parts(candidate, most)
    except (BadParamError, NotSupportedError):
        return None  # one of two knobs may not know the number


def _numbers_of_parts(candidate: Candidate) -> list[int]:
    """Numbers of parts below those of the candidate's plan, most first."""
    chosen = {knob: value for knob, value in candidate.plan.choices if knob in SPLITS and value > 1}
    if not chosen or not candidate.plan.workspace_bytes:
        return []
    knobs = candidate.engine.knobs(candidate.graph, candidate.arch)
    values = {value for knob in knobs if knob.type in chosen for value in knob.values if value < chosen[knob.type]}
    return sorted(values, reverse=True)
