from __future__ import annotations

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.engines.conv.wgmma.conv_dgrad_wgmma import ConvDgradWgmma
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.pairs import in_turn, paired
from tests.support.running import check_exact

ENGINE = ConvDgradWgmma()
#: A device with so few multiprocessors that each block has several tiles.
SMALL = SM_90A.with_sm_count(3)
#: Choices for both layouts of the filter, whatever the other knobs.
TILE = {"TILE_M": 64, "TILE_N": 64, "STAGES": 2, "WARP_SPEC_CFG": 1}


def check(device: Runtime, line: str, **choices: int) -> Plan:
    """Runs a case in the direction of the data gradient; ``choices``: knobs by name."""
    case = parse_case(f"{line} dir=dgrad")
    chosen = {KnobType[name]: value for name, value in choices.items()}
    return check_exact(device, ENGINE, case.graph(), length=case.length, choices=chosen, arch=SMALL)


@paired(
    ("dtype", ["bf16", "fp16", "fp32", "e4m3 out=bf16"]),
    ("layout", ["nhwc", "nchw"]),
    ("stride", [1, 2]),
)
def test_types_and_layouts(device: Runtime, dtype: str, layout: str, stride: int) -> None:
    check(device, f"conv n=2 c=40 hw=7x9 k=48 rs=3x3 pad=1 stride={stride} layout={layout} dtype={dtype}")


@pytest.mark.parametrize(
    "line",
    [
        "conv n=2 c=24 hw=19 k=24 rs=4 pad=1 stride=2",
        "conv n=2 c=24 hw=19 k=24 rs=3 pad=2:0 dil=2",
        "conv n=2 c=24 hw=11x8 k=24 rs=3x2 pad=1x3 stride=2x1 dil=2x3",
        "conv n=2 c=64 hw=9x8 k=24 rs=3x4 pad=0:2x1:0 stride=2 mode=flipped",
        "conv n=2 c=64 hw=9x8 k=24 rs=1x1 stride=2",
        "conv n=2 c=8 hw=5x4 k=12 rs=1x1 stride=2",  # classes without taps, channels that end inside 16 bytes
        "conv n=2 c=16 hw=9x8 k=24 rs=2x2 stride=3",
        "conv n=2 c=16 hw=9x10 k=24 rs=3x3 pad=1 stride=2x3 dil=3x2",
        "conv n=2 c=16 hw=2x3 k=24 rs=2x3 stride=4",
        "conv n=1 c=100 hw=5x6 k=24 rs=3x2 pad=1 stride=2",  # classes that begin between multiples of 16 bytes
        "conv n=1 c=24 hw=4x5x6 k=24 rs=3x2x3 pad=1 stride=2x1x2",
        "conv n=1 c=24 hw=4x5x6 k=24 rs=3x3x3 pad=1",
    ],
)
def test_geometry(device: Runtime, line: str) -> None:
    check(device, f"{line} dtype=bf16")


@pytest.mark.parametrize("stride", [1, 2])
def test_few_channels_are_repacked_along_k(device: Runtime, stride: int) -> None:
    plan = check(device, f"conv n=1 c=3 hw=7x9 k=264 rs=3x3 pad=1 stride={stride} dtype=bf16")
    assert any(("FILTER_MN_MAJOR", 0) in kernel.parameters for kernel in plan.kernels)


