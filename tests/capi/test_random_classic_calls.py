"""Random calls through C: each function with random operands, then with one argument spoiled."""

from __future__ import annotations

from collections import Counter

import pytest

from lowdnn.runtime.runtime import Runtime
from tests.support.capi import Caller
from tests.support.random_calls import FAMILIES, random_call
from tests.support.random_calls.running import Machine
from tests.support.random_calls.spoiling import spoils_of
from tools.checks.random_calls import problems_of


@pytest.mark.parametrize("seed", range(len(FAMILIES)), ids=lambda seed: FAMILIES[seed].__name__)
def test_a_random_call(caller: Caller, device: Runtime, seed: int) -> None:
    """The result is that of the reference, and everything that can be wrong with an argument is refused."""
    machine = Machine(caller, device)
    every = len(spoils_of(random_call(seed)[1]))
    assert every > 5
    assert problems_of(machine, seed, every, Counter()) == []


def test_findings_are_told(caller: Caller, device: Runtime) -> None:
    machine = Machine(caller, device)
    _, call = random_call(0)
    call.expected = {port: values + 1 for port, values in call.expected.items()}
    assert "expected" in machine.problem(call)
    call.expected = {}
    assert machine.problem(call).endswith("was written")
