"""``reduction`` of many short contiguous rows, which are read as one row (``reduction_short_rows.cu``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.pointwise import Pointwise
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.builders import reduction_graph
from tests.support.running import check_exact
from tests.support.runtime import open_runtime

ENGINE = ReductionEngine()
OPS = ReduceTensorOp
#: A device for which few outputs are many.
SMALL = SM_90A.with_sm_count(1)


def are_short_rows(plan: Plan) -> bool:
    return [kernel.source for kernel in plan.kernels] == ["reduction/reduction_short_rows.cu"]


@pytest.mark.parametrize(
    ("dims", "data_type", "outputs"),
    [
        ((75, 49), DataType.BFLOAT16, 32),
        ((300, 7), DataType.BFLOAT16, 256),
        ((701, 3), DataType.FLOAT, 512),
        ((33, 171), DataType.INT8, 32),
    ],
    ids=str,
)
def test_shares_of_a_warp_and_ragged_ends(
    device: Runtime, dims: tuple[int, int], data_type: DataType, outputs: int
) -> None:
    graph = reduction_graph(OPS.ADD, dims, (1,), data_type=data_type, store=DataType.FLOAT)
    plan = check_exact(device, ENGINE, graph, length=dims[1], choices={KnobType.TILE_ROWS: outputs}, arch=SMALL)
    assert are_short_rows(plan)


def images() -> OperationGraph:
    """The graph of averages of images, with operations before and after and a stored product."""
    builder = CaseBuilder()
    x, other = (builder.tensor((5, 16, 5, 5), DataType.HALF) for _ in range(2))
    product = builder.pointwise(PointwiseMode.MUL, x, other, store=DataType.FLOAT)
    largest = builder.reduction(OPS.MAX, builder.pointwise(PointwiseMode.ABS, product), (2, 3))
    builder.pointwise(PointwiseMode.NEG, largest, store=DataType.HALF)
    return builder.graph()


def test_operations_on_both_sides_under_every_scheduling_policy(scheduled: Runtime) -> None:
    assert are_short_rows(check_exact(scheduled, ENGINE, images(), arch=SMALL))


def test_no_races(kernel_cache_dir: Path) -> None:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        assert are_short_rows(check_exact(runtime, ENGINE, images(), arch=SMALL))


def test_both_sums_in_one_pass(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    builder.gen_stats(builder.tensor((1, 40, 1, 9), DataType.HALF, strides=(360, 9, 9, 1)), store=DataType.FLOAT)
    assert are_short_rows(check_exact(device, ENGINE, builder.graph(), arch=SMALL))


def with_scale(builder: CaseBuilder) -> None:
    """Multiplies by a factor for each row."""
    x, scale = builder.tensor((64, 49), DataType.FLOAT), builder.tensor((64, 1), DataType.FLOAT)
    builder.reduction(OPS.ADD, builder.pointwise(PointwiseMode.MUL, x, scale), (1,), store=DataType.FLOAT)


def padded(builder: CaseBuilder) -> None:
    x = builder.tensor((64, 49), DataType.FLOAT, layout=Layout.PADDED)
    builder.reduction(OPS.ADD, x, (1,), store=DataType.FLOAT)


def with_index(builder: CaseBuilder) -> None:
    x = builder.tensor((64, 49), DataType.FLOAT)
    index = builder.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.FLOAT, axis=1), x)
    builder.reduction(OPS.ADD, index, (1,), store=DataType.FLOAT)


@pytest.mark.parametrize("build", [with_scale, padded, with_index])
def test_rows_that_are_not_one_row_are_read_as_rows(build: Callable[[CaseBuilder], None]) -> None:
    builder = CaseBuilder()
    build(builder)
    assert not are_short_rows(ENGINE.plan(builder.graph(), SMALL, {}))


def test_it_takes_many_misaligned_rows() -> None:
    def takes(dims: tuple[int, int]) -> bool:
        graph = reduction_graph(OPS.ADD, dims, (1,), data_type=DataType.BFLOAT16)
        return are_short_rows(ENGINE.plan(graph, SM_90A, {}))

    shapes = ((65536, 49), (65536, 50), (65536, 52), (65536, 255), (65536, 257), (4000, 49))
    assert [takes(dims) for dims in shapes] == [True, True, False, True, False, False]
