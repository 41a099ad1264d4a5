from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.enums import DataType, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.plan import MathUnit
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError, Status
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.pairs import paired
from tests.support.running import check_close, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = MatmulMma()
TYPES = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8)
LAYOUTS = (Layout.ROW_MAJOR, Layout.TRANSPOSED)


def compute_type(data_type: DataType) -> DataType:
    return DataType.INT32 if data_type is DataType.INT8 else DataType.FLOAT


def knobs(m: int, n: int, *, k: int | None = None, stages: int | None = None, splits: int = 1) -> dict[KnobType, int]:
    chosen = {KnobType.TILE_M: m, KnobType.TILE_N: n, KnobType.SPLIT_K_SLC: splits}
    if k is not None:
        chosen[KnobType.TILEK] = k
    if stages is not None:
        chosen[KnobType.STAGES] = stages
    return chosen


@paired(
    (
        ("tile", "data_type"),
        # No tile has rows of 32 bytes.
        [(tile, kind) for tile in (64, 32) for kind in TYPES if (tile, kind) != (32, DataType.INT8)],
    ),
    ("a_layout", LAYOUTS),
    ("b_layout", LAYOUTS),
)
def test_types_and_layouts(device: Runtime, tile: int, data_type: DataType, a_layout: Layout, b_layout: Layout) -> None:
    compute = compute_type(data_type)
    graph = matmul_graph(
        (2,), 80, 96, 144, data_type=data_type, compute_type=compute, a_layout=a_layout, b_layout=b_layout
    )
    check_exact(device, ENGINE, graph, length=144, choices=knobs(tile, tile))


@pytest.mark.parametrize("data_type", TYPES)
def test_odd_extents_are_read_one_by_one(device: Runtime, data_type: DataType) -> None:
    graph = matmul_graph((), 67, 35, 77, data_type=data_type, compute_type=compute_type(data_type))
    check_exact(device, ENGINE, graph, length=77)


@pytest.mark.parametrize(
    ("m", "n"), [(256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64), (32, 32)]
)
def test_tails_of_every_tile(device: Runtime, m: int, n: int) -> None:
    graph = matmul_graph((), m + 9, n + 24, 104, data_type=DataType.BFLOAT16)
    check_exact(device, ENGINE, graph, length=104, choices=knobs(m, n, stages=3))


@pytest.mark.parametrize("tile", [64, 32])
@pytest.mark.parametrize("k", [1, 15, 31, 32, 33, 64, 65, 200])
def test_tails_of_k(device: Runtime, k: int, tile: int) -> None:
    graph = matmul_graph((), 20, 24, k, data_type=DataType.HALF)
    check_exact(device, ENGINE, graph, length=k, choices=knobs(tile, tile))


@pytest.mark.parametrize(
    ("tile", "depth", "stages"),
    [(64, 32, 2), (64, 32, 5), (64, 64, 2), (64, 64, 3), (32, 32, 2), (32, 64, 2), (32, 64, 3), (32, 32, 9)],
)
def test_pipeline_depths(device: Runtime, tile: int, depth: int, stages: int) -> None:
    graph = matmul_graph((), 64, 64, 232, data_type=DataType.BFLOAT16, b_layout=Layout.TRANSPOSED)
    check_exact(device, ENGINE, graph, length=232, choices=knobs(tile, tile, k=depth, stages=stages))


@pytest.mark.parametrize(
    ("data_type", "n", "tile"),
    [(DataType.BFLOAT16, 51, 64), (DataType.BFLOAT16, 51, 32), (DataType.FLOAT, 40, 64), (DataType.INT8, 56, 64)],
)
def test_split_sums(device: Runtime, data_type: DataType, n: int, tile: int) -> None:
    epilogue = (PointwiseMode.RELU_FWD,) if data_type is not DataType.INT8 else ()
    compute = compute_type(data_type)
    graph = matmul_graph((2,), 70, n, 520, data_type=data_type, compute_type=compute, epilogue=epilogue)
    plan = check_exact(device, ENGINE, graph, length=520, choices=knobs(tile, tile, splits=4))
    assert [kernel.name.split("_mma_")[0] for kernel in plan.kernels][1].startswith("gemm_split_k_reduce")
    assert plan.workspace_bytes >= 2 * 2 * 70 * n * 4


