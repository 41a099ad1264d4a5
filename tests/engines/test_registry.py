from __future__ import annotations

import re

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
