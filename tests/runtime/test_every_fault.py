"""Each call of the driver fails in its turn: the error says which, the next call works, and nothing is left behind."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from lowdnn.driver.base import Driver, DriverError
from lowdnn.driver.cuda import CudaDriver
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.fault_injection import CALLS, RELEASES, with_faults
from lowdnn.driver.results import CuResult
from lowdnn.runtime.sources import SourceTree
from lowdnn.status import LowdnnError, Status
from tests.support.data import fresh_seed
from tests.support.runtime import scale_sources
from tests.support.whole_program import PEER_CALLS, CountingDriver, WholeProgram

RESULTS = (CuResult.OUT_OF_MEMORY, CuResult.LAUNCH_FAILED, CuResult.NOT_PERMITTED)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    return scale_sources(tmp_path_factory.mktemp("engines"))


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module")
def make_driver(request: pytest.FixtureRequest) -> Callable[[], Driver]:
    return partial(EmulatedDriver, devices=2) if request.param == "emulated" else CudaDriver


@pytest.fixture(scope="module")
def counts(make_driver: Callable[[], Driver], kernel_cache_dir: Path, sources: SourceTree) -> Counter[str]:
    """How often a program without faults makes each call, from init to close."""
    driver = CountingDriver(make_driver())
    program = WholeProgram(cast(Driver, driver), kernel_cache_dir, sources)
    assert program.run(*program.steps) == []
    program.close()
    return driver.counts


def held(driver: Driver, device: int = 0) -> dict[str, int]:
    """Counts the objects that a program holds on an emulated device."""
    state = cast(EmulatedDriver, driver)._context.state(device)
    if state is None:
        return {}
    tables = ("streams", "events", "modules", "functions", "graphs", "executables", "captures")
    found = {name: len(getattr(state, name)) for name in tables}
    return found | {"memory_bytes": state.memory.live_bytes}


def test_the_program_makes_every_call(counts: Counter[str], make_driver: Callable[[], Driver]) -> None:
    """On a GPU, making a context current may be missing, since another test may hold the context current, and so may
    calls that take a second device or another process."""
    missing = set(CALLS) - set(counts)
    assert not set(counts) - set(CALLS)
    assert missing <= ({"context_set_current", *PEER_CALLS} if make_driver is CudaDriver else set())


@pytest.mark.parametrize("call", CALLS)
def test_a_fault_of(
    call: str, make_driver: Callable[[], Driver], counts: Counter[str], kernel_cache_dir: Path, sources: SourceTree
) -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    clean = WholeProgram(make_driver(), kernel_cache_dir, sources)
    clean.run(*clean.steps)
    gc.collect()
    expected = held(clean.driver) if clean.driver.kind == "emulated" else None
    clean.close()
    for number in range(1, counts[call] + 1):
        result = rng.choice(RESULTS)
        driver = make_driver()
        program = WholeProgram(with_faults(driver, f"{call}:{number}={result.name}"), kernel_cache_dir, sources)
        where = f"seed {seed}: {call}:{number}={result.name}"
        # The last copy gives back what could not be given back before it.
        failures = program.run(*program.steps, program.copy)
        check_failures(failures, call, result, where)
        del failures
        gc.collect()
        assert expected is None or held(driver) == expected, where
        program.close()
        assert expected is None or held(driver) == held(driver, 1) == {}, where


def check_failures(failures: list[LowdnnError], call: str, result: CuResult, where: str) -> None:
    """Calls that give something back, and calls within ``close``, may log a failure instead of raising it."""
    assert len(failures) <= 1, where
    if not failures:
        assert call in RELEASES | {"context_get_current", "context_set_current"}, f"{where}: nobody was told"
        return
    error = failures[0]
    cause = error if isinstance(error, DriverError) else error.__cause__
    assert isinstance(cause, DriverError), where
    assert (cause.call, cause.name, cause.result) == (CALLS[call], result.c_name, int(result)), where
    assert f"injected into {call}" in str(error), where
    is_memory = result is CuResult.OUT_OF_MEMORY
    assert isinstance(error, MemoryError) is is_memory, where
    wanted = Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED if is_memory else Status.EXECUTION_FAILED_CUDA_DRIVER
    assert error.status is wanted, where
