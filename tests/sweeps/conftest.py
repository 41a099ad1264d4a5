"""Handles that the sweeps of random cases share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowdnn.backend.handle import Handle


@pytest.fixture
def emulated() -> Iterator[Handle]:
    """A fresh one for each test: a context in which a kernel has faulted is of no more use."""
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        yield handle


@pytest.fixture(scope="module")
def cuda() -> Iterator[Handle]:
    with Handle.open("cuda") as handle:
        yield handle
