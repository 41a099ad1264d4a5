from __future__ import annotations

import re
import subprocess
import sys

import pytest

from lowdnn.engines.registry import ENGINES, engine_at, engine_named
from lowdnn.status import BadParamError


def test_names_and_indices_are_unique_and_in_order() -> None:
    indices = [engine.index for engine in ENGINES]
    assert indices == sorted(set(indices))
    assert len({engine.name for engine in ENGINES}) == len(ENGINES)
    assert all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", engine.name) for engine in ENGINES)


def test_indices_never_change() -> None:
    """They are in stored plans and in users' programs."""
    given = {"conv_direct": 1, "matmul_simt": 3, "pointwise": 4, "reduction": 5, "composite": 6}
    assert given.items() <= {engine.name: engine.index for engine in ENGINES}.items()


def test_entries_agree_with_the_engines() -> None:
    for entry, engine in zip(ENGINES.entries, ENGINES, strict=True):
        assert (engine.index, engine.name, engine.anchors) == (entry.index, entry.name, entry.anchors)


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
