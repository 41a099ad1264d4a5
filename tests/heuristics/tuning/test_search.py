"""The choice of candidates: by the cost model and what was fastest for other graphs, of many tiles, in the scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode, KnobType
from lowdnn.heuristics.ranking import Candidate, Ranking, rank
from lowdnn.heuristics.tuning.record_books import released_records
from lowdnn.heuristics.tuning.search import SLACK, Scope, variants, worth_timing

CASES = (
    "conv n=64 c=256 hw=14x14 k=256 rs=3x3 pad=1 dtype=bf16",
    "conv n=64 c=1024 hw=14x14 k=256 rs=1x1 dir=wgrad dtype=bf16",
    "norm dims=4096x1024 mode=layer dtype=bf16",
    "sdpa b=2 h=8 q=512 d=64 dtype=bf16",
)


def ranking(text: str, arch: ArchSpec = SM_90A) -> Ranking:
    return rank(parse_case(text).graph(), arch, HeurMode.INSTANT, ENGINES)


def no_hints(engine: str) -> Mapping[tuple[tuple[KnobType, int], ...], int]:
    return {}


def kernels(candidates: tuple[Candidate, ...]) -> list[object]:
    return [candidate.plan.kernels for candidate in candidates]


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("arch", [SM_90A, SM_80])
def test_the_models_choice_comes_first_and_others_near_it_with_other_kernels(text: str, arch: ArchSpec) -> None:
    found = ranking(text, arch)
    candidates = worth_timing(found, Scope(), no_hints, 8)
    assert found.best is not None
    assert candidates[0].plan == found.best.plan
    assert 1 <= len(candidates) <= 8
    assert len(set(kernels(candidates))) == len(candidates)
    least_us = min(candidate.estimated_us for candidate in candidates)
    assert all(candidate.estimated_us <= SLACK * candidates[0].estimated_us for candidate in candidates)
    assert least_us <= candidates[0].estimated_us


def test_candidates_are_of_many_tiles_and_engines() -> None:
    hints = partial(released_records().hints, SM_90A)
    candidates = worth_timing(ranking(CASES[1]), Scope(), hints, 16)
    tiles = Counter(
        (found.engine.name, *map(dict(found.plan.choices).get, (KnobType.TILE_M, KnobType.TILE_N)))
        for found in candidates
    )
    assert len(tiles) >= 7
    assert max(tiles.values()) <= 6
    assert {"conv_wgrad_wgmma", "matmul_wgmma"} <= {name for name, *_ in tiles}


def test_what_was_fastest_for_many_graphs_comes_before_what_was_so_for_none() -> None:
    found = ranking(CASES[0])
    plain = worth_timing(found, Scope(), no_hints, 30)
    proven = plain[-1]
    hints = {proven.engine.name: {tuple(proven.plan.choices): 1000}}
    first, second, *_ = worth_timing(found, Scope(), lambda engine: hints.get(engine, {}), 30)
    assert first.plan == plain[0].plan
    assert second.plan.kernels == proven.plan.kernels


def test_hints_that_an_engine_does_not_take_are_passed_over() -> None:
    found = ranking(CASES[0])
    wrong = {((KnobType.TILE_M, 7),): 5, ((KnobType.LDGC, 1),): 5}
    assert kernels(worth_timing(found, Scope(), lambda engine: wrong, 8)) == kernels(
        worth_timing(found, Scope(), no_hints, 8)
    )


def test_kernels_that_are_there_come_behind_the_others_for_nothing() -> None:
    found = ranking(CASES[0])
    every = worth_timing(found, Scope(), no_hints, 30)
    there = set(kernels(every[4:7]))
    few = worth_timing(found, Scope(), no_hints, 3, lambda one: one in there)
    assert kernels(few[:3]) == kernels(every[:3])
    assert set(kernels(few[3:])) == there


def test_variants_have_the_kernels_and_other_launches() -> None:
    best = ranking(CASES[0]).best
    assert best is not None
    found = variants(best, Scope(), 6)
    assert 1 <= len(found) <= 6
    for variant in found:
        assert variant.plan.kernels == best.plan.kernels
        assert variant.plan.launches != best.plan.launches
    fixed = {knob: (value,) for knob, value in best.plan.choices}
    assert variants(best, Scope(knobs=fixed), 6) == ()


def test_a_scope_bars_what_the_caller_does_not_want() -> None:
    found = ranking(CASES[0])
    first = found.best
    assert first is not None
    scope = Scope(barred=lambda plan: "no" if plan.engine == first.engine.name else "")
    assert all(one.engine.name != first.engine.name for one in worth_timing(found, scope, no_hints, 8))
