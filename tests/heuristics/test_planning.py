"""The cost model's first choice, and its work: from graph to plan without looking at candidates that cannot win."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from lowdnn.arch.specs import ArchSpec, spec_named
from lowdnn.cases import parse_case
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.floor import Modelled, bound_us, modelled_us
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode, KnobType
from lowdnn.heuristics.ranking import rank
from lowdnn.plan import Plan


@dataclass(frozen=True)
class Choice:
    """A line of ``choices.txt``."""

    arch: ArchSpec
    case: str
    engine: str
    knobs: frozenset[tuple[KnobType, int]]

    @classmethod
    def of(cls, line: str) -> Choice:
        arch, case, chosen = (part.strip() for part in line.split("|"))
        engine, *knobs = chosen.split()
        named = (knob.split("=") for knob in knobs)
        return cls(spec_named(arch), case, engine, frozenset((KnobType[name], int(value)) for name, value in named))

    def plan(self) -> Plan:
        best = rank(parse_case(self.case).graph(), self.arch, HeurMode.INSTANT, ENGINES).best
        assert best is not None
        return best.plan


_LINES = (Path(__file__).parent / "choices.txt").read_text(encoding="utf-8").splitlines()
CHOICES = [Choice.of(line) for line in _LINES if not line.startswith("#")]

#: Calls of functions, built-in ones included, that planning may take at most: about twice of what it takes.
CALLS = {
    ("sm_80", "pointwise dims={}x64x56x56 ops=scale+bias+relu dtype=bf16"): 2600,
    ("sm_80", "matmul m={}00 n=4096 k=4096 dtype=bf16"): 2800,
    ("sm_90a", "matmul m={}00 n=4096 k=4096 dtype=bf16"): 4000,
    ("sm_90a", "conv n={} c=128 hw=28x28 k=128 rs=3x3 pad=1 dtype=bf16"): 5300,
    ("sm_90a", "conv n={} c=256 hw=56x56 k=256 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16"): 7600,
    ("sm_90a", "conv n={} c=128 hw=28x28 k=128 rs=3x3 pad=1 dir=wgrad dtype=bf16"): 5300,
    ("sm_90a", "conv n={} c=3 hw=224x224 k=64 rs=7x7 pad=3 stride=2 dtype=bf16"): 13500,
    ("sm_90a", "conv n={} c=32 hw=112x112 k=32 rs=3x3 pad=1 groups=32 dtype=bf16"): 11000,
    ("sm_80", "conv n={} c=32 hw=112x112 k=32 rs=3x3 pad=1 groups=32 dir=wgrad dtype=bf16"): 17500,
    ("sm_80", "conv n={} c=96 hw=35x35 k=96 rs=3x3 pad=1 dir=wgrad dtype=bf16"): 11500,
}


def test_the_first_choices_are_those_that_were_measured() -> None:
    for choice in CHOICES:
        plan = choice.plan()
        missing = choice.knobs - set(plan.choices)
        assert (plan.engine, missing) == (choice.engine, frozenset()), (choice.arch.name, choice.case, plan.choices)


def test_the_best_candidate_is_the_first_one() -> None:
    for choice in CHOICES[::3]:
        ranking = rank(parse_case(choice.case).graph(), choice.arch, HeurMode.INSTANT, ENGINES)
        best = ranking.best
        assert best is ranking.candidates[0], (choice.arch.name, choice.case)


def test_no_plan_is_estimated_below_the_bound_of_its_engine() -> None:
    singles = [engine for engine in ENGINES if not isinstance(engine, Composite)]
    for choice in CHOICES[::2]:
        graph = parse_case(choice.case).graph()
        for engine in singles:
            if engine.refuse(graph, choice.arch) is None:
                estimate = plan_us(engine.plan(graph, choice.arch, {}), choice.arch)
                assert bound_us(graph, engine, choice.arch) <= estimate, (choice.arch.name, engine.name, choice.case)


def test_no_plan_takes_less_than_the_model_of_its_engine_says() -> None:
    modelled = [engine for engine in ENGINES if isinstance(engine, Modelled)]
    for choice in CHOICES[::2]:
        graph = parse_case(choice.case).graph()
        for engine in modelled:
            if engine.refuse(graph, choice.arch) is None:
                estimate = plan_us(engine.plan(graph, choice.arch, {}), choice.arch)
                near = modelled_us(graph, engine, choice.arch)
                assert near <= estimate, (choice.arch.name, engine.name, choice.case)


def test_engines_refuse_graphs_without_their_anchors() -> None:
    for choice in CHOICES[::2]:
        graph = parse_case(choice.case).graph()
        kinds = [type(operation) for operation in graph.operations]
        for engine in ENGINES:
            if engine.anchors and not any(issubclass(kind, engine.anchors) for kind in kinds):
                assert engine.refuse(graph, choice.arch) is not None, (choice.arch.name, engine.name, choice.case)


@pytest.mark.parametrize(("target", "case"), CALLS)
def test_a_new_shape_is_planned_in_few_calls(target: str, case: str) -> None:
    """Where a shape of its kind has been planned before."""
    _calls_of_planning(case.format(32), spec_named(target))
    assert _calls_of_planning(case.format(48), spec_named(target)) <= CALLS[target, case]


def _calls_of_planning(case: str, arch: ArchSpec) -> int:
    graph, count = parse_case(case).graph(), 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        assert rank(graph, arch, HeurMode.INSTANT, ENGINES).best is not None
    finally:
        sys.setprofile(before)
    return count
