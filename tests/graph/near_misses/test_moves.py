"""Moves and pointwise operations: near misses, recognised or not, agree with the oracle."""

from __future__ import annotations

import pytest

from lowdnn.runtime.runtime import Runtime
from tests.support.near_misses.checking import assert_read_right, assert_run_right, wrong_runs
from tests.support.near_misses.moves import PATTERNS


@pytest.mark.parametrize("name", PATTERNS)
def test_near_misses_are_read_as_the_oracle_reads_them(name: str) -> None:
    assert_read_right(PATTERNS[name])


@pytest.mark.parametrize("name", PATTERNS)
def test_near_misses_run_as_the_oracle_says(runtime: Runtime, name: str) -> None:
    assert_run_right(runtime, PATTERNS[name])


@pytest.mark.parametrize("seed", [373, 573])
def test_packed_tensors_that_are_read_whole_too(runtime: Runtime, seed: int) -> None:
    """Both seeds draw a second reader, which reads rows that no sequence has."""
    assert wrong_runs(runtime, PATTERNS["packed_rows"], seed, {True: 12, False: 4}) == []
