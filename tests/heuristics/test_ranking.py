"""Ranking with engines that take what they are told to take, and with those of the registry."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal, resolve_choices
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.limits import UNLIMITED
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import BehaviorNote, HeurMode, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import candidate_for, rank
from lowdnn.plan import KernelRef, Launch, MathUnit, Plan, Work
from lowdnn.status import BadParamError
from tests.support.builders import convolution_graph, matmul_graph, pointwise_graph

GRAPH = pointwise_graph(PointwiseMode.ADD, (64, 64))


@dataclass(eq=False)
class FakeEngine:
    """An engine whose plan moves ``size_bytes`` in one full wave; ``plans`` are the plans made,
    ``asked`` how often it could refuse."""

    name: str
    index: int
    size_bytes: int = 0
    reason: str = ""
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes: tuple[BehaviorNote, ...] = ()
    anchors: Anchors = ()
    limits = UNLIMITED
    plans: list[Choices] = field(default_factory=list)
    asked: int = 0

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        self.asked += 1
        return Refusal(self.name, self.reason) if self.reason else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        return (Knob("tile", KnobType.TILE_M, (16, 32), 32, "rows of a tile"),)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        resolved = resolve_choices(self.name, self.knobs(graph, arch), choices)
        self.plans.append(choices)
        work = Work(0, self.size_bytes, MathUnit.NONE)
        launch = Launch(0, (arch.sm_count, 1, 1), (32, 1, 1), (), work=work)
        return Plan(self.name, self.index, graph.key, arch.name, tuple(resolved.items()), (), (launch,), ())

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()


def names(mode: HeurMode, *engines: FakeEngine) -> list[str]:
    return [candidate.engine.name for candidate in rank(GRAPH, SM_90A, mode, engines).candidates]


def test_the_fastest_candidate_comes_first() -> None:
    assert names(HeurMode.A, FakeEngine("slow", 0, 10**9), FakeEngine("fast", 1, 10**6)) == ["fast", "slow"]


@pytest.mark.parametrize("mode", [HeurMode.INSTANT, HeurMode.B])
def test_instant_and_b_give_the_list_of_a(mode: HeurMode) -> None:
    engines = (FakeEngine("slow", 0, 10**9), FakeEngine("fast", 1, 10**6))
    assert names(mode, *engines) == names(HeurMode.A, *engines)


def test_equal_estimates_keep_the_order_of_the_registry() -> None:
    assert names(HeurMode.A, FakeEngine("first", 0, 10**6), FakeEngine("second", 1, 10**6)) == ["first", "second"]


@dataclass(eq=False)
class SplittingEngine(FakeEngine):
    """An engine that sums in ``splits`` parts by default, each of which needs ``part_bytes`` of workspace.

    In one part it needs ``whole_bytes``.
    """

    splits: int = 4
    part_bytes: int = 256
    whole_bytes: int = 0

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        return (Knob("split_k", KnobType.SPLIT_K_SLC, (1, 2, 4), self.splits, "parts of k"),)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        plan = super().plan(graph, arch, choices)
        splits = dict(plan.choices)[KnobType.SPLIT_K_SLC]
        return replace(plan, workspace_bytes=splits * self.part_bytes if splits > 1 else self.whole_bytes)


def test_an_engine_that_splits_is_listed_without_the_split_too() -> None:
    split, whole = rank(GRAPH, SM_90A, HeurMode.A, (SplittingEngine("split", 0, 10**6),)).candidates
    assert (split.choices, split.plan.workspace_bytes) == ({}, 1024)
    assert (whole.choices, whole.plan.workspace_bytes) == ({KnobType.SPLIT_K_SLC: 1}, 0)
    assert whole.estimated_us >= split.estimated_us
    assert whole.reason.endswith("1024 bytes of workspace less than split")


@pytest.mark.parametrize("change", [{"splits": 1}, {"part_bytes": 0}, {"whole_bytes": 1024}])
def test_an_engine_with_no_workspace_to_save_is_listed_once(change: dict[str, int]) -> None:
    assert names(HeurMode.A, SplittingEngine("split", 0, 10**6, **change)) == ["split"]  # type: ignore[arg-type]


def test_refusals_carry_reasons_in_the_order_of_the_registry() -> None:
    engines = (FakeEngine("a", 0, reason="dims: no"), FakeEngine("b", 1, 1), FakeEngine("c", 2, reason="type: no"))
    ranking = rank(GRAPH, SM_90A, HeurMode.A, engines)
    assert [str(refusal) for refusal in ranking.refusals] == ["a: dims: no", "c: type: no"]
    assert "1. b: " in ranking.explain()
    assert "c: type: no" in ranking.explain()


def test_fallback_leaves_tensor_cores_out_and_says_so() -> None:
    engines = (FakeEngine("mma", 0, 1, numerical_notes=(NumericalNote.TENSOR_CORE,)), FakeEngine("simt", 1, 10**9))
    ranking = rank(GRAPH, SM_90A, HeurMode.FALLBACK, engines)
    assert [candidate.engine.name for candidate in ranking.candidates] == ["simt"]
    assert "TENSOR_CORE" in ranking.refusals[0].reason


def test_a_hopeless_engine_gets_no_plan_until_asked() -> None:
    """The bound of an engine without tensor cores is above the estimate of one with them."""
    graph = matmul_graph((1,), 2048, 2048, 2048)
    mma = FakeEngine("mma", 0, 10**6, numerical_notes=(NumericalNote.TENSOR_CORE,))
    simt = FakeEngine("simt", 1, 10**6)
    ranking = rank(graph, SM_90A, HeurMode.A, (simt, mma))
    assert [candidate.engine.name for candidate in ranking.candidates] == ["mma", "simt"]
    assert (len(mma.plans), len(simt.plans)) == (1, 0)
    assert ranking.candidates[1].plan.engine == "simt"
    assert ranking.candidates[1].plan is ranking.candidates[1].plan
    assert len(simt.plans) == 1


def test_the_best_candidate_asks_no_engine_that_cannot_win() -> None:
    graph = matmul_graph((1,), 2048, 2048, 2048)
    mma = FakeEngine("mma", 0, 10**6, numerical_notes=(NumericalNote.TENSOR_CORE,))
    simt = FakeEngine("simt", 1, 10**6)
    ranking = rank(graph, SM_90A, HeurMode.A, (simt, mma))
    assert ranking.best is not None
    assert ranking.best.engine is mma
    assert (len(mma.plans), len(simt.plans), simt.asked) == (1, 0, 0)
    assert ranking.candidates[0] is ranking.best
    assert (len(mma.plans), len(simt.plans), simt.asked) == (1, 0, 1)


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_of_a_convolution_the_best_candidate_alone_is_planned(direction: str) -> None:
    """An engine's own model tells beforehand that it is slower, and not slower than its plan is estimated then."""
    graph = parse_case(f"conv n=16 c=64 hw=24x24 k=64 rs=3x3 pad=1 dtype=fp16 dir={direction}").graph()
    best, *others = (c for c in rank(graph, SM_90A, HeurMode.A, ENGINES).candidates if not c.choices)
    assert best.made_plan is not None
    assert len(others) > 1
    for candidate in others:
        assert candidate.made_plan is None
        assert best.estimated_us < candidate.estimated_us <= plan_us(candidate.plan, SM_90A)


