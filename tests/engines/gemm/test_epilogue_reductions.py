"""Reductions in the epilogue of the wgmma engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.conv.wgmma.conv_dgrad_wgmma import ConvDgradWgmma
from lowdnn.engines.conv.wgmma.conv_fprop_wgmma import ConvFpropWgmma
from lowdnn.engines.matmul.matmul_wgmma import MatmulWgmma
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.support.running import check_close, check_exact
from tests.support.runtime import open_runtime

MATMUL, FPROP, DGRAD = MatmulWgmma(), ConvFpropWgmma(), ConvDgradWgmma()
BF16 = DataType.BFLOAT16
#: Choices with which blocks compute several tiles each.
FEW_SMS = replace(SM_90A, sm_count=3)
#: Most products of a sum that is exact: rows times the square of a stored sum of k products.
LENGTH = 1 << 16

SMALL_TILES = {KnobType.TILE_M: 64, KnobType.TILE_N: 64, KnobType.WARP_SPEC_CFG: 2, KnobType.STAGES: 2}
COOPERATIVE = {KnobType.TILE_M: 128, KnobType.TILE_N: 128, KnobType.WARP_SPEC_CFG: 0, KnobType.STAGES: 2}
PING_PONG = {KnobType.TILE_M: 64, KnobType.TILE_N: 96, KnobType.WARP_SPEC_CFG: 1, KnobType.STAGES: 3}
CLUSTERED = {**COOPERATIVE, KnobType.TILE_M: 256, KnobType.TILE_CGA_M: 2}


@pytest.fixture
def raced(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


@pytest.fixture
def raced_late(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(3),late,races"), kernel_cache_dir) as runtime:
        yield runtime


def product(
    builder: CaseBuilder, dims: tuple[int, ...], k: int, *, store: DataType | None = BF16, data_type: DataType = BF16
) -> Tensor:
    """c = a * b of ``dims``; b is broadcast over the batches."""
    *batches, m, n = dims
    a = builder.tensor((*batches, m, k), data_type)
    b = builder.tensor((*(1 for _ in batches), k, n), data_type, layout=Layout.TRANSPOSED)
    return builder.matmul(a, b, store=store)


def with_statistics(m: int = 200, n: int = 136, k: int = 40) -> OperationGraph:
    builder = CaseBuilder()
    builder.gen_stats(product(builder, (m, n), k))
    return builder.graph()


@pytest.mark.parametrize("choices", [SMALL_TILES, COOPERATIVE, PING_PONG, CLUSTERED])
def test_statistics_of_columns(device: Runtime, choices: dict[KnobType, int]) -> None:
    check_exact(device, MATMUL, with_statistics(), length=LENGTH, choices=choices, arch=FEW_SMS)


@pytest.mark.parametrize("choices", [SMALL_TILES, PING_PONG])
def test_no_races(raced: Runtime, raced_late: Runtime, choices: dict[KnobType, int]) -> None:
    for runtime in (raced, raced_late):
        check_exact(runtime, MATMUL, with_statistics(), length=LENGTH, choices=choices, arch=FEW_SMS)


@pytest.mark.parametrize("store", [DataType.FLOAT, DataType.FP8_E4M3])
def test_column_and_row_reductions_with_an_epilogue(device: Runtime, store: DataType) -> None:
    builder = CaseBuilder()
    bias = builder.tensor((1, 80), BF16)
    shifted = builder.pointwise(PointwiseMode.ADD, product(builder, (90, 80), 16, store=None), bias)
    y = builder.pointwise(PointwiseMode.RELU_FWD, shifted, store=store)
    builder.reduction(ReduceTensorOp.AVG, y, (0,), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.AMAX, y, (0, 1), store=DataType.FLOAT)
    check_exact(device, MATMUL, builder.graph(), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)


def test_the_largest_magnitude_before_the_output_is_quantised(device: Runtime) -> None:
    builder = CaseBuilder()
    value = product(builder, (130, 48), 32, store=None, data_type=DataType.FP8_E4M3)
    builder.pointwise(PointwiseMode.MUL, value, builder.constant(2, DataType.FLOAT, 0.25), store=DataType.FP8_E4M3)
    builder.reduction(ReduceTensorOp.AMAX, value, (0, 1), store=DataType.FLOAT)
    check_exact(device, MATMUL, builder.graph(), length=1 << 10, choices=SMALL_TILES, arch=FEW_SMS)


@pytest.mark.parametrize("operator", [ReduceTensorOp.NORM2, ReduceTensorOp.MIN])
def test_columns_over_batches(device: Runtime, operator: ReduceTensorOp) -> None:
    builder = CaseBuilder()
    builder.reduction(operator, product(builder, (2, 70, 64), 24), (0, 1), store=DataType.FLOAT)
    check_close(device, MATMUL, builder.graph(), length=140, choices=SMALL_TILES)


def test_rows_behind_the_last_have_no_slice(raced: Runtime) -> None:
    """After the 80th row a warp of the last tile has no slice: the slice that follows is the next batch's."""
    builder = CaseBuilder()
    a, b = builder.tensor((2, 80, 24), BF16), builder.tensor((2, 24, 60), BF16, layout=Layout.TRANSPOSED)
    builder.reduction(ReduceTensorOp.MIN, builder.matmul(a, b, store=BF16), (0, 1), store=DataType.FLOAT)
    plan = check_exact(raced, MATMUL, builder.graph(), length=LENGTH, choices=SMALL_TILES)
    assert "functor_columns_min" in plan.kernels[0].name


