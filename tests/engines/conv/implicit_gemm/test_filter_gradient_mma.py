"""``conv_implicit_gemm_mma``'s backward filter: a forward convolution over tensors with exchanged axes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.driver import open_driver
from lowdnn.engines.conv.implicit_gemm.conv_implicit_gemm_mma import ConvImplicitGemmMma
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.running import check_close, check_exact
from tests.support.runtime import open_runtime

ENGINE = ConvImplicitGemmMma()
LAYOUTS = ("nhwc", "nchw")

#: Outputs are taps of the forward convolution: here they are too many for masks.
WIDE = (
    "n=2 c=8 hw=68x3 k=8 rs=3x2 pad=1",
    "n=3 c=6 hw=99 k=5 rs=5 stride=2 pad=1:3 dil=2",
    "n=2 c=8 hw=11x2x13 k=8 rs=2x1x3 pad=1x0x1 stride=1x2x1",
)
GEOMETRIES = (
    "n=4 c=12 hw=7x6 k=16 rs=3x3 pad=1",
    "n=8 c=8 hw=9x11 k=8 rs=3x2 stride=2x3 pad=0:1x2:0",
    "n=3 c=4 hw=13x10 k=8 rs=3x3 stride=4x2 dil=2x3 pad=3",
    "n=1 c=16 hw=12x12 k=24 rs=4x4 stride=4",
    "n=2 c=5 hw=11x9 k=7 rs=1x1 stride=3",  # no tap reads the end of x
    "n=2 c=8 hw=2x2 k=8 rs=3x3 pad=6:1",  # padding longer than taps reach
    "n=16 c=6 hw=19 k=5 rs=5 stride=2 pad=1:3 dil=2",
    "n=2 c=8 hw=5x6x7 k=8 rs=3x2x3 stride=1x2x2 pad=1x0x2",
    *WIDE,
)


def run(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    """Integer data must match the reference bit for bit."""
    case = parse_case(f"conv {line} dir=wgrad")
    return check_exact(device, ENGINE, case.graph(), length=case.length, choices=choices)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_geometries(device: Runtime, geometry: str, layout: str) -> None:
    run(device, f"{geometry} layout={layout} dtype=fp16")


@pytest.mark.parametrize("types", ["bf16 out=fp32", "fp32"])
def test_data_types(device: Runtime, types: str) -> None:
    run(device, f"n=4 c=12 hw=7x6 k=16 rs=3x3 pad=1 stride=2x1 dtype={types}")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_alpha_beta_and_an_epilogue(device: Runtime, layout: str) -> None:
    line = f"n=4 c=8 hw=9x8 k=16 rs=3x3 pad=1 layout={layout} dtype=bf16 out=fp32"
    run(device, f"{line} alpha=2 beta=-3 epilogue=store+residual+bias+scalar")


def test_split_depths(device: Runtime) -> None:
    choices = {KnobType.TILE_M: 64, KnobType.TILE_N: 64, KnobType.STAGES: 3, KnobType.SPLIT_K_SLC: 4}
    plan = run(device, "n=4 c=8 hw=10x10 k=16 rs=3x3 pad=1 dtype=fp16", choices)
    assert len(plan.launches) == 4  # both operands are repacked


@pytest.mark.parametrize("policy", ["warp-serial(7)", "cta-reverse", "fuzz(7),early,races"])
def test_policies(kernel_cache_dir: Path, policy: str) -> None:
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        run(runtime, "n=4 c=16 hw=9x7 k=24 rs=3x3 pad=1 stride=2x1 dtype=bf16")


@pytest.mark.parametrize("line", WIDE)
def test_wide_images_race_free(racing: Runtime, line: str) -> None:
    choices = {KnobType.TILE_M: 32, KnobType.TILE_N: 32, KnobType.STAGES: 2, KnobType.SPLIT_K_SLC: 2}
    plan = run(racing, f"{line} dtype=fp16", choices)
    assert "TapBounds" in [dict(kernel.parameters).get("TAPS_INSIDE") for kernel in plan.kernels]


def test_real_values(device: Runtime) -> None:
    case = parse_case("conv n=4 c=16 hw=12x12 k=32 rs=3x3 pad=1 stride=2 dir=wgrad dtype=bf16")
    check_close(device, ENGINE, case.graph(), length=case.length)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=16 hw=6x6 k=16 rs=3x3 groups=2", "expected one group, got 2"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 mode=flipped", "expected CROSS_CORRELATION, got CONVOLUTION"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    refusal = ENGINE.refuse(parse_case(f"conv {line} dir=wgrad dtype=fp16").graph(), SM_90A)
    assert refusal is not None
    assert reason in refusal.reason
