"""Fixtures of the sweeps."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def any_kernel(real_compiler: None) -> None:
    """Drawn shapes may pick a kernel that spills: slower, not wrong. The engines' tests hold those that must not."""
