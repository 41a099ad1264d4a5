"""Attention and its gradients: near misses, recognised or not, agree with the oracle."""

from __future__ import annotations

import pytest

from lowdnn.runtime.runtime import Runtime
from tests.support.near_misses.attention import PATTERNS
from tests.support.near_misses.checking import assert_read_right, assert_run_right


@pytest.mark.parametrize("name", PATTERNS)
def test_near_misses_are_read_as_the_oracle_reads_them(name: str) -> None:
    assert_read_right(PATTERNS[name])


@pytest.mark.parametrize("name", PATTERNS)
def test_near_misses_run_as_the_oracle_says(runtime: Runtime, name: str) -> None:
    assert_run_right(runtime, PATTERNS[name], fused=1, apart=0)  # kernels of attention take seconds to compile