def test_more_parts_than_k_tiles_leave_none_empty(device: Runtime) -> None:
    graph = matmul_graph((), 16, 16, 150, data_type=DataType.HALF)
    check_exact(device, ENGINE, graph, length=150, choices=knobs(64, 64, k=64, splits=32))


@pytest.mark.parametrize("c_layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED, Layout.PADDED])
def test_output_layouts(device: Runtime, c_layout: Layout) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 72, 40), DataType.BFLOAT16, layout=Layout.PADDED)
    b = builder.tensor((2, 40, 88), DataType.BFLOAT16)
    bias = builder.tensor((1, 1, 88), DataType.BFLOAT16)
    value = builder.matmul(a, b)
    builder.pointwise(PointwiseMode.ADD, value, bias, store=DataType.BFLOAT16, layout=c_layout)
    check_exact(device, ENGINE, builder.graph(), length=40)


@pytest.mark.parametrize(
    ("a_batch", "b_batch"),
    [
        ((2, 1, 3), (1, 4, 3)),
        ((1, 1), (2, 2)),
        ((5,), (1,)),
        ((2, 3), (1, 1)),
        ((1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1)),
    ],
)
def test_batch_broadcast(device: Runtime, a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> None:
    builder = CaseBuilder()
    a = builder.tensor((*a_batch, 10, 16), DataType.BFLOAT16)
    b = builder.tensor((*b_batch, 16, 24), DataType.BFLOAT16)
    builder.matmul(a, b, store=DataType.BFLOAT16)
    check_exact(device, ENGINE, builder.graph(), length=16)


def test_batches_with_shared_weights_become_rows() -> None:
    builder = CaseBuilder()
    a = builder.tensor((16, 4, 64), DataType.BFLOAT16)
    builder.matmul(a, builder.tensor((1, 64, 64), DataType.BFLOAT16), store=DataType.BFLOAT16)
    plan = ENGINE.plan(builder.graph(), SM_90A, knobs(64, 64))
    assert plan.launches[0].grid == (1, 1, 1)


def test_alignments_of_base_and_strides(device: Runtime) -> None:
    for strides, expected in (((0, 40, 1), 2), ((0, 42, 1), 4), ((0, 44, 1), 8), ((0, 48, 1), 16), ((1602, 48, 1), 4)):
        builder = CaseBuilder(alignment_bytes=16 if strides[0] else expected)
        a = builder.tensor((2 if strides[0] else 1, 33, 40), DataType.HALF, strides=strides)
        b = builder.tensor((a.dims[0], 40, 24), DataType.HALF)
        builder.matmul(a, b, store=DataType.HALF)
        plan = check_exact(device, ENGINE, builder.graph(), length=40, choices=knobs(64, 64))
        assert dict(plan.kernels[0].parameters)["A_ALIGNMENT"] == expected


def test_operands_without_a_contiguous_dimension_are_repacked(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 3, 9, 7), DataType.BFLOAT16, strides=(0, 700, 70, 3))
    b = builder.tensor((1, 3, 7, 10), DataType.BFLOAT16, strides=(0, 600, 60, 2))
    builder.matmul(a, b, store=DataType.BFLOAT16)
    plan = check_exact(device, ENGINE, builder.graph(), length=7)
    assert len(plan.launches) == 3
    assert dict(plan.kernels[-1].parameters)["A_ALIGNMENT"] == 16


