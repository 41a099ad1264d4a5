"""Random numbers in the pointwise kernel: the same bits wherever an element lies and whichever thread draws it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.backend.handle import Handle
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.pointwise.pointwise import PointwiseEngine
from lowdnn.enums import DataType, KnobType, PointwiseMode, RngDistribution
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.rng import Rng, RngOperation
from lowdnn.ops.tensor import packed_strides
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_close, check_exact, run_plan
from tests.support.tolerance import assert_exact
from tests.sweeps.checking import failures

ENGINE = PointwiseEngine()
DIMS = (2, 3, 6, 20)
COIN = Rng(RngDistribution.BERNOULLI, probability=0.6)
NORMAL = Rng(RngDistribution.NORMAL, mean=0.0, standard_deviation=1.0)


def numbers(
    device: Runtime, strides: tuple[int, ...], alignment: int = 16, threads: int = 128, unroll: int = 1
) -> np.ndarray:
    """The normal numbers of DIMS from one launch."""
    builder = CaseBuilder()
    y = replace(builder.tensor(DIMS, DataType.FLOAT, strides=strides), alignment_bytes=alignment)
    graph = OperationGraph([RngOperation(NORMAL, y, seed=77)])
    choices = {KnobType.BLOCK_SIZE: threads, KnobType.MULTIPLY: unroll}
    return run_plan(device, ENGINE.plan(graph, SM_90A, choices), graph, {})[y.uid]


def test_layout_vectors_and_launch_change_no_bit(device: Runtime) -> None:
    expected = numbers(device, packed_strides(DIMS))
    assert len(np.unique(expected)) == expected.size
    for strides, alignment, threads, unroll in (
        (packed_strides(DIMS, (0, 2, 3, 1)), 16, 128, 2),
        (packed_strides(DIMS, (3, 2, 1, 0)), 16, 64, 1),
        (packed_strides((*DIMS[:3], 24)), 16, 128, 1),
        ((1000, 300, 43, 2), 4, 128, 1),
    ):
        actual = numbers(device, strides, alignment, threads, unroll)
        assert_exact(actual, expected, DataType.FLOAT, f"strides {strides}, alignment {alignment}")


@pytest.mark.parametrize("extent", [13, 14, 15])
def test_rows_that_begin_within_a_block(device: Runtime, extent: int) -> None:
    """Padded rows keep their vectors, although their indices begin at every position in a block of four numbers."""
    builder = CaseBuilder()
    builder.rng(NORMAL, (5, extent), seed=5, store=DataType.HALF)
    [operation] = builder.graph().operations
    assert isinstance(operation, RngOperation)
    graph = OperationGraph([replace(operation, y=replace(operation.y, strides=(24, 1)))])
    check_close(device, ENGINE, graph, length=1)


@pytest.mark.parametrize("data_type", [DataType.BOOLEAN, DataType.INT64])
def test_coins_of_every_kind_of_type(device: Runtime, data_type: DataType) -> None:
    builder = CaseBuilder()
    builder.rng(COIN, (333,), seed=-1, store=data_type)
    check_exact(device, ENGINE, builder.graph())


def test_numbers_tensors_and_values_as_seed_and_offset(device: Runtime) -> None:
    results = []
    for place in ("number", "host", "device"):
        builder = CaseBuilder()
        data_type = DataType.INT32 if place == "device" else DataType.INT64
        if place == "host":
            seed, offset = (builder.by_value(1, data_type) for _ in "so")
        elif place == "number":
            seed, offset = 123, builder.constant(1, data_type, 456)
        else:
            seed, offset = (builder.tensor((1,), data_type) for _ in "so")
        y = builder.rng(NORMAL, (64,), seed=seed, offset=offset, store=DataType.FLOAT)
        graph = builder.graph()
        given = {t.uid: value for t, value in ((seed, 123), (offset, 456)) if t in graph.inputs}
        inputs = {
            uid: np.array([value], dtypes.info(data_type).storage)
            for uid, value in given.items()
            if graph.tensors[uid].constant_value is None
        }
        results.append(run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)[y.uid])
    assert all(np.array_equal(result, results[0]) for result in results)


def test_dropout_is_one_kernel_which_may_store_its_mask(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, 8, 5, 3), DataType.BFLOAT16)
    mask = builder.rng(COIN, x.dims, seed=3, store=DataType.BOOLEAN)
    kept = builder.pointwise(PointwiseMode.BINARY_SELECT, x, builder.constant(4, DataType.FLOAT, 0), mask)
    builder.pointwise(PointwiseMode.MUL, kept, builder.constant(4, DataType.FLOAT, 2), store=DataType.BFLOAT16)
    assert len(check_exact(device, ENGINE, builder.graph()).launches) == 1


@pytest.mark.parametrize("dims", [(2, 8, 1, 1), (1, 1, 5, 4), (1,)])
def test_numbers_that_repeat(device: Runtime, dims: tuple[int, ...]) -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 8, 5, 4), DataType.FLOAT)
    mask = builder.rng(COIN, dims, seed=11)
    builder.pointwise(PointwiseMode.MUL, x, mask, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_a_seed_that_the_graph_computes_is_refused() -> None:
    builder = CaseBuilder()
    seed = builder.tensor((1,), DataType.INT64)
    next_seed = builder.pointwise(PointwiseMode.ADD, seed, seed, compute_type=DataType.INT64, store=DataType.INT64)
    builder.rng(COIN, (1,), seed=next_seed, store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "expected a graph input as seed and offset" in refusal.reason


@pytest.mark.parametrize(
    "line",
    [
        "rng dims=6x80 p=0.9 seed=3 offset=4 source=device ops=store+mul+scalar dtype=bf16",
    ],
)
def test_under_the_race_detector(line: str) -> None:
    with Handle.open("emulated", policy="fuzz(7),early,races") as handle:
        assert parse_case(line).graph().operations
        assert not failures(handle, line, seed=1)
