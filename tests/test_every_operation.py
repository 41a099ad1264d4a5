"""Every operation with each of its extents 0, and with each of its outputs virtual and read by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.driver import open_driver
from lowdnn.enums import TensorReordering
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import outputs_of, with_tensors
from lowdnn.ops.catalog import compounds, operations
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.random_graphs.checking import planned, problem_of
from tests.support.random_graphs.growth import Grown, Growth
from tests.support.random_graphs.steps import ALONE, STEPS, grow
from tests.support.runtime import open_runtime


@pytest.fixture(scope="module")
def runtime(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated"), kernel_cache_dir) as opened:
        yield opened


def test_every_operation_has_a_step() -> None:
    rng = np.random.default_rng(0)
    grown: set[type] = set()
    for name, (step, _, _) in STEPS.items():
        growth = Growth(rng)
        while not growth.operations or (name == "rope" and len(growth.operations) < 20):
            grow(growth, step)
        grown |= {type(operation) for operation in growth.operations}
    assert grown == {*operations(), *compounds()} - {*ALONE}


@pytest.mark.parametrize("name", STEPS)
def test_extents_of_0(runtime: Runtime, name: str) -> None:
    seed = fresh_seed()
    for extent in _extents(name, seed):
        growth = Growth(np.random.default_rng(seed), zero=extent)
        if not grow(growth, STEPS[name][0]):
            _check(runtime, growth.grown(), f"seed {seed}, {extent} = 0")


@pytest.mark.parametrize("name", STEPS)
def test_outputs_that_nobody_reads(runtime: Runtime, name: str) -> None:
    growth = Growth(np.random.default_rng(seed := fresh_seed()))
    if grow(growth, STEPS[name][0]):
        return
    *others, last = growth.operations
    outputs = outputs_of(last)
    run = growth.choose(tuple(outputs))
    for port in outputs if len(outputs) > 1 else ():
        if outputs[port].reordering is not TensorReordering.NONE:
            continue  # a reordered tensor lies in memory, and its padded extents have no other order
        unread = replace(outputs[port], is_virtual=True)
        tensors = {t.uid: replace(t, is_virtual=False) for t in outputs.values()} | {unread.uid: unread}
        graph = OperationGraph(expanded([*others, with_tensors(last, tensors)]))
        _check(runtime, replace(growth.grown(), graph=graph), f"seed {seed}, {port} unread", is_run=port == run)


def _extents(name: str, seed: int) -> list[str]:
    growth = Growth(np.random.default_rng(seed))
    grow(growth, STEPS[name][0])
    return list(dict.fromkeys(growth.extents))


def _check(runtime: Runtime, grown: Grown, context: str, *, is_run: bool = True) -> None:
    """Plans the graph for both generations, and compares the results of the first one."""
    plans = [planned(grown, arch) for arch in (SM_90A, SM_80)]
    problem = problem_of(runtime, grown, plans[0]) if is_run else ""
    assert not problem, f"{context}: {problem}"
