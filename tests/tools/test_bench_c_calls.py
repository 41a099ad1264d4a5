"""The calls from C whose host time is measured succeed, each with a time."""

from __future__ import annotations

import shutil

import pytest

from lowdnn.runtime.runtime import Runtime
from tools.bench.c_calls import CALLS, cycles_on


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_every_call_of_the_cycle_succeeds(device: Runtime) -> None:
    with cycles_on(device.driver, executes=True) as cycles:
        times_us = cycles(3)
    assert times_us.shape == (3, len(CALLS))
    assert (times_us > 0).all()
