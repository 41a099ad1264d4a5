"""What every value-function test shares: NumPy's error state of the emulated device, and a fresh printed seed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _defined_overflow() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fresh seed; pytest shows the line below when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed = {seed}")  # noqa: T201
    return np.random.default_rng(seed)
