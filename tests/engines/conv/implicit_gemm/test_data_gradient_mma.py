"""``conv_implicit_gemm_mma``'s backward data: forward convolutions over parts of the tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.driver import open_driver
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_close, check_exact
from tests.support.runtime import open_runtime

ENGINE = ConvImplicitGemmMma()
LAYOUTS = ("nhwc", "nchw")

#: Filters that are too wide for masks of taps.
WIDE = (
    "n=1 c=8 hw=40x3 k=4 rs=33x3 pad=2:5x1",
    "n=1 c=12 hw=75 k=8 rs=70 pad=9 stride=2 dil=1 mode=flipped",
)
GEOMETRIES = (
    "n=2 c=12 hw=7x6 k=16 rs=3x3 pad=1",
    "n=1 c=8 hw=9x11 k=8 rs=3x2 stride=2x3 pad=0:1x2:0",
    "n=1 c=4 hw=13x10 k=8 rs=3x3 stride=4x2 dil=2x3 pad=3",  # strides and dilations with common divisors
    "n=1 c=16 hw=12x12 k=24 rs=4x4 stride=4",
    "n=2 c=8 hw=11x9 k=4 rs=1x1 stride=3",  # classes without taps
    "n=1 c=8 hw=3x4 k=8 rs=2x2 stride=7 pad=1",  # a stride past the image
    "n=1 c=8 hw=6x6 k=8 rs=2x2 pad=4",  # positions that begin inside dy
    "n=1 c=5 hw=9x7 k=7 rs=3x2 pad=1 dil=2x1 stride=1x2 mode=flipped",
    "n=2 c=6 hw=19 k=5 rs=5 stride=2 pad=1:3 dil=2",
    "n=1 c=8 hw=5x6x7 k=8 rs=3x2x3 stride=1x2x2 pad=1x0x2 mode=flipped",
    *WIDE,
)


def run(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    """Integer data must match the reference bit for bit."""
    case = parse_case(f"conv {line} dir=dgrad")
    return check_exact(device, ENGINE, case.graph(), length=case.length, choices=choices)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometries(device: Runtime, geometry: str, layout: str) -> None:
    run(device, f"{geometry} layout={layout} dtype=fp16")


@pytest.mark.parametrize("data_type", ["bf16", "fp32"])
def test_data_types(device: Runtime, data_type: str) -> None:
    run(device, f"n=2 c=12 hw=7x6 k=16 rs=3x3 pad=1 stride=2x1 dtype={data_type}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_alpha_beta_and_an_epilogue_meet_the_same_pixels(device: Runtime, layout: str) -> None:
    line = f"n=2 c=8 hw=9x8 k=16 rs=3x3 pad=1 stride=2 layout={layout} dtype=bf16 out=fp32"
    run(device, f"{line} alpha=2 beta=-3 epilogue=store+relu_bwd+bias+scalar")


def test_split_depths(device: Runtime) -> None:
    choices = {KnobType.TILE_M: 64, KnobType.TILE_N: 64, KnobType.STAGES: 3, KnobType.SPLIT_K_SLC: 2}
    plan = run(device, "n=1 c=8 hw=8x8 k=64 rs=3x3 pad=1 stride=2 dtype=fp16", choices)
    assert len(plan.launches) > 2 * 4


def test_one_class_is_one_product_behind_the_repacked_filter(device: Runtime) -> None:
    plan = run(device, "n=1 c=16 hw=8x8 k=32 rs=3x3 pad=1 dtype=fp16")
    assert len(plan.launches) == 2


@pytest.mark.parametrize("policy", ["warp-serial(7)", "cta-reverse", "fuzz(7),early,races"])
def test_policies(kernel_cache_dir: Path, policy: str) -> None:
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        run(runtime, "n=2 c=16 hw=9x7 k=24 rs=3x3 pad=1 stride=2x1 dtype=bf16 epilogue=relu_bwd")


@pytest.mark.parametrize("line", WIDE)
def test_wide_filters_race_free(racing: Runtime, line: str) -> None:
    run(racing, f"{line} dtype=fp16")


def test_real_values(device: Runtime) -> None:
    case = parse_case("conv n=2 c=16 hw=12x12 k=32 rs=3x3 pad=1 stride=2 dir=dgrad dtype=bf16")
    check_close(device, ENGINE, case.graph(), length=case.length)


def residual_graph(padding: int) -> OperationGraph:
    """dx = conv_dgrad(dy, w) + dy."""
    dims = (1, 8, 6, 6)
    geometry = Convolution(DataType.FLOAT, 2, (padding,) * 2, (2 - padding,) * 2, (1, 1), (1, 1))
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    dy, w = builder.tensor(dims, DataType.HALF), builder.tensor((8, 8, 3, 3), DataType.HALF)
    dx = builder.convolution_data_gradient(dy, w, dims, geometry=geometry)
    builder.pointwise(PointwiseMode.ADD, dx, dy, store=DataType.HALF)
    return builder.graph()


def test_an_epilogue_that_reads_dy(device: Runtime) -> None:
    for padding in (0, 1, 2):
        check_exact(device, ENGINE, residual_graph(padding), length=72)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=16 hw=6x6 k=16 rs=3x3 groups=2", "expected one group, got 2"),
        ("n=1 c=8 hw=40x40 k=8 rs=3x3 stride=9", "at most 64 residue classes of pixels, got 81"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    for arch in (SM_80, SM_90A):
        refusal = ENGINE.refuse(parse_case(f"conv {line} dir=dgrad dtype=fp16").graph(), arch)
        assert refusal is not None
        assert reason in refusal.reason
