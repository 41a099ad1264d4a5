"""Plans of bundles: made here from a graph and choices, compared, and taken before all others."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case, parse_cases
from lowdnn.cases.families.any_graph import GraphCase
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, RngDistribution
from lowdnn.events import Counters
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.bundled_plans import BundledPlans, bundled_plan, plan_digest
from lowdnn.heuristics.bundling import best_choices, bundle_of, check_plans
from lowdnn.heuristics.explanation import Explanation
from lowdnn.heuristics.ranking import Candidate, candidate_for, rank
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.bundle import Bundle, BundledPlan
from lowdnn.runtime.cache import DiskCache
from lowdnn.runtime.compile import KernelCompiler
from lowdnn.runtime.module_store import ModuleStore
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.random_graphs.steps import random_graph

CASES = Path(__file__).parents[1] / "cases"
TEXT = "matmul m=64 n=64 k=4096 dtype=bf16"


def graph_of(text: str = TEXT) -> OperationGraph:
    return parse_case(text).graph()


def without_inputs() -> OperationGraph:
    """Numbers by a seed that the graph has itself."""
    y = Tensor(1, DataType.FLOAT, (4, 8), (8, 1), 4)
    return OperationGraph((RngOperation(Rng(RngDistribution.BERNOULLI, probability=0.5), y=y, seed=3),))


def best(graph: OperationGraph, arch: ArchSpec = SM_90A) -> Candidate:
    found = rank(graph, arch, HeurMode.A, ENGINES).best
    assert found is not None
    return found


def plans(*found: BundledPlan, arch: ArchSpec = SM_90A) -> BundledPlans:
    return BundledPlans(arch, (Bundle(arch.name, arch.sm_count, "", (), found),), Counters())


def chosen(known: BundledPlans, arch: ArchSpec = SM_90A, mode: HeurMode = HeurMode.A) -> Candidate:
    found = rank(graph_of(), arch, mode, ENGINES, known=known).best
    assert found is not None
    return found


def other_choice() -> BundledPlan:
    """Not what the heuristics would take."""
    engine = ENGINES.named("matmul_simt")
    assert engine is not None
    return bundled_plan(candidate_for(engine, graph_of(), SM_90A, {}), TEXT)


def test_the_digest_of_a_plan_does_not_depend_on_uids_and_names() -> None:
    """Some of the cases, and random graphs, are written once more, as another program would write them."""
    rng = np.random.default_rng(seed := fresh_seed())
    cases = [case for path in sorted(CASES.glob("*.txt")) for case in parse_cases(path.read_text().splitlines())]
    graphs = [cases[place].graph() for place in rng.choice(len(cases), 60, replace=False)]
    graphs.append(without_inputs())
    graphs += [random_graph(seed + place).graph for place in range(20)]
    digests = set()
    for graph in graphs:
        found = best(graph)
        other = GraphCase.of(graph).graph()
        assert other.key == graph.key
        there = bundled_plan(found, "")
        again = plans(there).candidate(other, SM_90A, ENGINES)
        assert again is not None, f"{graph}, seed {seed}"
        assert again.plan.kernels == found.plan.kernels
        assert again.plan.choices == found.plan.choices
        digests.add(there.plan)
    assert len(digests) >= 75, "graphs with plans of their own"


@pytest.mark.parametrize("change", ["workspace_bytes", "launches", "kernels", "target_arch"])
def test_the_digest_of_a_plan_tells_plans_apart(change: str) -> None:
    plan = best(graph_of()).plan
    launch = plan.launches[0]
    others = {
        "workspace_bytes": replace(plan, workspace_bytes=plan.workspace_bytes + 256),
        "launches": replace(plan, launches=(replace(launch, grid=(9, 9, 9)), *plan.launches[1:])),
        "kernels": replace(plan, kernels=(replace(plan.kernels[0], generated="//"), *plan.kernels[1:])),
        "target_arch": replace(plan, target_arch="sm_80"),
    }
    assert plan_digest(others[change]) != plan_digest(plan)


def test_the_choice_of_a_bundle_comes_first_and_no_other_engine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    known = plans(other_choice())
    ranking = rank(graph_of(), SM_90A, HeurMode.A, ENGINES, known=known)
    assert ranking.candidates[0] is ranking.best
    assert ranking.candidates[0].engine.name == "matmul_simt"
    assert [found.engine.name for found in ranking.candidates].count("matmul_simt") == 1
    assert ranking.candidates[1].engine.name == best(graph_of()).engine.name
    assert "the choice of a bundle" in ranking.explain()
    told = str(Explanation.of(ranking, ENGINES, graph_of())).splitlines()
    assert "simt" in told[0]
    assert " us, chosen by a bundle; " in told[0]
    assert [line for line in told if line.startswith("    chosen by a bundle; ")]
    assert sum("chosen by a bundle" in line for line in told) == 2
    for entry in ENGINES.entries:
        if entry.name != "matmul_simt":
            monkeypatch.setattr(ENGINES.engine(entry), "refuse", lambda *_: pytest.fail("asked"))
    assert chosen(known).engine.name == "matmul_simt"
    assert known._counters.snapshot() == {"bundled_plans": 2}


def test_it_counts_in_modes_a_and_b_and_for_the_device_as_it_is() -> None:
    known = plans(other_choice())
    assert chosen(known, mode=HeurMode.B).engine.name == "matmul_simt"
    assert chosen(known, mode=HeurMode.INSTANT).engine.name != "matmul_simt"
    for arch in (SM_80, SM_90A.with_sm_count(100), SM_90A.with_shared_bytes(200_000, 210_000)):
        assert chosen(known, arch).engine.name != "matmul_simt"
    assert known.candidate(graph_of("matmul m=64 n=64 k=4097 dtype=bf16"), SM_90A, ENGINES) is None
    assert known.candidate(graph_of(), SM_90A, ENGINES.subset(("matmul_mma",))) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": "0" * 64}, "bundle.plan.plan: expected"),
        ({"engine": "nothing"}, "bundle.plan.engine: expected an engine of this version, got 'nothing'"),
        ({"engine": "pointwise"}, "bundle.plan.choices: expected an engine that takes them"),
        ({"choices": (("NO_KNOB", 1),)}, "bundle.plan.choices: expected names of knobs, got 'NO_KNOB'"),
        ({"choices": (("TILE_M", 7),)}, "bundle.plan.choices: expected an engine that takes them"),
        ({"choices": (("TILE_M", 2**62),)}, "bundle.plan.choices: expected an engine that takes them"),
    ],
)
def test_another_plan_than_the_one_of_the_bundle_is_not_taken(
    caplog: pytest.LogCaptureFixture, changes: dict[str, object], reason: str
) -> None:
    known = plans(replace(other_choice(), **changes))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, logger="lowdnn"):
        found = chosen(known)
    assert found.plan == best(graph_of()).plan
    assert "bundled_plan_refused" in caplog.text
    assert reason in caplog.text
    assert known._counters.snapshot() == {"bundled_plans_refused": 1}


@pytest.fixture
def compiler(kernel_cache_dir: Path) -> KernelCompiler:
    cache = DiskCache(kernel_cache_dir)
    return KernelCompiler(sources=SourceTree(), store=ModuleStore.installed(), cache=cache, counters=Counters())


def test_a_bundle_has_what_the_first_choices_need(compiler: KernelCompiler) -> None:
    texts = (TEXT, "pointwise dims=4x8 ops=relu", TEXT, "softmax dims=4x100")
    bundle = bundle_of(best_choices(map(parse_case, texts), SM_90A), SM_90A, compiler, jobs=2)
    assert (bundle.arch, bundle.sm_count) == ("sm_90a", 132)
    assert "release" in bundle.compiler
    assert [plan.case for plan in bundle.plans] == sorted(set(texts))
    for text in texts:
        graph = graph_of(text)
        candidate = BundledPlans(SM_90A, (bundle,), Counters()).candidate(graph, SM_90A, ENGINES)
        assert candidate is not None
        assert candidate.plan == best(graph).plan
        for kernel in candidate.plan.kernels:
            digest = SourceTree().read(kernel).digest
            target = kernel.target if kernel.target.endswith("a") else "sm_90"
            machine_code = bundle.image(digest, target)
            assert machine_code is not None
            assert machine_code.startswith(b"\x7fELF")
            assert (bundle.image(digest, "ptx") is None) == (digest in ModuleStore.installed().kernels)
    check_plans(bundle)
    assert bundle_of(best_choices(map(parse_case, reversed(texts)), SM_90A), SM_90A, compiler) == bundle


def test_the_first_choice_of_a_graph_counts(compiler: KernelCompiler) -> None:
    engine, first = ENGINES.named("matmul_simt"), best(graph_of())
    assert engine is not None
    second = candidate_for(engine, graph_of(), SM_90A, {})
    bundle = bundle_of([(TEXT, first), (TEXT, second)], SM_90A, compiler)
    assert [plan.engine for plan in bundle.plans] == [first.engine.name]
    assert {image.kernel for image in bundle.images} == {kernel.name for kernel in first.plan.kernels}


def test_an_architecture_that_nvrtc_does_not_know_gets_ptx_alone(compiler: KernelCompiler) -> None:
    newer = replace(SM_80, name="sm_139", compute_capability=(13, 9))
    bundle = bundle_of(best_choices([parse_case("pointwise dims=4x8 ops=relu+abs dtype=fp32")], newer), newer, compiler)
    assert {image.output for image in bundle.images} <= {"ptx"}


def test_a_case_without_a_plan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowdnn.heuristics.bundling.ENGINES", ENGINES.subset(("softmax",)))
    with raises(NotSupportedError, f"case '{TEXT}'", expected="an engine that takes it"):
        next(best_choices([parse_case(TEXT)], SM_90A))
    with pytest.raises(BadParamError, match="; in 'matmul"):
        next(best_choices([parse_case("matmul m=4 n=4 k=4 bb=3 b=2")], SM_90A))


def test_the_plans_of_a_bundle_are_checked_against_their_cases() -> None:
    plan = bundled_plan(best(graph_of()), TEXT)
    check_plans(Bundle("sm_90a", 132, "", (), (plan, replace(plan, graph="0" * 64, case=""))))
    wrong = {
        "graph": replace(plan, graph="0" * 64),
        "engine": replace(plan, engine="none"),
        "choices": replace(plan, choices=(("TILE_M", 3),)),
        "plan": replace(plan, plan="0" * 64),
    }
    for field, other in wrong.items():
        with raises(BadParamError, f"bundle.plans[0].{field}"):
            check_plans(Bundle("sm_90a", 132, "", (), (other,)))
    with raises(BadParamError, "case", expected="a line that starts with"):
        check_plans(Bundle("sm_90a", 132, "", (), (replace(plan, case="nothing"),)))
