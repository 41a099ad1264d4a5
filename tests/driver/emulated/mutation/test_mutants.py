"""Every test kernel with one thing forgotten or slightly wrong is reported."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.cli.sanitizing import schedules
from lowdnn.driver.emulated.faults import FaultKind
from tests.driver.emulated.mutation.mutants import Mutant, mutants, possible_mutants
from tests.driver.emulated.mutation.programs import PROGRAMS, Program
from tests.driver.emulated.mutation.running import run

TABLE = mutants()
WRONG = [mutant for mutant in TABLE if not mutant.is_equivalent]
EARLY_ENDS = [mutant for mutant in WRONG if mutant.kinds == {FaultKind.USE_AFTER_FREE.text}]
EQUIVALENT = [mutant for mutant in TABLE if mutant.is_equivalent]


@pytest.mark.parametrize("mutant", WRONG, ids=str)
def test_the_mutant_is_reported(rng: np.random.Generator, mutant: Mutant) -> None:
    seen = []
    for schedule in schedules(int(rng.integers(1 << 31)), fuzzed=4):
        try:
            fault = run(mutant.program, mutant.ptx(), schedule, rng, mutant.change)
        except AssertionError:
            seen.append(f"{schedule}: a wrong result without a report")
            continue
        if fault is not None and fault.kind.text in mutant.kinds:
            return
        seen.append(f"{schedule}: {fault or 'nothing'}")
    pytest.fail(f"{mutant}: no report of the expected kind\n" + "\n".join(seen))


@pytest.mark.parametrize("mutant", EARLY_ENDS, ids=str)
@pytest.mark.parametrize("landing", ["late", "early"])
def test_a_block_that_ends_too_early_is_reported_in_any_order(
    rng: np.random.Generator, mutant: Mutant, landing: str
) -> None:
    fault = run(mutant.program, mutant.ptx(), f"lockstep,{landing},races", rng, mutant.change)
    assert fault is not None
    assert fault.kind is FaultKind.USE_AFTER_FREE


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=str)
def test_the_equivalent_mutant_is_clean(rng: np.random.Generator, mutant: Mutant) -> None:
    for schedule in schedules(int(rng.integers(1 << 31)), fuzzed=4):
        fault = run(mutant.program, mutant.ptx(), schedule, rng, mutant.change)
        assert fault is None, f"{schedule}: {fault}"


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=str)
def test_the_table_has_every_edit_of_every_site(program: Program) -> None:
    assert possible_mutants(program) <= {mutant.key for mutant in TABLE}


def test_the_table_lists_no_mutant_twice() -> None:
    keys = [mutant.key for mutant in TABLE]
    assert len(set(keys)) == len(keys)


def test_the_table_names_kinds_that_there_are() -> None:
    assert set().union(*(mutant.kinds for mutant in TABLE)) <= {kind.text for kind in FaultKind}