@pytest.mark.parametrize("strides", [(64, 64, 2), (5, 5, 10), (1, 7, 2)])
def test_rows_of_batches_that_share_weights_lie_anywhere(device: Runtime, strides: tuple[int, ...]) -> None:
    """Single rows become the rows of one matrix, which is contiguous along neither dimension."""
    builder = CaseBuilder()
    a = builder.tensor((2, 1, 32), DataType.HALF, strides=strides)
    builder.matmul(a, builder.tensor((1, 32, 18), DataType.HALF), store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=32)


@pytest.mark.parametrize("a_strides", [(0, 8, 1), (72, 0, 1), (72, 8, 0), (0, 0, 1)])
@pytest.mark.parametrize("b_strides", [(80, 10, 1), (0, 1, 8), (80, 10, 0)])
def test_repeated_elements_of_stride_zero(
    device: Runtime, a_strides: tuple[int, ...], b_strides: tuple[int, ...]
) -> None:
    builder = CaseBuilder()
    a = builder.tensor((3, 9, 8), DataType.BFLOAT16, strides=a_strides)
    b = builder.tensor((3, 8, 10), DataType.BFLOAT16, strides=b_strides)
    builder.matmul(a, b, store=DataType.BFLOAT16)
    check_exact(device, ENGINE, builder.graph(), length=8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_products_of_odd_matrices_are_repacked(device: Runtime, layout: Layout) -> None:
    graph = matmul_graph((), 257, 259, 261, data_type=DataType.BFLOAT16, a_layout=layout, b_layout=layout)
    plan = check_exact(device, ENGINE, graph, length=261, choices=knobs(128, 128, stages=3))
    assert len(plan.launches) == 3
    assert plan.workspace_bytes >= 2 * (257 + 259) * 264


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (4, 0, 3), (4, 5, 0), (1, 1, 1), (1, 70, 130), (70, 1, 130)])
def test_empty_and_thin(device: Runtime, m: int, n: int, k: int) -> None:
    plan = check_exact(device, ENGINE, matmul_graph((2,), m, n, k, data_type=DataType.BFLOAT16), length=k)
    assert bool(plan.launches) == (m * n > 0)


@pytest.mark.parametrize("splits", [1, 2])
def test_every_scheduling_policy(scheduled: Runtime, splits: int) -> None:
    graph = matmul_graph((2,), 70, 40, 200, data_type=DataType.BFLOAT16, epilogue=(PointwiseMode.RELU_FWD,))
    check_exact(scheduled, ENGINE, graph, length=200, choices=knobs(64, 64, stages=3, splits=splits))


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16])
def test_real_numbers(device: Runtime, data_type: DataType) -> None:
    graph = matmul_graph((), 70, 66, 300, data_type=data_type)
    check_close(device, ENGINE, graph, length=300)


def test_tf32_rounds_its_inputs(device: Runtime) -> None:
    graph = matmul_graph((), 70, 66, 300, data_type=DataType.FLOAT)
    plan = check_close(device, ENGINE, graph, length=300)
    assert plan.numerical_notes == (NumericalNote.TENSOR_CORE, NumericalNote.TF32_INPUTS)


def test_tf32_rounds_to_the_nearest(device: Runtime) -> None:
    """Neighbouring values differ by 2^-10; tensor cores would cut off the bits beyond."""
    graph = matmul_graph((), 16, 8, 8, data_type=DataType.FLOAT)
    numbers = 1 + np.array([0.25, 0.5, 0.75, 1.25, 1.5, 1.75, 2.25, 3.0], np.float32) / 1024
    a, b = np.tile(numbers, (16, 1)), np.eye(8, dtype=np.float32)
    rounded = 1 + np.array([0, 1, 1, 1, 2, 2, 2, 3], np.float32) / 1024
    plan, (left, right) = ENGINE.plan(graph, SM_90A, {}), graph.inputs
    (c,) = run_plan(device, plan, graph, {left.uid: a, right.uid: b}).values()
    assert_exact(c, np.tile(rounded, (16, 1)), DataType.FLOAT)
    (c,) = run_plan(device, plan, graph, {left.uid: np.tile(b, (2, 1)), right.uid: a[:8].T.copy()}).values()
    assert_exact(c[:8], np.tile(rounded, (8, 1)).T, DataType.FLOAT)


