"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver
from lowdnn.runtime.runtime import Runtime
from tests.support.runtime import open_runtime


@pytest.fixture(scope="session")
def kernel_cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels are kept during one run of the tests."""
    return tmp_path_factory.mktemp("kernel-cache")


@pytest.fixture(scope="session")
def cuda_driver() -> Iterator[Driver]:
    """The real driver, with the primary context held so that each test need not make one."""
    driver = open_driver("cuda")
    driver.primary_context_retain(0)
    yield driver
    driver.primary_context_release(0)


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, kernel_cache_dir: Path) -> Iterator[Runtime]:
    """A runtime on a fresh emulated device; with ``-m gpu``, on the GPU."""
    driver = request.getfixturevalue("cuda_driver") if request.param == "cuda" else open_driver("emulated")
    with open_runtime(driver, kernel_cache_dir) as runtime:
        yield runtime
