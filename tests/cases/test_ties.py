"""Integers next to a tie: the fp32 arithmetic before their rounding may lead to either side of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.compare import EXACT, differences, expected_outputs
from lowdnn.cases.oracle import steps
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import pointwise_graph
from tests.support.data import fresh_seed
from tests.support.running import check_outputs, run_plan

#: Integer sums, times a factor and plus a bias in fp32, rounded to an integer.
CASE = parse_case("conv n=1 c=32 hw=12x12 k=32 rs=3x3 pad=1 dtype=int8 epilogue=scale+bias")
#: Data of which one value rounds to another integer where product and sum are rounded once.
SEED_OF_A_TIE = 53


def at_most(seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """The expected integers, the values before rounding, and the steps that the integers may differ."""
    graph, inputs = CASE.graph(), CASE.inputs(seed, exact=False)
    (wanted,) = expected_outputs(graph, inputs, (), CASE.length).values()
    assert wanted.allowed.steps is not None
    return wanted.values, steps(graph, inputs)[-1][1], wanted.allowed.steps


def test_one_rounding_instead_of_two_passes(device: Runtime) -> None:
    graph, inputs = CASE.graph(), CASE.inputs(SEED_OF_A_TIE, exact=False)
    plan = engine_named("conv_direct").plan(graph, SM_90A, {})
    (found,), (wanted,) = (
        run_plan(device, plan, graph, inputs).values(),
        expected_outputs(graph, inputs, (), 1).values(),
    )
    assert "1 of " in differences(found, wanted.values, DataType.INT32, EXACT)
    check_outputs(device, plan, graph, inputs, CASE.length)


def test_steps_are_where_a_tie_is_near() -> None:
    seed = fresh_seed()
    wanted, values, allowed = at_most(seed)
    distances = np.abs(np.abs(values - wanted) - 0.5)
    assert {*np.unique(allowed)} <= {0.0, 1.0}, f"seed {seed}"
    assert float(distances[allowed > 0].max(initial=0.0)) < 1e-5 * np.abs(values).max(), f"seed {seed}"
    assert not (allowed[distances < 2.0**-24 * np.abs(values)] == 0).any(), f"seed {seed}"
    assert float(np.mean(allowed)) < 0.02, f"seed {seed}"


@pytest.mark.parametrize("wrong", [np.floor, np.ceil, np.trunc, lambda values: np.rint(values) + 1])
def test_a_wrong_rounding_is_found(wrong: Any) -> None:
    seed = fresh_seed()
    graph, inputs = CASE.graph(), CASE.inputs(seed, exact=False)
    (expected,) = expected_outputs(graph, inputs, (), CASE.length).values()
    found = wrong(steps(graph, inputs)[-1][1]).astype(np.int32)
    report = differences(found, expected.values, DataType.INT32, expected.allowed)
    assert int(report.split(" of ", maxsplit=1)[0]) > found.size // 4, f"seed {seed}"


def test_large_integers_differ_by_what_fp32_has_no_bits_for() -> None:
    """The share of 2**27 that a value of fp32 may be off is many integers."""
    case = parse_case("conv n=1 c=1 hw=1x1 k=1 rs=1x1 dtype=int8 epilogue=scale")
    graph = case.graph()
    x, w, factor = graph.inputs
    arrays = {x.uid: np.full(x.dims, 2, np.int8), w.uid: np.full(w.dims, 64, np.int8)}
    inputs = arrays | {factor.uid: np.full(factor.dims, 2.0**20, np.float32)}
    (expected,) = expected_outputs(graph, inputs, (), case.length).values()
    assert expected.allowed.steps is not None
    assert expected.values.item() == 2**27
    assert expected.allowed.steps.item() == round(1.3e-6 * 2**27)


def test_values_that_cancel_out_have_the_errors_of_their_parts() -> None:
    """A half is left of a product of 2**22 and a bias."""
    case = parse_case("conv n=1 c=1 hw=1x1 k=1 rs=1x1 dtype=int8 epilogue=scale+bias")
    graph = case.graph()
    numbers = (2, 64, 2.0**15, 0.5 - 2.0**22)
    types = (np.int8, np.int8, np.float32, np.float32)
    inputs = {t.uid: np.full(t.dims, x, kind) for t, x, kind in zip(graph.inputs, numbers, types, strict=True)}
    (expected,) = expected_outputs(graph, inputs, (), case.length).values()
    assert expected.allowed.steps is not None
    assert expected.values.item() == 0
    assert expected.allowed.steps.item() == round(1.3e-6 * 2**22 + 0.5)


def test_pointwise_graphs_keep_their_tolerance() -> None:
    graph = pointwise_graph(PointwiseMode.ADD, (3,), store=DataType.INT8)
    values = np.array([1.25, 2.5, 3.0], np.float32)
    (expected,) = expected_outputs(graph, {1: values, 2: values}, (), 1).values()
    assert expected.allowed.absolute == 1
    assert expected.allowed.steps is None
