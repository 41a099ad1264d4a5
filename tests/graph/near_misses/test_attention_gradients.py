"""Gradients of attention as products: near misses, taken for one operation or not, agree with the oracle."""

from __future__ import annotations

import pytest

from lowdnn.runtime.runtime import Runtime
from tests.support.near_misses.attention_gradients import PATTERNS
from tests.support.near_misses.checking import assert_read_right, assert_run_right

#: Near misses that are read of one pattern, which has up to 6,000.
_READ = 150


@pytest.mark.parametrize("name", PATTERNS)
def test_near_misses_are_read_as_the_oracle_reads_them(name: str) -> None:
    assert_read_right(PATTERNS[name], most=_READ)


@pytest.mark.parametrize("name", ["shared_keys", "dropout"])
def test_near_misses_run_as_the_oracle_says(runtime: Runtime, name: str) -> None:
    assert_run_right(runtime, PATTERNS[name], fused=0, apart=1)
