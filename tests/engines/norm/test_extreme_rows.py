"""Norms with rows whose squares FLOAT cannot hold: y is the same as for rows of ordinary size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.base import Engine
from lowdnn.engines.norm.batch_norm import BatchNorm
from lowdnn.engines.norm.norm_rows import NormRows
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import run_plan

#: Threads of a row: 32 with two groups each, 8, two blocks of a cluster, or four of a grid; the last two use a ring.
BLOCK = {KnobType.THREADS_PER_ROW: 32, KnobType.MULTIPLY: 2, KnobType.TILE_CGA_M: 1}
NARROW = BLOCK | {KnobType.THREADS_PER_ROW: 8}
CLUSTER = BLOCK | {KnobType.TILE_CGA_M: 2}
GRID = {KnobType.THREADS_PER_ROW: 8, KnobType.MULTIPLY: 1, KnobType.TILE_CGA_M: 1, KnobType.CTA_COUNT: 4}
TURNS = GRID | {KnobType.THREADS_PER_ROW: 16, KnobType.READ_AHEAD: 2}
RING = BLOCK | {KnobType.READ_AHEAD: 2}

#: Factors of rows; ordinary rows lie between the extreme ones.
MAGNITUDES = (1.0, 1e19, 1.0, 1e30, 1e-3, 2e37)

CASES = [
    ("dims=11x96 mode=layer", {}),
    ("dims=7x97 mode=layer dtype=bf16", {}),
    ("dims=7x4096 mode=layer dtype=bf16", {}),
    ("dims=9x517 mode=layer", NARROW),
    ("dims=9x517 mode=layer", CLUSTER),
    ("dims=5x1000 mode=rms scale=scale dtype=bf16 before=residual+store", BLOCK),
    ("dims=2x3003 mode=rms scale=scale", GRID),
    ("dims=2x9000 mode=layer dtype=bf16", {}),
    ("dims=100x1000 mode=layer", RING),
    ("dims=3x12x5x7 mode=group groups=3", {}),
    ("dims=3x12x5x4 mode=group groups=2 layout=nhwc dtype=bf16", {}),
    ("dims=4x16x5x4 mode=batch layout=nhwc running=yes epilogue=residual+relu", {}),
    ("dims=4x6x5x4 mode=batch running=yes dtype=bf16", GRID),
    ("dims=3x32x16x17 mode=instance layout=nhwc dtype=bf16", TURNS),
    ("dims=3x32x9x9 mode=group groups=4 layout=nhwc dtype=bf16", TURNS),
]
#: Cases in which the blocks of a cluster share rows, rows share statistics, and rows are pipelined over a grid.
SHARED_CASES = [CASES[4], CASES[9], CASES[-1]]


@pytest.mark.parametrize(("line", "choices"), CASES)
def test_rows_of_any_size_are_normalised(device: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    check(device, NormRows(), line, choices)


@pytest.mark.parametrize(("line", "choices"), SHARED_CASES)
def test_no_race_over_extreme_rows(racing: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    check(racing, NormRows(), line, choices)


@pytest.mark.parametrize(("line", "choices"), SHARED_CASES[::2])
def test_extreme_rows_under_every_policy(scheduled: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    check(scheduled, NormRows(), line, choices)


@pytest.mark.parametrize("layout", ["nhwc", "row"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_passes_of_batch_norm(device: Runtime, layout: str, dtype: str) -> None:
    check(device, BatchNorm(), f"dims=4x8x5x4 mode=batch running=yes layout={layout} dtype={dtype}", {})


@paired(
    ("engine", [NormRows(), BatchNorm()]),
    ("spread", [0.0, 1e-4]),
    ("dims", ["3x6x4x4", "7x3x5x6", "40x3x1x1"]),
)
def test_rows_far_from_zero(device: Runtime, engine: Engine, spread: float, dims: str) -> None:
    """The mean is far larger than the deviations from it, some of which are 0."""
    check(device, engine, f"dims={dims} mode=batch running=yes", {}, magnitudes=(1.7e38, 3e37, 1e36), spread=spread)


@pytest.mark.parametrize("spread", [0.0, 1e-4])
def test_long_rows_far_from_zero(device: Runtime, spread: float) -> None:
    check(device, NormRows(), "dims=4x1000 mode=layer", {}, magnitudes=(1e38, 3.3e29, 1e37, 1.0), spread=spread)


@pytest.mark.parametrize("magnitude", [1e-25, 1e-12])
def test_small_rows_without_an_epsilon(device: Runtime, magnitude: float) -> None:
    """Squares that vanish do not make the deviation 0."""
    check(device, NormRows(), "dims=6x96 mode=layer", {}, magnitudes=(magnitude,), epsilon=0.0)


@pytest.mark.parametrize("engine", [NormRows(), BatchNorm()], ids=lambda engine: engine.name)
def test_the_running_variance_of_one_element(device: Runtime, engine: Engine) -> None:
    """The unbiased variance of one element does not exist: the running variance goes towards 0, not to NaN."""
    check(device, engine, "dims=1x2x1x1 mode=batch running=yes", {}, magnitudes=(1.0,))


@pytest.mark.parametrize("engine", [NormRows(), BatchNorm()], ids=lambda engine: engine.name)
def test_a_factor_of_one_leaves_nothing_of_large_statistics(device: Runtime, engine: Engine) -> None:
    given = {"momentum": 1.0, "running_mean": 1e6, "running_var": 1e6}
    check(device, engine, "dims=4x3x5x4 mode=batch running=yes", {}, magnitudes=(1e-3,), given=given)


def check(
    runtime: Runtime,
    engine: Engine,
    line: str,
    choices: dict[KnobType, int],
    magnitudes: tuple[float, ...] = MAGNITUDES,
    epsilon: float | None = None,
    spread: float | None = None,
    given: Mapping[str, float] | None = None,
) -> None:
    """Compares with the oracle: y to a few roundings of its type, statistics relative to their row's elements.

    spread: how far the elements of a row lie from the row's magnitude, relative to it; without one, from 0.
    given: the value of all elements of a tensor, by its name.
    """
    case, seed = parse_case(f"norm {line}"), fresh_seed()
    graph, inputs = case.graph(), dict(case.inputs(seed, exact=False))
    if epsilon is not None:
        graph = with_epsilon(graph, epsilon)
    refusal = engine.refuse(graph, SM_90A)
    assert refusal is None, str(refusal)
    norm = norm_of(graph)
    sizes = sizes_of(norm.x, magnitudes)
    sources = [norm.x] if norm.x.uid in inputs else [t for t in graph.inputs if t.dims == norm.x.dims]
    for tensor in sources:
        drawn = dtypes.to_float64(inputs[tensor.uid], tensor.data_type)
        scaled = (drawn if spread is None else 1 + spread * drawn) * sizes
        inputs[tensor.uid] = dtypes.from_float64(scaled, tensor.data_type)
    for tensor in graph.inputs:
        if given is not None and tensor.name in given:
            inputs[tensor.uid] = np.full_like(inputs[tensor.uid], given[tensor.name])
    arch = SM_90A.with_sm_count(4) if KnobType.READ_AHEAD in choices else SM_90A
    found = run_plan(runtime, engine.plan(graph, arch, choices), graph, inputs)
    expected = {uid: values(array, graph.tensors[uid]) for uid, array in evaluate(graph, inputs).items()}
    assert norm.inv_variance is not None
    deviations = 1 / expected[norm.inv_variance.uid]
    for uid, array in expected.items():
        tensor = graph.tensors[uid]
        sizes = sizes_of_terms(norm, tensor, inputs, array)
        if tensor in (norm.mean, norm.output_running_mean):
            sizes = sizes + deviations / 4
        compare(norm, tensor, values(found[uid], tensor), array, sizes, f"seed {seed}: {line}")


def compare(
    norm: NormForward,
    tensor: Tensor,
    found: NDArray[np.float64],
    expected: NDArray[np.float64],
    sizes: NDArray[np.float64],
    context: str,
) -> None:
    """sizes: the magnitudes that the errors of statistics are relative to."""
    rounding = 8 * max(dtypes.info(tensor.data_type).epsilon, 2.0**-23)
    if tensor.dims != norm.x.dims:
        error = np.zeros_like(expected)
        np.subtract(found, expected, out=error, where=found != expected)  # a variance may be infinite
        assert np.all(np.abs(error) <= 4 * rounding * sizes), f"{context}: {found} for {expected}"
        return
    size = np.maximum(np.abs(expected), 1.0)
    np.testing.assert_allclose(found / size, expected / size, 0, 4 * rounding, err_msg=context)


def sizes_of_terms(
    norm: NormForward, tensor: Tensor, inputs: dict[int, NDArray[Any]], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|expected|, or of a running statistic |(1 - factor) * input| + |factor * this batch's|, since the two may cancel:
    the factor and an input variance may have any sign."""
    before = {norm.output_running_mean: norm.input_running_mean, norm.output_running_var: norm.input_running_var}
    carried = before.get(tensor)
    if carried is None or norm.exp_avg_factor is None:
        return np.abs(expected)
    factor, old = (values(inputs[t.uid], t) for t in (norm.exp_avg_factor, carried))
    kept = (1 - factor) * old
    return np.abs(kept) + np.abs(expected - kept)


def values(stored: NDArray[Any], tensor: Tensor) -> NDArray[np.float64]:
    return dtypes.to_float64(stored, tensor.data_type)


def norm_of(graph: OperationGraph) -> NormForward:
    (norm,) = (operation for operation in graph.operations if isinstance(operation, NormForward))
    return norm


def with_epsilon(graph: OperationGraph, epsilon: float) -> OperationGraph:
    norm = norm_of(graph)
    changed = replace(norm, epsilon=replace(norm.epsilon, constant_value=epsilon))
    return OperationGraph([changed if operation is norm else operation for operation in graph.operations])


def sizes_of(x: Tensor, magnitudes: tuple[float, ...]) -> NDArray[np.float64]:
    """A factor for each row, or for each channel of each image."""
    dims = x.dims[:2] if x.rank > 2 else x.dims[:1]
    return np.resize(magnitudes, dims).reshape(*dims, *(1,) * (x.rank - len(dims)))
