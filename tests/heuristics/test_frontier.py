"""Plans on the frontier of time against workspace, and the best plan within a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowdnn.arch.specs import spec_for
from lowdnn.cases import parse_case
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.heuristics.frontier import best_allowed, estimated, frontier
from lowdnn.heuristics.ranking import SPLITS, Candidate, rank
from lowdnn.plan import Plan
from lowdnn.status import BadParamError

#: Graphs whose best plans split sums over many blocks.
SPLIT = (
    "matmul m=256 n=256 k=65536 layout=nt dtype=bf16",
    "conv n=128 c=128 hw=28x28 k=128 rs=3x3 pad=1 dir=wgrad dtype=bf16",
    "conv n=32 c=512 hw=360 k=512 rs=51 pad=25 groups=512 dir=wgrad dtype=fp16",
    "sdpa_bwd b=1 h=8 q=20 d=16 hk=1 kv=70 dtype=fp16",
)


def candidates_of(line: str, mode: HeurMode = HeurMode.INSTANT) -> tuple[Candidate, ...]:
    return rank(parse_case(line).graph(), spec_for(9, 0), mode, ENGINES).candidates


def in_all_numbers_of_parts(candidate: Candidate) -> list[tuple[float, int]]:
    """(estimate, workspace) of the candidate with each value of its knobs that split."""
    engine, graph, arch, plan = candidate.engine, candidate.graph, candidate.arch, candidate.plan
    found = [(estimated(candidate).estimated_us, plan.workspace_bytes)]
    for knob in engine.knobs(graph, arch):
        chosen = dict(plan.choices).get(knob.type, 1)
        for value in knob.values if knob.type in SPLITS else ():
            if value < chosen:
                try:
                    other = engine.plan(graph, arch, {**dict(plan.choices), knob.type: value})
                except BadParamError:
                    continue
                found.append((max(plan_us(other, arch), candidate.estimated_us), other.workspace_bytes))
    return found


@pytest.mark.parametrize("line", SPLIT)
def test_no_plan_of_the_frontier_is_beaten(line: str) -> None:
    candidates = candidates_of(line)
    found = frontier(candidates, lambda plan: True)
    assert len(found) >= 3, "between the best plan and the smallest one there are others"
    times, sizes = [each.estimated_us for each in found], [each.workspace_bytes for each in found]
    assert times == sorted(times)
    assert sizes == sorted(set(sizes), reverse=True)
    assert found[0].plan == candidates[0].plan
    assert sizes[-1] == min(candidate.plan.workspace_bytes for candidate in candidates)
    for candidate in map(estimated, candidates):
        least_us = min(time for time, size in zip(times, sizes, strict=True) if size <= candidate.workspace_bytes)
        assert least_us <= candidate.estimated_us
    for each in found:
        assert each.estimated_us == pytest.approx(plan_us(each.plan, each.arch)) or each.estimated_us in times[:1]


@pytest.mark.parametrize("line", SPLIT)
def test_the_limit_takes_the_best_plan_that_fits(line: str) -> None:
    """The best of all engines in all numbers of parts is faster by a few percent at most."""
    candidates = candidates_of(line)
    everything = [found for candidate in candidates for found in in_all_numbers_of_parts(candidate)]
    sizes = sorted({size for _, size in everything})
    for limit in sizes[:: max(1, len(sizes) // 12)]:
        found = best_allowed(candidates, lambda plan, limit=limit: plan.workspace_bytes <= limit)
        assert found is not None
        assert found.plan.workspace_bytes <= limit
        least_us = min(time for time, size in everything if size <= limit)
        assert found.estimated_us <= 1.05 * least_us, limit


def test_a_bound_is_no_estimate() -> None:
    """The second plan of the list is the one that is estimated fastest, not the one with the lower bound."""
    candidates = candidates_of(SPLIT[0])
    bounds = [candidate for candidate in candidates if candidate.made_plan is None]
    bound = max(bounds, key=lambda each: plan_us(each.plan, each.arch))
    low = replace(bound, estimated_us=candidates[0].estimated_us + 0.01)
    others = [candidates[0], low, *(each for each in candidates[1:] if each is not bound)]
    barred = candidates[0].plan
    found = best_allowed(others, lambda plan: plan.engine != barred.engine or plan.workspace_bytes == 0)
    assert found is not None
    assert found.engine is not low.engine
    assert found.estimated_us == plan_us(found.plan, found.arch) < plan_us(low.plan, low.arch)
    assert estimated(low).estimated_us > low.estimated_us
    assert estimated(low).estimated_us == plan_us(low.plan, low.arch)


def test_a_measured_plan_comes_before_estimates() -> None:
    candidates = candidates_of(SPLIT[0])
    measured = replace(candidates[-1], is_measured=True, estimated_us=1e6)
    assert best_allowed([*candidates[:-1], measured], lambda plan: True) is measured
    assert best_allowed([*candidates[:-1], measured], lambda plan: plan != measured.plan) == candidates[0]


def test_nothing_allowed_is_none() -> None:
    def refuse(plan: Plan) -> bool:
        return False

    candidates = candidates_of(SPLIT[1])
    assert best_allowed(candidates, refuse) is None
    assert frontier(candidates, refuse) == ()
