from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.matmul.matmul_simt import MatmulSimt
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.plan import MathUnit
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError, Status
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.pairs import paired
from tests.support.running import check_close, check_exact

ENGINE = MatmulSimt()


def tile(m: int, n: int) -> dict[KnobType, int]:
    return {KnobType.TILE_M: m, KnobType.TILE_N: n}


@pytest.mark.parametrize(
    ("m", "n", "k", "tile_m", "tile_n"),
    [
        (33, 35, 20, 32, 32),
        (65, 31, 33, 64, 32),
        (31, 130, 9, 32, 128),
        (70, 66, 17, 64, 64),
        (130, 100, 24, 128, 64),
        (100, 129, 8, 64, 128),
        (129, 133, 19, 128, 128),
    ],
)
def test_tails_of_every_tile(device: Runtime, m: int, n: int, k: int, tile_m: int, tile_n: int) -> None:
    graph = matmul_graph((), m, n, k)
    check_exact(device, ENGINE, graph, length=k, choices=tile(tile_m, tile_n))


@paired(
    ("a_layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED, Layout.PADDED]),
    ("b_layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED]),
    ("c_layout", [Layout.PADDED, Layout.TRANSPOSED]),
)
def test_layouts(device: Runtime, a_layout: Layout, b_layout: Layout, c_layout: Layout) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 37, 21), DataType.FLOAT, layout=a_layout)
    b = builder.tensor((2, 21, 41), DataType.FLOAT, layout=b_layout)
    builder.matmul(a, b, store=DataType.FLOAT, layout=c_layout)
    check_exact(device, ENGINE, builder.graph(), length=21)


def test_strides_without_any_contiguous_axis(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((2, 9, 7), DataType.FLOAT, strides=(211, 21, 3))
    b = builder.tensor((2, 7, 10), DataType.FLOAT, strides=(5, 100, 10))
    builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=7)


def test_repeated_elements_of_stride_zero(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((3, 9, 7), DataType.FLOAT, strides=(0, 7, 1))
    b = builder.tensor((3, 7, 10), DataType.FLOAT, strides=(70, 10, 0))
    builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=7)


@pytest.mark.parametrize(
    ("a_batch", "b_batch"), [((2, 1, 3), (1, 4, 3)), ((1, 1, 1), (2, 2, 2)), ((5,), (1,)), ((1,), (1,))]
)
def test_batch_broadcast(device: Runtime, a_batch: tuple[int, ...], b_batch: tuple[int, ...]) -> None:
    builder = CaseBuilder()
    a = builder.tensor((*a_batch, 10, 6), DataType.FLOAT)
    b = builder.tensor((*b_batch, 6, 11), DataType.FLOAT)
    builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=6)


@pytest.mark.parametrize(
    ("data_type", "compute_type", "store"),
    [
        (DataType.DOUBLE, DataType.DOUBLE, DataType.DOUBLE),
        (DataType.HALF, DataType.FLOAT, DataType.HALF),
        (DataType.HALF, DataType.HALF, DataType.FLOAT),
        (DataType.BFLOAT16, DataType.FLOAT, DataType.BFLOAT16),
        (DataType.FP8_E4M3, DataType.FLOAT, DataType.FLOAT),
        (DataType.FP8_E5M2, DataType.FLOAT, DataType.BFLOAT16),
        (DataType.INT8, DataType.INT32, DataType.INT32),
        (DataType.INT8, DataType.INT32, DataType.INT8),
        (DataType.INT32, DataType.INT32, DataType.INT64),
        (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT),
    ],
)
def test_data_types(device: Runtime, data_type: DataType, compute_type: DataType, store: DataType) -> None:
    graph = matmul_graph((2,), 37, 34, 19, data_type=data_type, compute_type=compute_type, store=store)
    check_exact(device, ENGINE, graph, length=19)


def test_operands_of_two_types(device: Runtime) -> None:
    builder = CaseBuilder()
    a = builder.tensor((9, 12), DataType.BFLOAT16)
    b = builder.tensor((12, 7), DataType.FLOAT)
    builder.matmul(a, b, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=12)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (4, 0, 3), (4, 5, 0), (1, 1, 1), (1, 70, 130), (70, 1, 130)])
def test_empty_and_thin(device: Runtime, m: int, n: int, k: int) -> None:
    plan = check_exact(device, ENGINE, matmul_graph((2,), m, n, k), length=k)
    assert bool(plan.launches) == (m * n > 0)


