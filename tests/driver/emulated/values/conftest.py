"""Fixtures of tests of value functions: NumPy's error state of the emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _defined_overflow() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
