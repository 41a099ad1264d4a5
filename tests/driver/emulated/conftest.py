"""What the tests of the emulated device share: a fresh printed seed."""

from __future__ import annotations

import secrets

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fresh seed; pytest shows the line below when the test fails."""
    seed = secrets.randbits(32)
    print(f"seed = {seed}")  # noqa: T201
    return np.random.default_rng(seed)