def test_no_products_still_run_the_epilogue(device: Runtime) -> None:
    builder = CaseBuilder()
    a, b = builder.tensor((3, 0), DataType.FLOAT), builder.tensor((0, 5), DataType.FLOAT)
    bias = builder.tensor((1, 5), DataType.FLOAT)
    builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b), bias, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def epilogue_graph(c_layout: Layout) -> OperationGraph:
    """relu(2 a b + row bias) * column scale, with the product stored as well, in bf16."""
    builder = CaseBuilder()
    a, b = builder.tensor((2, 35, 18), DataType.FLOAT), builder.tensor((1, 18, 37), DataType.FLOAT)
    product = builder.matmul(a, b, store=DataType.BFLOAT16, layout=c_layout)
    bias = builder.tensor((1, 1, 37), DataType.FLOAT)
    scale = builder.tensor((2, 35, 1), DataType.HALF)
    biased = builder.pointwise(PointwiseMode.ADD, product, bias, alpha1=2.0)
    active = builder.pointwise(PointwiseMode.RELU_FWD, biased)
    builder.pointwise(PointwiseMode.MUL, active, scale, store=DataType.FLOAT, layout=c_layout)
    return builder.graph()


@pytest.mark.parametrize("c_layout", [Layout.ROW_MAJOR, Layout.TRANSPOSED])
def test_epilogue_with_broadcast_operands(device: Runtime, c_layout: Layout) -> None:
    check_exact(device, ENGINE, epilogue_graph(c_layout), length=18)


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check_exact(scheduled, ENGINE, epilogue_graph(Layout.ROW_MAJOR), length=18, choices=tile(32, 32))


@pytest.mark.parametrize("data_type", [DataType.FLOAT, DataType.BFLOAT16, DataType.DOUBLE])
def test_real_values(device: Runtime, data_type: DataType) -> None:
    compute_type = DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT
    graph = matmul_graph((), 40, 36, 150, data_type=data_type, compute_type=compute_type)
    check_close(device, ENGINE, graph, length=150)


def test_work_counts_tile_tails_and_each_byte_once() -> None:
    graph = matmul_graph((2,), 33, 20, 10)
    (launch,) = ENGINE.plan(graph, SM_90A, tile(32, 32)).launches
    assert launch.work.flops == 2 * (2 * 2 * 1) * 32 * 32 * 16
    assert launch.work.bytes == 4 * 2 * (33 * 10 + 10 * 20 + 33 * 20)
    assert launch.work.unit is MathUnit.FMA_F32
    assert launch.grid == (4, 1, 1)


def test_few_blocks_wait_at_each_step_along_k() -> None:
    """Steps of 16 of k wait for the next operands; where there is more to do, other blocks fill the time."""
    graphs = (matmul_graph((), 25, 256, 256), matmul_graph((), 4096, 4096, 256))
    few, many = (ENGINE.plan(graph, SM_90A, {}).launches[0].work.busy_s for graph in graphs)
    assert few == pytest.approx(15 * SM_90A.timings.load_latency_s)
    assert many == 0.0


def test_new_extents_are_the_same_kernel() -> None:
    plans = [ENGINE.plan(matmul_graph((2,), m, 36, k), SM_90A, tile(32, 32)) for m, k in ((33, 20), (48, 64))]
    assert plans[0].kernels == plans[1].kernels
    assert plans[0].launches != plans[1].launches


def test_large_products_take_large_tiles_and_small_ones_fill_the_device() -> None:
    def defaults(m: int, n: int) -> list[int]:
        return [knob.default for knob in ENGINE.knobs(matmul_graph((), m, n, 64), SM_90A)]

    assert defaults(8192, 8192) == [128, 128]
    assert defaults(256, 256) == [32, 32]


def test_unknown_choices_are_named() -> None:
    graph = matmul_graph()
    with pytest.raises(BadParamError, match=r"matmul_simt\.TILE_M: expected one of \[32, 64, 128\], got 48"):
        ENGINE.plan(graph, SM_90A, {KnobType.TILE_M: 48})
    with pytest.raises(BadParamError, match=r"expected TILE_M, TILE_N, got STAGES"):
        ENGINE.plan(graph, SM_90A, {KnobType.STAGES: 2})


def test_refuses_other_graphs_with_a_reason() -> None:
    refusal = ENGINE.refuse(convolution_graph(), SM_90A)
    assert refusal is not None
    assert "expected exactly one MatmulOperation, got 0" in str(refusal)
    with pytest.raises(NotSupportedError, match="matmul_simt: operations"):
        ENGINE.plan(convolution_graph(), SM_90A, {})


def test_refuses_extents_past_32_bits() -> None:
    refusal = ENGINE.refuse(matmul_graph((), 2**31, 1, 1), SM_90A)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_SHAPE
    assert "2147483648" in refusal.reason
