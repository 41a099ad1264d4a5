"""Fixtures of the engines' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from tests.support.running import ORDER_AND_RACES, POLICIES
from tests.support.runtime import open_runtime


@pytest.fixture(params=POLICIES)
def scheduled(request: pytest.FixtureRequest, kernel_cache_dir: Path) -> Iterator[Runtime]:
    """A fresh emulated device under each scheduling policy."""
    with open_runtime(open_driver("emulated", policy=request.param), kernel_cache_dir) as runtime:
        yield runtime


@pytest.fixture(params=ORDER_AND_RACES)
def checked(request: pytest.FixtureRequest, kernel_cache_dir: Path) -> Iterator[Runtime]:
    """A device in lock-step, and one that looks for races while it mixes up the order of everything."""
    with open_runtime(open_driver("emulated", policy=request.param), kernel_cache_dir) as runtime:
        yield runtime
