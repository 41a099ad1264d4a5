"""``reduction`` for GenStats: both sums in one pass over x."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_exact, run_plan
from tests.support.runtime import open_runtime

ENGINE = ReductionEngine()
LAYOUTS = (Layout.CHANNELS_LAST, Layout.ROW_MAJOR, Layout.PADDED)


def gen_stats_graph(
    dims: tuple[int, ...], layout: Layout, data_type: DataType = DataType.FLOAT, compute_type: DataType = DataType.FLOAT
) -> OperationGraph:
    builder = CaseBuilder(layout)
    builder.gen_stats(builder.tensor(dims, data_type), compute_type=compute_type, store=compute_type)
    return builder.graph()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dims", [(3, 5, 7, 6), (2, 32, 4, 4), (4, 1, 9), (1, 7, 1, 1), (5, 6), (2, 3, 2, 3, 4)])
def test_shapes(device: Runtime, dims: tuple[int, ...], layout: Layout) -> None:
    check_exact(device, ENGINE, gen_stats_graph(dims, layout))


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE, DataType.INT8])
def test_data_types(device: Runtime, data_type: DataType) -> None:
    compute_type = DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT
    check_exact(device, ENGINE, gen_stats_graph((2, 12, 5, 4), Layout.CHANNELS_LAST, data_type, compute_type))


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_slices(device: Runtime, layout: Layout) -> None:
    graph = gen_stats_graph((4, 24, 8, 8), layout, DataType.HALF)
    plan = check_exact(device, ENGINE, graph, choices={KnobType.SPLIT_K_SLC: 4})
    assert len(plan.launches) == 2
    assert plan.workspace_bytes >= 4 * 24 * 2 * 4


def test_operations_before_are_fused(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x, scale = builder.tensor((2, 8, 5, 5), DataType.BFLOAT16), builder.tensor((1, 8, 1, 1), DataType.FLOAT)
    scaled = builder.pointwise(PointwiseMode.MUL, x, scale)
    builder.gen_stats(builder.pointwise(PointwiseMode.RELU_FWD, scaled, store=DataType.FLOAT))
    plan = check_exact(device, ENGINE, builder.graph())
    assert len(plan.launches) == 1


def test_nan_and_infinity_stay_in_their_channel(device: Runtime) -> None:
    graph = gen_stats_graph((1, 4, 8), Layout.ROW_MAJOR)
    x = np.ones((1, 4, 8), np.float32)
    x[0, 1, 3], x[0, 2, 5] = np.nan, -np.inf
    total, squares = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {1: x}).values()
    np.testing.assert_array_equal(total.ravel(), [8, np.nan, -np.inf, 8])
    np.testing.assert_array_equal(squares.ravel(), [8, np.nan, np.inf, 8])


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    for layout in LAYOUTS[:2]:
        check_exact(scheduled, ENGINE, gen_stats_graph((3, 5, 7, 6), layout), choices={KnobType.SPLIT_K_SLC: 2})


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_no_races(kernel_cache_dir: Path, layout: Layout) -> None:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        check_exact(runtime, ENGINE, gen_stats_graph((3, 5, 17, 6), layout))