def test_the_best_candidate_is_the_first_of_equals_and_none_where_all_refuse() -> None:
    first, second = FakeEngine("first", 0, 10**6), FakeEngine("second", 1, 10**6)
    best = rank(GRAPH, SM_90A, HeurMode.A, (first, second)).best
    assert best is not None
    assert best.engine is first
    assert rank(GRAPH, SM_90A, HeurMode.A, (FakeEngine("a", 0, reason="dims: no"),)).best is None


def test_the_best_candidate_is_not_planned_without_its_split() -> None:
    engine = SplittingEngine("split", 0, 10**6)
    ranking = rank(GRAPH, SM_90A, HeurMode.A, (engine,))
    assert ranking.best is not None
    assert len(engine.plans) == 1
    assert len(ranking.candidates) == len(engine.plans) == 2


def test_the_last_resort_is_the_best_where_no_other_engine_takes_the_graph() -> None:
    graph = parse_case("matmul m=40 n=24 k=64 layout=nt dtype=bf16 prologue=scale+bias+relu").graph()
    best = rank(graph, SM_80, HeurMode.A, ENGINES).best
    assert best is not None
    assert best.engine.name == "composite"


def test_the_last_resort_may_be_the_best_where_the_others_round_inputs() -> None:
    graph = parse_case("matmul m=40 n=24 k=64 dtype=fp32 epilogue=bias exits=rowmax").graph()
    notes = (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)
    rounding = FakeEngine("rounding", 99, 10**9, numerical_notes=notes)
    singles = (rounding, engine_named("matmul_simt"), engine_named("reduction"))
    ranking = rank(graph, SM_90A, HeurMode.A, (*singles, Composite(singles)))
    assert ranking.best is not None
    assert ranking.best.engine.name == "composite"
    assert ranking.candidates[0] is ranking.best


