"""The device that the instruction tests run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.driver.emulated.instructions.lane_program import Lanes, opened


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def lanes(request: pytest.FixtureRequest) -> Iterator[Lanes]:
    """Lanes of the emulated device; with ``-m gpu``, of the GPU: what the tests expect is what hardware does."""
    with opened(request.param) as lanes:
        yield lanes


@pytest.fixture
def emulated_lanes() -> Iterator[Lanes]:
    """Lanes of the emulated device, for what PTX leaves open and the emulated device defines."""
    with opened("emulated") as lanes:
        yield lanes
