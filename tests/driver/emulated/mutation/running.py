"""Runs a test kernel on the emulated device under one schedule, and tells what came of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowdnn.driver.base import DriverError, LaunchConfig
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.driver.emulated.faults import EmulationFault
from lowdnn.driver.emulated.options import Options
from tests.driver.emulated.mutation.device import Device
from tests.driver.emulated.mutation.programs import Program

#: Seconds after which a launch counts as hung; a clean one takes a fraction of one.
_TIMEOUT_S = 30.0


def run(
    program: Program,
    ptx: str,
    schedule: str,
    rng: np.random.Generator,
    change: Callable[[LaunchConfig], LaunchConfig] = lambda config: config,
) -> EmulationFault | None:
    """The fault that stopped ``ptx``, if any. Raises AssertionError for a wrong result without a fault."""
    options = Options.parse(schedule)
    driver = EmulatedDriver(policy=options.policy, landing=options.landing, races=options.races, timeout_s=_TIMEOUT_S)
    try:
        program.check(Device(driver, ptx, change), rng)
    except DriverError as error:
        if not isinstance(error.__cause__, EmulationFault):
            raise
        return error.__cause__
    return None
