"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from lowdnn.backend.handle import Handle
from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver
from lowdnn.runtime.runtime import Runtime
from tests.support.guarded import GuardedDriver
from tests.support.lost_context import fault_of_gpu
from tests.support.runtime import open_runtime
from tests.support.shards import shard

#: New containers, and collections of the younger generation, before the garbage collector looks at one: Python's own
#: 700, 10 and 10 cost a twelfth of the tests' time, in which kernels become millions of objects that stay.
_GC_THRESHOLDS = (50_000, 20, 20)

#: The message that tests on the GPU fail with once one has lost its context.
_LOST = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shard", type=shard, default=(1, 1), metavar="I/N", help="only the I-th of N parts of about equal length"
    )
    parser.addoption("--endurance", action="store_true", help="tests of many cycles run all of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which part a test belongs to follows from its name, so that each is in one part, whatever else is selected."""
    number, count = config.getoption("shard")
    others = [item for item in items if crc32(item.nodeid.encode()) % count != number - 1]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if crc32(item.nodeid.encode()) % count == number - 1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps which test has lost the GPU's context."""
    report = yield
    if report.failed and _LOST not in item.config.stash and _is_on_gpu(item) and (fault := fault_of_gpu()):
        item.config.stash[_LOST] = f"not run: {fault} in {item.nodeid} has taken the GPU's context"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A process cannot have another context: what is left of its tests on the GPU fails in a line."""
    if _LOST in item.config.stash and _is_on_gpu(item):
        pytest.fail(item.config.stash[_LOST], pytrace=False)


def pytest_collection_finish() -> None:
    """Thousands of tests live to the end."""
    gc.set_threshold(*_GC_THRESHOLDS)
    _keep_what_lives()


@pytest.fixture(scope="module", autouse=True)
def kept_modules() -> Iterator[None]:
    """The emulated device keeps what it has made of kernels: hundreds of thousands of objects."""
    yield
    _keep_what_lives()


@pytest.fixture(scope="session", autouse=True)
def kernel_cache_dir(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Path]:
    """Where one run of the tests keeps compiled kernels: shared by its workers, apart from the user's own.

    No test finds tuning records but its own and the package's.

    LOWDNN_TEST_KERNELS names a folder where some are there already.
    """
    base = tmp_path_factory.getbasetemp()
    is_worker = hasattr(pytestconfig, "workerinput")  # pytest-xdist, where it is there, sets it
    own = (base.parent if is_worker else base) / "kernel-cache"
    directory = Path(os.environ.get("LOWDNN_TEST_KERNELS", own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWDNN_CACHE_DIR", str(directory))
        patch.setenv("XDG_DATA_HOME", str(base / "data"))
        patch.setenv("LOWDNN_TUNING_PATH", str(base / "data/lowdnn/tuning"))
        yield directory


@pytest.fixture(scope="session")
def cuda_driver() -> Iterator[Driver]:
    """The real driver, with the primary context held so that each test need not make one."""
    driver = open_driver("cuda")
    driver.primary_context_retain(0)
    yield driver
    driver.primary_context_release(0)


@pytest.fixture
def racing(kernel_cache_dir: Path) -> Iterator[Runtime]:
    """An emulated device that lets copies land early, runs warps in random order and looks for races."""
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, kernel_cache_dir: Path) -> Iterator[Runtime]:
    """A runtime on a fresh emulated device; with ``-m gpu``, on the GPU."""
    driver = request.getfixturevalue("cuda_driver") if request.param == "cuda" else open_driver("emulated")
    with open_runtime(driver, kernel_cache_dir) as runtime:
        yield runtime


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def guarded(request: pytest.FixtureRequest, kernel_cache_dir: Path) -> Iterator[Runtime]:
    """As ``device``, but on a GPU, too, an access behind the last byte of an allocation is an error."""
    if request.param == "cuda":
        driver = cast(Driver, GuardedDriver(request.getfixturevalue("cuda_driver")))
    else:
        driver = open_driver("emulated")
    with open_runtime(driver, kernel_cache_dir) as runtime:
        yield runtime


@pytest.fixture
def handle(device: Runtime) -> Iterator[Handle]:
    """A handle on the device of the test."""
    with Handle(device) as opened:
        yield opened


def _is_on_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None


def _keep_what_lives() -> None:
    """The garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