def test_default_tile_fills_the_device() -> None:
    large = ENGINE.plan(matmul_graph((), 4096, 4096, 4096, data_type=DataType.BFLOAT16), SM_90A, {})
    small = ENGINE.plan(matmul_graph((), 512, 512, 512, data_type=DataType.BFLOAT16), SM_90A, {})
    deep = ENGINE.plan(matmul_graph((), 128, 128, 65536, data_type=DataType.BFLOAT16), SM_90A, {})
    assert dict(large.choices)[KnobType.TILE_M] * dict(large.choices)[KnobType.TILE_N] >= 128 * 128
    assert small.launches[0].grid[0] >= 64
    assert dict(deep.choices)[KnobType.SPLIT_K_SLC] > 8


def test_plan_counts_its_work() -> None:
    plan = ENGINE.plan(matmul_graph((), 256, 256, 512, data_type=DataType.BFLOAT16), SM_80, knobs(128, 128, stages=3))
    assert plan.work.flops == 2 * 256 * 256 * 512
    assert plan.work.bytes == 2 * (256 * 512 * 2 + 256 * 256)
    assert plan.work.unit is MathUnit.MMA_F16


def test_refusals_name_field_limit_and_value() -> None:
    def reason(graph: object) -> str:
        refusal = ENGINE.refuse(graph, SM_90A)  # type: ignore[arg-type]
        assert refusal is not None
        return str(refusal)

    assert "expected one tap" in reason(convolution_graph())
    double = matmul_graph(data_type=DataType.DOUBLE, compute_type=DataType.DOUBLE)
    assert "matmul.a.data_type: expected one of HALF" in reason(double)
    builder = CaseBuilder()
    a = builder.tensor((2, 2, 2, 2, 9, 8), DataType.HALF, strides=(9000, 4000, 1000, 500, 24, 3))
    builder.matmul(a, builder.tensor((1, 1, 1, 1, 8, 8), DataType.HALF), store=DataType.HALF)
    scattered = builder.graph()
    refusal = ENGINE.refuse(scattered, SM_90A)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_LAYOUT
    assert "strides: expected 1 along a matrix dimension" in str(refusal)
    with pytest.raises(NotSupportedError, match="strides"):
        ENGINE.plan(scattered, SM_90A, {})


def test_knobs_outside_the_menu_are_refused() -> None:
    graph = matmul_graph((), 256, 256, 256, data_type=DataType.BFLOAT16)
    with pytest.raises(BadParamError, match="TILE_M, TILE_N"):
        ENGINE.plan(graph, SM_90A, knobs(256, 256))
    with pytest.raises(BadParamError, match="shared memory"):
        ENGINE.plan(graph, SM_80, knobs(256, 128, k=64, stages=5))


@pytest.mark.parametrize("data_type", [DataType.BFLOAT16, DataType.FLOAT])
def test_nan_and_infinity_reach_their_rows_and_columns_only(device: Runtime, data_type: DataType) -> None:
    graph = matmul_graph((), 40, 48, 72, data_type=data_type)
    a = dtypes.from_float64(np.ones((40, 72)), data_type)
    b = dtypes.from_float64(np.ones((72, 48)), data_type)
    all_ones = np.array(-1, np.int64).astype(a.dtype if a.dtype.kind == "u" else np.int32)
    a[3, 5] = all_ones.view(a.dtype)
    a[7, 71] = dtypes.from_float64(np.array(np.inf), data_type)
    b[40, 9] = dtypes.from_float64(np.array(-np.inf), data_type)
    output = graph.outputs[0].uid
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {1: a, 2: b})[output]
    with np.errstate(invalid="ignore"):
        expected = evaluate(graph, {1: a, 2: b})[output]
    assert_exact(actual, expected, data_type)