def test_chosen_knobs_reach_the_plan() -> None:
    candidate = candidate_for(FakeEngine("e", 0, 1), GRAPH, SM_90A, {KnobType.TILE_M: 16})
    assert candidate.plan.choices == ((KnobType.TILE_M, 16),)


def test_an_unknown_knob_or_value_is_refused() -> None:
    with pytest.raises(BadParamError, match=r"knob_choices: expected TILE_M, got TILE_N"):
        candidate_for(FakeEngine("e", 0, 1), GRAPH, SM_90A, {KnobType.TILE_N: 16})
    with pytest.raises(BadParamError, match=r"TILE_M: expected one of \[16, 32\], got 7"):
        candidate_for(FakeEngine("e", 0, 1), GRAPH, SM_90A, {KnobType.TILE_M: 7})


@pytest.mark.parametrize(
    "graph",
    [
        convolution_graph((2, 8, 9, 7), (16, 8, 3, 3), epilogue=(PointwiseMode.RELU_FWD,)),
        matmul_graph((2,), 16, 24, 32),
        GRAPH,
    ],
)
def test_every_engine_of_the_registry_is_ranked_or_has_a_reason(graph: OperationGraph) -> None:
    ranking = rank(graph, SM_90A, HeurMode.A, ENGINES)
    assert ranking.candidates
    found = [c.engine.name for c in ranking.candidates] + [refusal.engine for refusal in ranking.refusals]
    assert sorted(found) == sorted(engine.name for engine in ENGINES)


def test_composite_gives_the_reason_that_it_gives_when_asked() -> None:
    ranking = rank(GRAPH, SM_90A, HeurMode.A, ENGINES)
    asked = engine_named("composite").refuse(GRAPH, SM_90A)
    assert asked in ranking.refusals


def test_fewer_multiprocessors_make_a_longer_estimate() -> None:
    graph = convolution_graph((32, 64, 28, 28), (64, 64, 3, 3))
    whole, part = (
        rank(graph, replace(SM_90A, sm_count=count), HeurMode.A, ENGINES).candidates[0] for count in (132, 33)
    )
    assert part.estimated_us > whole.estimated_us


#: The fastest engines on an H200, where several families take the layer.
MEASURED = (
    ("n=64 c=3 hw=224x224 k=32 rs=3x3 pad=1 stride=2 dir=fprop", "conv_stem_mma"),
    ("n=64 c=3 hw=224x224 k=96 rs=4x4 stride=4 dir=fprop", "conv_stem_mma"),
    ("n=32 c=3 hw=224x224 k=64 rs=3x3 pad=1 dir=fprop", "conv_stem_mma"),
    ("n=32 c=3 hw=224x224 k=64 rs=3x3 pad=1 dir=dgrad", "conv_stem_dgrad_mma"),
    ("n=128 c=3 hw=224x224 k=64 rs=7x7 pad=3 stride=2 dir=wgrad", "conv_stem_wgrad_mma"),
    ("n=64 c=1024 hw=7x7 k=1024 rs=3x3 pad=1 groups=32 dir=fprop", "conv_grouped_mma"),
    ("n=64 c=1024 hw=7x7 k=1024 rs=3x3 pad=1 groups=32 dir=wgrad", "conv_grouped_mma"),
    ("n=128 c=512 hw=14x14 k=512 rs=3x3 pad=1 groups=8 dir=fprop", "conv_fprop_wgmma"),
    ("n=32 c=128 hw=56x56 k=128 rs=3x3 pad=1 groups=32 dir=wgrad", "conv_grouped_mma"),
)


@pytest.mark.parametrize(("layer", "engine"), MEASURED)
def test_the_engine_that_was_measured_fastest_comes_first(layer: str, engine: str) -> None:
    graph = parse_case(f"conv {layer} dtype=bf16").graph()
    assert rank(graph, SM_90A, HeurMode.A, ENGINES).candidates[0].engine.name == engine