@pytest.mark.parametrize("depth", [32, 64])
def test_blocks_share_the_k_of_filters(racing: Runtime, depth: int) -> None:
    tile = {"TILE_M": 128, "TILE_N": 96, "STAGES": 3, "WARP_SPEC_CFG": 1, "TILE_CGA_M": 2}
    line = "conv n=2 c=104 hw=11x12 k=40 rs=3x3 pad=1 dtype=bf16"
    plan = check(racing, line, TILEK=depth, SPECFILT=0, SWAP_AB=0, **tile)
    assert plan.launches[-1].cluster == (2, 1, 1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("stride", [1, 2])
def test_groups(device: Runtime, dtype: str, stride: int) -> None:
    check(device, f"conv n=2 c=80 hw=6x7 k=128 rs=3x3 pad=1 stride={stride} groups=2 dtype={dtype}")


@paired(
    ("swap", [0, 1]),
    ("stride", [1, 2]),
    ("layout", ["nhwc", "nchw"]),
)
def test_alpha_beta_and_tiles_across_the_output(device: Runtime, swap: int, stride: int, layout: str) -> None:
    line = f"conv n=2 c=72 hw=8x6 k=64 rs=3x3 pad=1 stride={stride} layout={layout} alpha=2 beta=1 dtype=fp16"
    check(device, line, SWAP_AB=swap, SPECFILT=0, **TILE)


@pytest.mark.parametrize("line", ["c=40 k=32 dtype=bf16", "c=24 k=96 stride=2 dtype=fp16", "c=24 k=36 dtype=fp32"])
@pytest.mark.parametrize("swap", [0, 1])
def test_depths_of_a_stage(racing: Runtime, line: str, swap: int) -> None:
    depth = 16 if "fp32" in line else 32
    check(racing, f"conv n=2 hw=7x9 rs=3x3 pad=1 {line}", TILEK=depth, SWAP_AB=swap, **TILE)


@pytest.mark.parametrize(
    ("line", "swap"),
    in_turn(
        [
            "conv n=2 c=64 hw=10x9 k=72 rs=3x3 pad=1 dtype=bf16",
            "conv n=2 c=72 hw=5x9 k=64 rs=3x5 pad=0:2x1:0 dtype=fp16 mode=flipped beta=1",
            "conv n=2 c=64 hw=20 k=64 rs=3 pad=4 dtype=fp16",
            "conv n=2 c=24 hw=4x9 k=24 rs=1x2 dil=1x3 dtype=fp32",
            "conv n=2 c=72 hw=4x5x6 k=64 rs=3x1x1 pad=1x0x0 dtype=bf16",
            "conv n=2 c=96 hw=6x7 k=128 rs=3x3 groups=2 dtype=bf16",
        ],
        (0, 1),
    ),
)
def test_windows(device: Runtime, line: str, swap: int) -> None:
    check(device, line, SPECFILT=1, SWAP_AB=swap, **TILE)


@pytest.mark.parametrize(
    ("line", "swap"),
    in_turn(
        [
            "conv n=3 c=64 hw=9x10 k=64 rs=3x3 pad=6 dil=6 dtype=bf16",
            "conv n=2 c=72 hw=9x8 k=64 rs=3x3 pad=3 dil=3 mode=flipped alpha=2 beta=1 dtype=fp16",
            "conv n=2 c=24 hw=4x5 k=24 rs=3x3 pad=9 dil=9 dtype=bf16",
            "conv n=2 c=24 hw=13x11 k=40 rs=3x2 pad=4:6x1:3 dil=3x4 stride=2x1 dtype=bf16",
            "conv n=2 c=24 hw=10x9 k=40 rs=5x4 pad=6x1 dil=3x2 stride=2x3 dtype=fp32",
            "conv n=4 c=40 hw=21 k=96 rs=5 pad=8 dil=4 dtype=e4m3 out=bf16",
            "conv n=1 c=64 hw=4x5x6 k=32 rs=3x1x3 pad=2x0x4 dil=2x1x4 epilogue=bias+relu dtype=bf16",
            "conv n=2 c=80 hw=6x7 k=128 rs=3x3 pad=3 dil=3 groups=2 dtype=bf16",
        ],
        (0, 1),
    ),
)
def test_split_edges(device: Runtime, line: str, swap: int) -> None:
    plan = check(device, line, EDGE=1, SPECFILT=0, SWAP_AB=swap, **TILE)
    whole = ENGINE.plan(parse_case(f"{line} dir=dgrad").graph(), SMALL, {KnobType.EDGE: 0})
    assert dict(plan.kernels[-1].parameters)["PIXEL_CLASSES"] >= dict(whole.kernels[-1].parameters)["PIXEL_CLASSES"]


def test_split_edges_in_clusters(racing: Runtime) -> None:
    line = "conv n=3 c=104 hw=9x10 k=40 rs=3x3 pad=6 dil=6 dtype=bf16"
    tile = {"TILE_M": 128, "TILE_N": 64, "STAGES": 3, "WARP_SPEC_CFG": 1, "SWAP_AB": 0}
    for cluster in ("TILE_CGA_M", "TILE_CGA_N"):
        check(racing, line, EDGE=1, SPECFILT=0, **tile, **{cluster: 2})


def test_filters_that_stay_in_shared_memory(racing: Runtime) -> None:
    line = "conv n=2 c=64 hw=20x19 k=64 rs=3x3 pad=1 dtype=bf16"
    check(racing, line, SPECFILT=2, SWAP_AB=1, TILE_M=64, TILE_N=128, STAGES=2, WARP_SPEC_CFG=1)
    line = "conv n=1 c=24 hw=20x19 k=80 rs=1x1 dtype=bf16"
    check(racing, line, SPECFILT=1, SWAP_AB=0, TILE_M=128, TILE_N=32, STAGES=2, WARP_SPEC_CFG=1)


@pytest.mark.parametrize(
    "line",
    [
        "conv n=6 c=200 hw=9x8 k=64 rs=3x3 pad=1 stride=2 dtype=bf16",
        "conv n=3 c=40 hw=19 k=24 rs=4 pad=1 stride=2 dtype=e4m3 out=bf16",
        "conv n=2 c=40 hw=4x5x6 k=24 rs=3x2x3 pad=1 stride=2x1x2 dtype=fp32",
        "conv n=2 c=96 hw=9x8 k=40 rs=1x1 stride=2 epilogue=bias+relu dtype=fp16",
    ],
)
def test_classes_are_stored_as_pixels(device: Runtime, line: str) -> None:
    plan = check(device, line, SWAP_AB=0, TILE_M=64, TILE_N=128, STAGES=4, WARP_SPEC_CFG=1)
    assert "pixels" in plan.kernels[-1].name


def test_parts_of_k(device: Runtime) -> None:
    plan = check(device, "conv n=2 c=72 hw=8x6 k=64 rs=3x3 pad=1 dtype=bf16", SPLIT_K_SLC=3, SPECFILT=0)
    assert plan.kernels[-1].name.startswith("gemm_split_k_reduce")


def test_classes_are_one_launch_and_multiply_no_zeros() -> None:
    graph = parse_case("conv n=2 c=64 hw=8x8 k=64 rs=3x3 pad=1 stride=2 dtype=bf16 dir=dgrad").graph()
    plan = ENGINE.plan(graph, SM_90A, {KnobType.TILE_M: 64, KnobType.TILE_N: 64, KnobType.SWAP_AB: 0})
    assert len(plan.launches) == 1
    assert plan.work.flops == 2 * 64 * 64 * 64 * (4 + 2 + 2 + 1)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_scheduling_policy(scheduled: Runtime, stride: int) -> None:
    check(scheduled, f"conv n=2 c=64 hw=9x8 k=24 rs=3x3 pad=1 stride={stride} dtype=bf16")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("conv n=1 c=8 hw=20x20 k=8 rs=9x9 stride=9 dtype=fp16", "residues, got 81"),
        (
            "conv n=1 c=8 hw=20x20 k=8 rs=3x3 pad=1 groups=2 dtype=fp16",
            "at least 64 bytes of channels, got 8",
        ),
        ("conv n=1 c=8 hw=4x4x4 k=64 rs=2x2x2 groups=2 dtype=fp32", "expected 1 with 3 spatial axes of this type"),
    ],
)
def test_refusals_name_field_limit_and_value(line: str, reason: str) -> None:
    assert reason in str(ENGINE.refuse(parse_case(f"{line} dir=dgrad").graph(), SM_90A))