def test_rows_columns_and_everything(device: Runtime) -> None:
    builder = CaseBuilder()
    y = product(builder, (2, 70, 208), 24)
    builder.reduction(ReduceTensorOp.MAX, y, (2,), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.ADD, y, (0, 1), store=BF16)
    builder.reduction(ReduceTensorOp.AMAX, y, (0, 1, 2), store=DataType.FLOAT)
    check_exact(device, MATMUL, builder.graph(), length=LENGTH, choices=PING_PONG, arch=FEW_SMS)


def test_rows_of_what_is_not_stored(raced: Runtime) -> None:
    builder = CaseBuilder()
    value = product(builder, (130, 96), 16, store=None)
    builder.pointwise(PointwiseMode.RELU_FWD, value, store=DataType.FP8_E4M3)
    builder.reduction(ReduceTensorOp.ADD, value, (1,), store=DataType.FLOAT)
    check_exact(raced, MATMUL, builder.graph(), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)


def test_default_knobs(device: Runtime) -> None:
    plan = check_exact(device, MATMUL, with_statistics(), length=LENGTH)
    assert len(plan.launches) == 2
    assert "columns_genstats" in plan.kernels[0].name


@pytest.mark.parametrize(("filters", "rows"), [(256, 1), (1024, 8)])
def test_blocks_keep_their_columns_where_they_can(filters: int, rows: int) -> None:
    """Two columns of tiles divide 132 blocks, eight do not."""
    graph = parse_case(f"conv n=32 c=64 hw=56x56 k={filters} rs=1x1 dtype=bf16 exits=genstats").graph()
    raster = next(knob for knob in FPROP.knobs(graph, SM_90A) if knob.type is KnobType.SWIZZLE)
    assert raster.default == rows


def test_statistics_behind_a_convolution(device: Runtime) -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x, w = builder.tensor((2, 16, 9, 11), BF16), builder.tensor((40, 16, 3, 3), BF16)
    builder.gen_stats(builder.convolution(x, w, geometry=convolution(stride=2), store=BF16))
    check_exact(device, FPROP, builder.graph(), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)


def test_the_bias_gradient_behind_a_data_gradient(device: Runtime) -> None:
    check_exact(device, DGRAD, bias_gradient(1), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)


def test_reductions_of_a_data_gradient_with_strides(raced: Runtime) -> None:
    plan = check_exact(raced, DGRAD, bias_gradient(2), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)
    assert "pixels_columns_add_whole_amax" in plan.kernels[-3].name


def test_row_reductions_of_a_data_gradient_with_strides_are_refused() -> None:
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    dy, w = builder.tensor((2, 16, 4, 5), BF16), builder.tensor((16, 24, 3, 3), BF16)
    dx = builder.convolution_data_gradient(dy, w, (2, 24, 8, 10), geometry=convolution(2), store=BF16)
    builder.reduction(ReduceTensorOp.ADD, dx, (1,), store=DataType.FLOAT)
    refused = DGRAD.refuse(builder.graph(), SM_90A)
    assert refused is not None
    assert "expected results for channels or for everything" in refused.reason


