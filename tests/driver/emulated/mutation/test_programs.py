"""The test kernels are right and clean under every schedule, and on a GPU, as they stand."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.cli.sanitizing import schedules
from lowdnn.driver.base import DeviceAttribute, Driver
from tests.driver.emulated.mutation.device import Device
from tests.driver.emulated.mutation.programs import PROGRAMS, Program
from tests.driver.emulated.mutation.running import run


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=str)
def test_the_kernel_is_clean_under_every_schedule(rng: np.random.Generator, program: Program) -> None:
    for schedule in schedules(int(rng.integers(1 << 31)), fuzzed=20):
        fault = run(program, program.ptx(), schedule, rng)
        assert fault is None, f"{schedule}: {fault}"


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=str)
def test_a_gpu_runs_the_kernel(cuda_driver: Driver, rng: np.random.Generator, program: Program) -> None:
    if cuda_driver.device_attribute(0, DeviceAttribute.COMPUTE_CAPABILITY_MAJOR) != 9:
        pytest.skip("the kernels are for compute capability 9.0")
    for _ in range(20):
        program.check(Device(cuda_driver, program.ptx()), rng)
