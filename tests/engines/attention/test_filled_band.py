"""Bands of masks whose fill is given at execute: they hold where it is minus infinity, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.attention.filled_band import filled_band
from lowdnn.engines.base import Engine
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_gradient_pattern import with_attention_gradients
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.plan import Argument, Plan, Struct, ValueCase
from lowdnn.runtime.runtime import Runtime
from tests.support.near_misses.attention_gradients import PATTERNS
from tests.support.near_misses.drawing import exact
from tests.support.near_misses.pattern import Array, Pattern, Sketch
from tests.support.running import run_plan
from tests.support.runtime import open_runtime

ENGINE = AttentionBackwardMma()


@pytest.fixture(scope="module")
def runtime(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated"), kernel_cache_dir) as opened:
        yield opened


def operation_of(name: str) -> SdpaBackward:
    graph = OperationGraph(with_attention_gradients(PATTERNS[name].pattern.operations))
    (operation,) = (op for op in graph.operations if isinstance(op, SdpaBackward))
    return operation


def cases(argument: Argument) -> list[ValueCase]:
    if isinstance(argument, Struct):
        return [found for field in argument.fields for found in cases(field)]
    return [argument] if isinstance(argument, ValueCase) else []


def check(runtime: Runtime, plan: Plan, graph: OperationGraph, inputs: dict[int, Array]) -> None:
    actual = run_plan(runtime, plan, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        wanted, got = (dtypes.to_values(array, graph.tensors[uid].data_type) for array in (expected, actual[uid]))
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(got), finite)
        scale = np.sqrt(np.mean(np.square(wanted[finite], dtype=float))) if finite.any() else 1.0
        np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=1e-2 * scale)


@pytest.mark.parametrize("fill", [-inf, -2.5, inf])
@pytest.mark.parametrize("name", ["causal", "causal_with_lengths"])
def test_any_fill(runtime: Runtime, name: str, fill: float) -> None:
    """One plan serves all. Infinity gives what is outside all weight, and results that are not finite."""
    pattern = PATTERNS[name].pattern
    raw = OperationGraph(pattern.operations)
    graph = OperationGraph(with_attention_gradients(pattern.operations))
    (given,) = (tensor for tensor in raw.inputs if tensor.name == "fill")
    values = {**pattern.values, given.uid: np.full((1, 1, 1, 1), fill)}
    drawn = exact(replace(pattern, values=values), np.random.default_rng(5)).inputs
    inputs = {
        tensor.uid: drawn[tensor.uid] if drawn[tensor.uid].shape == tensor.dims else drawn[tensor.uid].swapaxes(-1, -2)
        for tensor in graph.inputs
        if tensor.uid in drawn
    }
    plan = ENGINE.plan(graph, SM_90A, {})
    found = [case for launch in plan.launches for argument in launch.arguments for case in cases(argument)]
    assert {(case.uid, case.value) for case in found} == {(given.uid, -inf)}
    assert {case.then for case in found} >= {0}
    check(runtime, plan, graph, inputs)


@pytest.mark.parametrize("engine", [AttentionWgmma(), AttentionMma()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("fill", [-inf, 0.75])
def test_forward(runtime: Runtime, engine: Engine, fill: float) -> None:
    """Several tiles of keys, of which the first queries see one where the fill is minus infinity."""
    sketch = Sketch()
    q, k, v = (
        sketch.tensor((1, 2, rows, 16), DataType.HALF, name=name) for name, rows in (("q", 70), ("k", 300), ("v", 300))
    )
    scores = sketch.pointwise(
        PointwiseMode.MUL, sketch.matmul(q, sketch.transpose(k, (0, 1, 3, 2))), sketch.constant(4, DataType.FLOAT, 0.25)
    )
    row, column = (
        sketch.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=axis), scores) for axis in (2, 3)
    )
    seen = sketch.pointwise(PointwiseMode.CMP_GE, row, column, compute_type=DataType.INT32, virtual=DataType.BOOLEAN)
    masked = sketch.pointwise(PointwiseMode.BINARY_SELECT, scores, sketch.value(fill, name="fill"), seen)
    y = sketch.softmax(masked, (3,), statistics=DataType.FLOAT, names=("stats",))
    weights = sketch.pointwise(PointwiseMode.IDENTITY, y, virtual=DataType.HALF)
    sketch.matmul(weights, v, store=DataType.HALF)
    pattern = Pattern("forward", sketch.operations, sketch.values)
    graph = OperationGraph(pattern.operations)
    inputs = exact(pattern, np.random.default_rng(5)).inputs
    plan = engine.plan(graph, SM_90A, {})
    found = [case for launch in plan.launches for argument in launch.arguments for case in cases(argument)]
    assert [(case.then, case.otherwise > 2**20) for case in found][-1] == (0, True)
    check(runtime, plan, graph, inputs)


def test_which_bands() -> None:
    band = filled_band(operation_of("causal"))
    assert band is not None
    assert (band.left, band.right, band.is_bottom_right, band.fill.name) == (None, 0, False, "fill")
    assert filled_band(operation_of("biased")) is None
    assert filled_band(replace(operation_of("causal"), right=3)) is None
