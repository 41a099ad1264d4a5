from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.conv.direct.conv_direct import ConvDirect
from lowdnn.enums import ConvolutionMode, DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import MathUnit
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError, Status
from tests.support.builders import convolution_graph, matmul_graph
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_close, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ConvDirect()
LAYOUTS = (Layout.CHANNELS_LAST, Layout.ROW_MAJOR)


@dataclass(frozen=True)
class Case:
    """A convolution: x and w dims, and the geometry if it is not plain."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    pre: tuple[int, ...] = ()
    post: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    is_flipped: bool = False

    def graph(
        self,
        layout: Layout,
        *,
        w_layout: Layout | None = None,
        data_type: DataType = DataType.FLOAT,
        compute_type: DataType = DataType.FLOAT,
        store: DataType | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> OperationGraph:
        builder = CaseBuilder(layout)
        x = builder.tensor(self.x, data_type)
        w = builder.tensor(self.w, data_type, layout=w_layout)
        geometry = self.geometry(compute_type)
        builder.convolution(x, w, geometry=geometry, store=store or data_type, alpha=alpha, beta=beta)
        return builder.graph()

    def geometry(self, compute_type: DataType = DataType.FLOAT) -> Convolution:
        spatial = len(self.x) - 2
        zeros, ones = (0,) * spatial, (1,) * spatial
        mode = ConvolutionMode.CONVOLUTION if self.is_flipped else ConvolutionMode.CROSS_CORRELATION
        pre, post = self.pre or zeros, self.post or self.pre or zeros
        return Convolution(compute_type, spatial, pre, post, self.strides or ones, self.dilations or ones, mode)

    @property
    def length(self) -> int:
        length = 1
        for extent in self.w[1:]:
            length *= extent
        return length


PLAIN = Case((2, 5, 9, 7), (6, 5, 3, 3), pre=(1, 1))
UNEVEN = Case((1, 6, 19, 17), (8, 6, 3, 2), (1, 0), (0, 2), (2, 1), (1, 2), is_flipped=True)
LINE = Case((2, 4, 40), (9, 4, 5), pre=(4,), post=(0,), dilations=(2,))
VOLUME = Case((1, 3, 5, 6, 7), (4, 3, 2, 3, 2), pre=(1, 0, 1), strides=(1, 2, 1), is_flipped=True)
GROUPED = Case((1, 12, 8, 16), (18, 4, 3, 3), pre=(1, 1))
LARGE_GROUPS = Case((1, 34, 6, 5), (36, 17, 3, 3), pre=(1, 1))
DEPTHWISE = Case((2, 40, 9, 17), (40, 1, 3, 3), pre=(1, 1))
STEM = Case((1, 3, 15, 15), (16, 3, 7, 7), pre=(3, 3), strides=(2, 2))
SMALL_GROUPS = (
    Case((2, 6, 9, 7), (9, 2, 3, 3), pre=(1, 1)),
    Case((1, 12, 8, 16), (16, 3, 3, 3), pre=(1, 1)),
    Case((1, 8, 9, 7), (8, 4, 2, 3), (1, 0), (0, 2), (2, 1), (1, 2), is_flipped=True),
    Case((2, 6, 31), (24, 2, 5), pre=(4,), post=(0,)),
    Case((1, 4, 4, 5, 6), (8, 2, 2, 3, 2), pre=(1, 0, 1), strides=(1, 2, 1)),
)
DEPTHWISE_CASES = (
    DEPTHWISE,
    Case((1, 9, 10, 7), (9, 1, 5, 5), pre=(2, 2), strides=(2, 2)),
    Case((1, 7, 9, 17), (21, 1, 3, 4), (1, 1), (0, 2), (2, 3), (2, 2), is_flipped=True),
    Case((2, 34, 31), (34, 1, 7), pre=(6,), post=(0,)),
    Case((1, 4, 5, 6, 7), (4, 1, 2, 3, 2), pre=(1, 0, 1), is_flipped=True),
    Case((1, 6, 3, 40), (6, 1, 1, 11), pre=(0, 5)),
    Case((1, 3, 9, 10), (9, 1, 7, 7), pre=(3, 3), strides=(2, 2)),
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [PLAIN, UNEVEN, LINE, VOLUME, LARGE_GROUPS, STEM])
def test_geometries(device: Runtime, case: Case, layout: Layout) -> None:
    plan = check_exact(device, ENGINE, case.graph(layout), length=case.length)
    assert plan.kernels[0].source == "conv/direct/conv_direct.cu"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", DEPTHWISE_CASES)
def test_depthwise_geometries(device: Runtime, case: Case, layout: Layout) -> None:
    plan = check_exact(device, ENGINE, case.graph(layout), length=case.length)
    assert plan.kernels[0].source == "conv/direct/conv_grouped.cu"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", SMALL_GROUPS)
def test_small_groups(device: Runtime, case: Case, layout: Layout) -> None:
    plan = check_exact(device, ENGINE, case.graph(layout), length=case.length)
    assert plan.kernels[0].source == "conv/direct/conv_grouped.cu"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile_n", [8, 16, 32, 64, 128])
def test_tails_of_every_tile(device: Runtime, tile_n: int, layout: Layout) -> None:
    case = Case((1, 5, 12, 13), (tile_n + 3, 5, 2, 2))
    check_exact(device, ENGINE, case.graph(layout), length=20, choices={KnobType.TILE_N: tile_n})


@pytest.mark.parametrize("block_size", [64, 256])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_depthwise_block_sizes(device: Runtime, block_size: int, layout: Layout) -> None:
    check_exact(device, ENGINE, DEPTHWISE.graph(layout), length=9, choices={KnobType.BLOCK_SIZE: block_size})


def test_depthwise_blocks_repeat_where_the_device_is_full(device: Runtime) -> None:
    small = replace(SM_90A, sm_count=1)
    case = Case((3, 4, 40, 33), (4, 1, 3, 3), pre=(1, 1))
    graph = case.graph(Layout.CHANNELS_LAST)
    assert ENGINE.plan(graph, small, {KnobType.BLOCK_SIZE: 64}).launches[0].grid[0] < 17 * 2
    check_exact(device, ENGINE, graph, length=9, choices={KnobType.BLOCK_SIZE: 64}, arch=small)


@pytest.mark.parametrize("case", [PLAIN, UNEVEN, DEPTHWISE])
def test_filter_and_image_in_different_layouts(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph(Layout.CHANNELS_LAST, w_layout=Layout.ROW_MAJOR), length=case.length)
    check_exact(device, ENGINE, case.graph(Layout.PADDED, w_layout=Layout.CHANNELS_LAST), length=case.length)


@pytest.mark.parametrize("case", [PLAIN, DEPTHWISE])
def test_output_in_another_layout_than_the_image(device: Runtime, case: Case) -> None:
    for x_layout, y_layout in (LAYOUTS, LAYOUTS[::-1]):
        builder = CaseBuilder(x_layout)
        x, w = builder.tensor(case.x, DataType.FLOAT), builder.tensor(case.w, DataType.FLOAT)
        builder.convolution(x, w, geometry=case.geometry(), store=DataType.FLOAT, layout=y_layout)
        check_exact(device, ENGINE, builder.graph(), length=case.length)


def test_strides_without_any_contiguous_axis(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 5, 9, 7), DataType.FLOAT, strides=(2000, 3, 200, 20))
    w = builder.tensor((6, 5, 3, 3), DataType.FLOAT, strides=(2, 200, 40, 13))
    builder.convolution(x, w, geometry=PLAIN.geometry(), store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=45)


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("x_strides", [(0, 1, 40, 8), (240, 1, 0, 8), (240, 0, 40, 8), (0, 30, 5, 1), (240, 30, 5, 0)])
def test_repeated_elements_of_stride_zero(device: Runtime, x_strides: tuple[int, ...], channels: int) -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 8, 6, 5), DataType.FLOAT, strides=x_strides)
    w = builder.tensor((8, channels, 3, 3), DataType.FLOAT, strides=(9 * channels, 0, 3, 1))
    builder.convolution(x, w, geometry=PLAIN.geometry(), store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=9 * channels)


@pytest.mark.parametrize("case", [PLAIN, DEPTHWISE])
@pytest.mark.parametrize(
    ("data_type", "compute_type", "store"),
    [
        (DataType.DOUBLE, DataType.DOUBLE, DataType.DOUBLE),
        (DataType.HALF, DataType.HALF, DataType.HALF),
        (DataType.BFLOAT16, DataType.FLOAT, DataType.FLOAT),
        (DataType.FP8_E4M3, DataType.FLOAT, DataType.BFLOAT16),
        (DataType.INT8, DataType.INT32, DataType.INT8),
        (DataType.INT32, DataType.INT32, DataType.INT32),
    ],
)
def test_data_types(device: Runtime, case: Case, data_type: DataType, compute_type: DataType, store: DataType) -> None:
    graph = case.graph(Layout.CHANNELS_LAST, data_type=data_type, compute_type=compute_type, store=store)
    check_exact(device, ENGINE, graph, length=case.length)


@pytest.mark.parametrize("case", [PLAIN, DEPTHWISE])
def test_alpha_and_beta(device: Runtime, case: Case) -> None:
    check_exact(device, ENGINE, case.graph(Layout.CHANNELS_LAST, alpha=2.0, beta=-3.0), length=case.length)


def epilogue_graph(case: Case, layout: Layout) -> OperationGraph:
    """relu(conv * scale + bias) + residual, with scale and bias by channel."""
    builder = CaseBuilder(layout)
    x, w = builder.tensor(case.x, DataType.BFLOAT16), builder.tensor(case.w, DataType.BFLOAT16)
    y = builder.convolution(x, w, geometry=case.geometry())
    channel = (1, y.dims[1], *(1 for _ in y.dims[2:]))
    scale, bias = builder.tensor(channel, DataType.FLOAT), builder.tensor(channel, DataType.FLOAT)
    residual = builder.tensor(y.dims, DataType.BFLOAT16)
    scaled = builder.pointwise(PointwiseMode.MUL, y, scale)
    active = builder.pointwise(PointwiseMode.RELU_FWD, builder.pointwise(PointwiseMode.ADD, scaled, bias))
    builder.pointwise(PointwiseMode.ADD, active, residual, store=DataType.FLOAT)
    return builder.graph()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [GROUPED, DEPTHWISE])
def test_epilogue(device: Runtime, case: Case, layout: Layout) -> None:
    check_exact(device, ENGINE, epilogue_graph(case, layout), length=case.length)


@paired(
    ("layout", LAYOUTS),
    ("case", [UNEVEN, DEPTHWISE_CASES[1]]),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_every_scheduling_policy(scheduled: Runtime, case: Case, layout: Layout) -> None:
    check_exact(scheduled, ENGINE, case.graph(layout), length=case.length)


@pytest.mark.parametrize("case", [PLAIN, DEPTHWISE])
@pytest.mark.parametrize("data_type", [DataType.FLOAT, DataType.BFLOAT16, DataType.DOUBLE])
def test_real_values(device: Runtime, case: Case, data_type: DataType) -> None:
    compute_type = DataType.DOUBLE if data_type is DataType.DOUBLE else DataType.FLOAT
    graph = case.graph(Layout.CHANNELS_LAST, data_type=data_type, compute_type=compute_type)
    check_close(device, ENGINE, graph, length=case.length)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [PLAIN, *DEPTHWISE_CASES[:5]])
def test_padding_is_a_zero_that_meets_the_weights(device: Runtime, case: Case, layout: Layout) -> None:
    """An infinite weight gives NaN wherever its tap falls into the padding, as the formula says."""
    graph = case.graph(layout)
    x = np.ones(case.x, np.float32)
    w = np.ones(case.w, np.float32)
    w[(slice(None), slice(None), *(0 for _ in case.w[2:]))] = np.inf
    (actual,) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {1: x, 2: w}).values()
    with np.errstate(invalid="ignore"):
        (expected,) = evaluate(graph, {1: x, 2: w}).values()
    assert np.isnan(expected).any()
    assert_exact(actual, expected, DataType.FLOAT)


def test_work_counts_tile_tails_and_fetches_and_each_byte_once() -> None:
    graph = PLAIN.graph(Layout.CHANNELS_LAST)
    (launch,) = ENGINE.plan(graph, SM_90A, {KnobType.TILE_N: 8}).launches
    pixels, depth = 2 * 9 * 7, 5 * 9
    assert pixels == 126
    assert launch.work.flops == 2 * round(128 * (depth + 3) * (8 / 0.7 + 16))
    assert launch.work.bytes == 4 * (2 * 5 * 63 + 6 * 5 * 9 + 6 * pixels)
    assert launch.work.unit is MathUnit.FMA_F32


def test_new_extents_are_the_same_kernel() -> None:
    graphs = [replace(PLAIN, x=(2, 5, extent, extent)).graph(Layout.CHANNELS_LAST) for extent in (9, 20)]
    plans = [ENGINE.plan(graph, SM_90A, {KnobType.TILE_N: 32}) for graph in graphs]
    assert plans[0].kernels == plans[1].kernels


def test_unknown_choices_are_named() -> None:
    with pytest.raises(BadParamError, match=r"conv_direct\.knob_choices: expected BLOCK_SIZE, got TILE_N"):
        ENGINE.plan(DEPTHWISE.graph(Layout.CHANNELS_LAST), SM_90A, {KnobType.TILE_N: 8})


def test_refuses_other_graphs_with_a_reason() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "expected exactly one ConvolutionOperation, got 0" in str(refusal)
    with pytest.raises(NotSupportedError, match="conv_direct: operations"):
        ENGINE.plan(matmul_graph(), SM_90A, {})


def test_refuses_positions_past_32_bits() -> None:
    refusal = ENGINE.refuse(convolution_graph((1, 1, 2**30, 1), (1, 1, 1, 1)), SM_90A)
    assert refusal is not None
    assert refusal.status is Status.NOT_SUPPORTED_SHAPE
    assert "padded spatial extents of at most 1073741823, got 1073741824" in refusal.reason
