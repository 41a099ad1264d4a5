"""Reductions in the epilogue of the engines for sm_80."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.conv.depthwise.conv_depthwise import ConvDepthwise
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.engines.matmul.matmul_mma import MatmulMma
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_exact
from tests.support.runtime import open_runtime

MATMUL, CONV, DEPTHWISE = MatmulMma(), ConvImplicitGemmMma(), ConvDepthwise()
#: Most products of a sum that is exact: rows times the square of a stored sum of k products.
LENGTH = 1 << 16
TILES = {KnobType.TILE_M: 64, KnobType.TILE_N: 64}


@pytest.fixture
def raced(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


def test_rows_columns_and_everything(raced: Runtime) -> None:
    """The reduced value is a ReLU that is not stored, after int32 accumulators; past the last column of a vector it is
    not 0.
    """
    builder = CaseBuilder()
    a, b = builder.tensor((2, 70, 24), DataType.INT8), builder.tensor((2, 24, 99), DataType.INT8)
    c = builder.matmul(a, b, compute_type=DataType.INT32)
    bias = builder.tensor((2, 70, 1), DataType.INT32)
    padded = builder.tensor((2, 70, 99), DataType.INT32, strides=(7000, 100, 1))
    total = builder.pointwise(PointwiseMode.ADD, builder.pointwise(PointwiseMode.ADD, c, bias), padded)
    y = builder.pointwise(PointwiseMode.RELU_FWD, total)
    builder.reduction(ReduceTensorOp.ADD, y, (0, 1), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.MAX, y, (2,), store=DataType.FLOAT)
    builder.reduction(ReduceTensorOp.ADD, y, (0, 1, 2), store=DataType.FLOAT)
    plan = check_exact(raced, MATMUL, builder.graph(), length=LENGTH, choices=TILES, arch=SM_80)
    assert "columns_add_rows_max_whole_add" in plan.kernels[0].name


@pytest.mark.parametrize(
    "line",
    [
        "conv n=2 c=16 hw=9x11 k=40 rs=3x3 pad=1 stride=2 groups=2 dtype=bf16 exits=genstats",
        "conv n=2 c=8 hw=9x11 k=24 rs=1x1 layout=nchw dtype=fp16 epilogue=bias+relu exits=sum",
        "conv n=2 c=24 hw=8x10 k=16 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16 epilogue=relu_bwd exits=sum",
    ],
)
def test_convolutions(raced: Runtime, line: str) -> None:
    case = parse_case(line)
    check_exact(raced, CONV, case.graph(), length=LENGTH, choices=TILES, arch=SM_80)


@pytest.mark.parametrize(
    "line",
    [
        "conv n=1 c=6 hw=7x9 k=12 rs=3x3 pad=1 groups=6 layout=nchw dtype=fp16 exits=genstats+amax",
        "conv n=2 c=8 hw=8x10 k=8 rs=3x3 pad=1 stride=2 groups=8 dir=dgrad dtype=bf16 epilogue=relu_bwd exits=sum",
    ],
)
def test_depthwise(raced: Runtime, line: str) -> None:
    check_exact(raced, DEPTHWISE, parse_case(line).graph(), length=LENGTH, arch=SM_80)
