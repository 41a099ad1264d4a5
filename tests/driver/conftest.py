from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowdnn.driver.base import DeviceAttribute, Driver
from lowdnn.driver.emulated.driver import EmulatedDriver
from tests.driver.board import Board, opened
from tests.support.data import fresh_seed


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fresh seed; pytest shows the line below when the test fails."""
    seed = fresh_seed()
    print(f"seed = {seed}")  # noqa: T201
    return np.random.default_rng(seed)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    """A fresh emulated device of compute capability 9.0; with ``-m gpu``, the GPU, where it is one."""
    yield from _board(request, checks=True)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def unchecked_board(request: pytest.FixtureRequest) -> Iterator[Board]:
    """Like ``board``; an emulated device does not look for reads of unwritten bytes."""
    yield from _board(request, checks=False)


def _board(request: pytest.FixtureRequest, checks: bool) -> Iterator[Board]:
    is_gpu = request.param == "cuda"
    driver: Driver = request.getfixturevalue("cuda_driver") if is_gpu else EmulatedDriver(checks=checks)
    driver.init()
    if not driver.device_attribute(0, DeviceAttribute.CLUSTER_LAUNCH):
        pytest.skip("the GPU has no clusters")
    with opened(driver) as board:
        yield board
