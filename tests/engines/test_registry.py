from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.registry import ENGINES, engine_at, engine_named
from lowdnn.status import BadParamError, NotSupportedError, Status


def test_names_and_indices_are_unique_and_in_order() -> None:
    indices = [engine.index for engine in ENGINES]
    assert indices == sorted(set(indices))
    assert len({engine.name for engine in ENGINES}) == len(ENGINES)
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", engine.name) for engine in ENGINES)


def test_indices_never_change() -> None:
    """Indices are in stored plans and in users' programs."""
    given = {"conv_direct": 1, "matmul_simt": 3, "pointwise": 4, "reduction": 5, "composite": 6}
    assert given.items() <= {engine.name: engine.index for engine in ENGINES}.items()


def test_entries_agree_with_the_engines() -> None:
    for entry, engine in zip(ENGINES.entries, ENGINES, strict=True):
        assert (engine.index, engine.name, engine.anchors) == (entry.index, entry.name, entry.anchors)


def test_no_engine_repeats_the_skeleton() -> None:
    """Refusals, knobs and plans follow from the problem, its knobs and its launches, the same way in every engine."""
    for engine in ENGINES:
        assert isinstance(engine, ProblemEngine), engine.name
        own = {name for cls in type(engine).__mro__ if cls is not ProblemEngine for name in vars(cls)}
        assert not own & {"refuse", "accepted", "knobs", "plan"}, engine.name


def test_a_problem_and_its_knobs_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, graph, asked = MatmulSimt(), parse_case("matmul m=8 n=8 k=8").graph(), Counter[str]()
    for name in ("problem", "knobs_of"):
        monkeypatch.setattr(MatmulSimt, name, _counting(getattr(MatmulSimt, name), asked))
    for _ in range(2):
        assert engine.refuse(graph, SM_80) is None
        assert engine.plan(graph, SM_80, {}).choices == tuple((k.type, k.default) for k in engine.knobs(graph, SM_80))
    assert asked == {"problem": 1, "knobs_of": 1}
    assert engine.refuse(graph, SM_90A) is None
    assert asked == {"problem": 2, "knobs_of": 1}


def test_kernels_of_one_target_are_refused_elsewhere_before_the_graph_is_looked_at() -> None:
    refusal = engine_named("matmul_wgmma").refuse(parse_case("pointwise dims=8 ops=relu").graph(), SM_80)
    assert (str(refusal), refusal and refusal.status) == (
        "matmul_wgmma: arch: expected sm_90a, got sm_80",
        Status.NOT_SUPPORTED_ARCH_MISMATCH,
    )
    with pytest.raises(NotSupportedError, match="matmul_wgmma: arch: expected sm_90a, got sm_80"):
        engine_named("matmul_wgmma").plan(parse_case("matmul m=8 n=8 k=8 dtype=bf16").graph(), SM_80, {})


def test_only_the_engines_of_a_graph_are_imported() -> None:
    """Planning a graph in a new process loads the families that may take it, and importing the frontend none."""
    program = """
import sys
def families():
    named = (name.split(".") for name in sys.modules if name.startswith("lowdnn.engines."))
    return {parts[2] for parts in named} & {"attention", "conv", "moe", "norm", "pointwise", "rope", "softmax"}
import lowdnn.frontend as cudnn
print(sorted(families()))
graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, sm_version=90)
graph.relu(graph.tensor([64])).set_output(True)
graph.build_operation_graph()
graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
print(sorted(families()))
"""
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.splitlines() == ["[]", "['pointwise']"]


def test_look_up_by_name_and_index() -> None:
    for engine in ENGINES:
        assert engine_named(engine.name) is engine
        assert engine_at(engine.index) is engine


def test_unknown_engines_are_named_with_the_known_ones() -> None:
    with pytest.raises(BadParamError, match=r"engine\.name: expected one of .*matmul_simt.*, got 'gemm'"):
        engine_named("gemm")
    with pytest.raises(BadParamError, match=r"engine\.global_index: expected one of .*3 \(matmul_simt\).*, got 99"):
        engine_at(99)


def test_precompiled_kernels_have_one_meaning_for_each_name() -> None:
    kernels = [kernel for engine in ENGINES for kernel in engine.precompiled()]
    assert len({kernel.name for kernel in kernels}) == len(set(kernels))


def _counting(method: Callable[..., Any], asked: Counter[str]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        asked[method.__name__] += 1
        return method(*arguments)

    return counted
