"""The calls from C whose host time is measured succeed, each with a time."""

from __future__ import annotations

import shutil

import pytest

from lowdnn.capi.state import State
from lowdnn.runtime.runtime import Runtime
from tools.bench import classic_calls
from tools.bench.c_calls import CALLS, cycles_on

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def test_every_call_of_the_cycle_succeeds(device: Runtime) -> None:
    with cycles_on(State(device.driver), executes=True) as cycles:
        times_us = cycles(3)
    assert times_us.shape == (3, len(CALLS))
    assert (times_us > 0).all()


def test_a_thread_of_c_keeps_its_state_between_calls(device: Runtime) -> None:
    state = State(device.driver)
    with cycles_on(state, executes=False, in_thread=True) as cycles:
        for _ in range(2):
            cycles(3)
    assert state.threads.calling.number == 0
    state.threads.keep()
    assert state.threads.calling.number == 3


def test_every_classic_call_succeeds(device: Runtime) -> None:
    with classic_calls.cycles_on(State(device.driver)) as cycles:
        for call in classic_calls.CALLS:
            times_us = cycles(call, 2)
            assert times_us.shape == (2, len(classic_calls.PARTS))
            assert (times_us > 0).all()
