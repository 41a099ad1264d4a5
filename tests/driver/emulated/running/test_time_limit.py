"""Launches that never end: progress, and the ways to set the limit."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from lowdnn.driver import open_driver
from lowdnn.driver.base import Driver, DriverError, LaunchConfig
from lowdnn.driver.emulated.options import Options
from lowdnn.driver.emulated.running.time_limit import TimeLimit
from lowdnn.driver.nvrtc import compile_program
from lowdnn.status import BadParamError

LOCAL = "volatile int k = 1; while (k) {}"
LOCK = "while (atomicCAS(x, 0, 1)) {}"


def launch(body: str, policy: str, threads: int = 32) -> None:
    """Runs ``body`` as a kernel over 64 integers x, all 1."""
    source = f'extern "C" __global__ void k(int* x) {{ {body} }}'
    ptx = compile_program(source, name="k.cu", headers={}, options=("--gpu-architecture=compute_80",)).image
    driver: Driver = open_driver("emulated", arch="sm_80", policy=policy)
    driver.context_set_current(driver.primary_context_retain(0))
    x, ones = driver.mem_alloc(256), np.ones(64, np.int32)
    driver.memcpy_htod_async(x, ones.ctypes.data, 256, 0)
    function = driver.module_get_function(driver.module_load_data(ptx), "k")
    value = ctypes.c_uint64(x)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    config = LaunchConfig((1, 1, 1), (threads, 1, 1))
    driver.prepare_launch(function, config, ctypes.addressof(parameters))(0)


@pytest.mark.parametrize("policy", ["lockstep", "warp-serial(3)", "fuzz(3),races"])
def test_a_loop_without_progress_ends_at_the_callers_limit(policy: str) -> None:
    start = time.thread_time()
    with pytest.raises(DriverError, match=r"timeout: .*: no thread stored.* for 0\.5 s") as caught:
        launch(LOCAL, f"{policy},timeout=0.5")
    assert 0.5 <= time.thread_time() - start < 5
    assert caught.value.name == "CUDA_ERROR_LAUNCH_TIMEOUT"
    assert "PTX line" in caught.value.explanation


def test_a_lock_that_nobody_gives_back_is_a_deadlock() -> None:
    start = time.thread_time()
    with pytest.raises(DriverError, match="deadlock"):
        launch(LOCK, "lockstep")
    assert time.thread_time() - start < 5


def test_stores_are_progress_up_to_a_bound() -> None:
    slow = "for (int n = 0; n < 100000; n++) { x[threadIdx.x] += n; __threadfence(); }"
    start = time.thread_time()
    launch(slow, "lockstep,timeout=0.1")
    assert time.thread_time() - start > 0.1, "too short a loop to tell"
    with pytest.raises(DriverError, match=r"it took 1\.5 s"):
        launch("while (1) { x[threadIdx.x]++; __threadfence(); }", "lockstep,timeout=0.1")


def test_time_that_the_process_does_not_get_does_not_count() -> None:
    limit = TimeLimit(0.05)
    assert limit.problem(1) == ""
    time.sleep(0.2)
    assert limit.problem(1) == ""


def test_the_limit_in_the_text_of_a_policy() -> None:
    assert Options().timeout_s == 20
    assert Options.parse("fuzz(7),early,races,timeout=2.5").timeout_s == 2.5
    for text in ("lockstep,timeout=", "lockstep,timeout=-1", "lockstep,timeout=1e3", "lockstep,timeout=0"):
        with pytest.raises(BadParamError):
            Options.parse(text)