def convolution(stride: int = 1) -> Convolution:
    return Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (stride, stride), (1, 1))


def bias_gradient(stride: int) -> OperationGraph:
    """The gradient before a ReLU and its sum for each channel."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    dims = (2, 24, 8, 10)
    dy, w = builder.tensor((2, 16, 8 // stride, 10 // stride), BF16), builder.tensor((16, 24, 3, 3), BF16)
    x = builder.tensor(dims, BF16)
    dx = builder.convolution_data_gradient(dy, w, dims, geometry=convolution(stride))
    behind = builder.pointwise(PointwiseMode.RELU_BWD, x, dx, store=BF16)
    builder.reduction(ReduceTensorOp.ADD, behind, (0, 2, 3), store=DataType.FLOAT)
    if stride > 1:
        builder.reduction(ReduceTensorOp.AMAX, behind, (0, 1, 2, 3), store=DataType.FLOAT)
    return builder.graph()


def refusal(*reductions: tuple[ReduceTensorOp, tuple[int, ...]], compute_type: DataType = DataType.FLOAT) -> str:
    builder = CaseBuilder()
    y = product(builder, (4, 32, 64), 16)
    for operator, axes in reductions:
        builder.reduction(operator, y, axes, compute_type=compute_type, store=compute_type)
    refused = MATMUL.refuse(builder.graph(), SM_90A)
    return refused.reason if refused else ""


def test_reductions_that_are_refused() -> None:
    add = ReduceTensorOp.ADD
    assert "expected FLOAT, got DOUBLE" in refusal((add, (0, 1)), compute_type=DataType.DOUBLE)
    assert "one for each of the output's columns or rows" in refusal((add, (0,)))
    assert "one for each of the output's columns or rows" in refusal((add, (1,)))
    assert "got two: column" in refusal((add, (0, 1)), (ReduceTensorOp.MAX, (0, 1)))
    assert not refusal((add, (0, 1)), (add, (2,)), (ReduceTensorOp.MAX, (0, 1, 2)))


def test_a_product_that_is_split_is_reduced_by_itself() -> None:
    refused = MATMUL.refuse(with_statistics(256, 256, 1 << 14), SM_90A)
    assert refused is not None
    assert "not faster in parts of k" in refused.reason


def test_single_bytes_need_tiles_of_whole_sixteens() -> None:
    builder = CaseBuilder()
    value = product(builder, (64, 48), 32, store=DataType.FP8_E4M3)
    builder.reduction(ReduceTensorOp.AMAX, value, (0, 1), store=DataType.FLOAT)
    with pytest.raises(BadParamError, match="TILE_N a multiple of 16"):
        MATMUL.plan(builder.graph(), SM_90A, {**SMALL_TILES, KnobType.TILE_N: 24, KnobType.WARP_SPEC_CFG: 1})


@pytest.mark.parametrize(("swap", "store"), [(0, BF16), (1, None)])
def test_reductions_where_the_functor_stores(raced: Runtime, swap: int, store: DataType | None) -> None:
    """The reduced tensor is not the stored one, if any is stored."""
    builder = CaseBuilder()
    value = product(builder, (2, 75, 69), 24, store=None)
    if store is not None:
        builder.pointwise(PointwiseMode.RELU_FWD, value, store=store)
    builder.reduction(ReduceTensorOp.ADD, value, (0, 1), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.MIN, value, (2,), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.AMAX, value, (0, 1, 2), store=DataType.FLOAT)
    choices = {**SMALL_TILES, KnobType.SWAP_AB: swap}
    plan = check_exact(raced, MATMUL, builder.graph(), length=LENGTH, choices=choices, arch=FEW_SMS)
    assert "functor_columns_add_rows_min_whole_amax" in plan.kernels[-4].name


def test_statistics_of_channels_that_are_rows(raced: Runtime) -> None:
    case = parse_case("conv n=2 c=8 hw=5x7 k=24 rs=3x3 pad=1 layout=nchw dtype=bf16 exits=genstats+rowmax")
    check_exact(raced, FPROP, case.graph(), length=LENGTH, choices=SMALL_TILES, arch=FEW_SMS)
