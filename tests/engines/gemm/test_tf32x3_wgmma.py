"""Products of FLOAT by three TF32 products on wgmma: tiles, operands, directions, policies; see ``test_tf32x3``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.driver import open_driver
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, KnobType, NumericalNote
from lowdnn.graph.layouts import Layout
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.support.builders import matmul_graph
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_close, check_exact
from tests.support.runtime import open_runtime

MATMUL = engine_named("matmul_wgmma_tf32x3")
CONVOLUTIONS = {way: engine_named(f"conv_{way}_wgmma_tf32x3") for way in ("fprop", "dgrad")}
LAYOUTS = (Layout.ROW_MAJOR, Layout.TRANSPOSED)
#: A device with so few multiprocessors that each block has several tiles.
SMALL = SM_90A.with_sm_count(3)
#: (TILE_M, TILE_N, WARP_SPEC_CFG): warpgroups with one part of 64 rows and with several, alone and by turns.
TILES = ((128, 16, 0), (256, 8, 0), (64, 24, 1), (64, 32, 2))


def tile(m: int, n: int, warps: int, **others: int) -> dict[KnobType, int]:
    chosen = {"TILE_M": m, "TILE_N": n, "WARP_SPEC_CFG": warps, "STAGES": 2} | others
    return {KnobType[name]: value for name, value in chosen.items()}


@paired(("shape", TILES), ("a", LAYOUTS), ("b", LAYOUTS), ("splits", (1, 2)), ("swap", (0, 1)))
def test_tiles_and_layouts(
    racing: Runtime, shape: tuple[int, int, int], a: Layout, b: Layout, splits: int, swap: int
) -> None:
    graph = matmul_graph((), 70, 40, 72, data_type=DataType.FLOAT, a_layout=a, b_layout=b)
    choices = tile(*shape, SPLIT_K_SLC=splits, SWAP_AB=swap)
    plan = check_exact(racing, MATMUL, graph, length=72, choices=choices, arch=SMALL)
    assert plan.numerical_notes == (NumericalNote.TF32X3,)
    check_close(racing, MATMUL, graph, length=72, choices=choices, arch=SMALL)


@pytest.mark.parametrize("cluster", ["TILE_CGA_M", "TILE_CGA_N", "TILE_CGA_K"])
def test_clusters(racing: Runtime, cluster: str) -> None:
    """Blocks share the parts of both operands, or the k of a tile."""
    graph = matmul_graph((), 70, 24, 72, data_type=DataType.FLOAT)
    check_exact(racing, MATMUL, graph, length=72, choices=tile(64, 16, 1, **{cluster: 2}), arch=SMALL)


@pytest.mark.parametrize(
    "line", ["matmul b=2x3 bb=1x3 m=20 n=24 k=40", "matmul b=2 m=5 n=7 k=1", "matmul m=64 n=8 k=6 epilogue=relu"]
)
def test_batches_and_epilogues(device: Runtime, line: str) -> None:
    case = parse_case(f"{line} dtype=fp32")
    check_exact(device, MATMUL, case.graph(), length=case.length)


@pytest.mark.parametrize(
    "line",
    [
        "n=2 c=40 hw=7x6 k=24 rs=3x3 pad=1",
        "n=2 c=12 hw=7x6 k=20 rs=3x2 pad=1x0 layout=nchw epilogue=relu",
        "n=1 c=40 hw=9x8 k=8 rs=3x3 pad=1 stride=2 dil=1x2",
        "n=1 c=64 hw=5x4 k=64 rs=3x3 pad=1 groups=2",
        "n=2 c=3 hw=11 k=130 rs=5 pad=2 mode=flipped",
    ],
)
@pytest.mark.parametrize("direction", CONVOLUTIONS)
def test_convolutions(device: Runtime, direction: str, line: str) -> None:
    line = line.replace(" epilogue=relu", "") if direction == "dgrad" else line
    case = parse_case(f"conv {line} dir={direction} dtype=fp32")
    engine, choices = CONVOLUTIONS[direction], {KnobType.STAGES: 2}
    plan = check_exact(device, engine, case.graph(), length=case.length, choices=choices, arch=SMALL)
    assert plan.numerical_notes == (NumericalNote.TF32X3,)
    check_close(device, engine, case.graph(), length=case.length, choices=choices, arch=SMALL)


@pytest.mark.parametrize(
    ("line", "choices"),
    [
        ("n=2 c=40 hw=6x7 k=24 rs=2x1 pad=1x0 stride=2x1", tile(64, 64, 1)),
        ("n=2 c=8 hw=6x6 k=130 rs=1x1 layout=nchw", tile(256, 64, 0, SPLIT_K_SLC=2)),
    ],
)
def test_gradients_of_filters(racing: Runtime, line: str, choices: dict[KnobType, int]) -> None:
    """Both operands are transposed by the warps that multiply them."""
    case, engine = parse_case(f"conv {line} dir=wgrad dtype=fp32"), engine_named("conv_wgrad_wgmma_tf32x3")
    plan = check_exact(racing, engine, case.graph(), length=case.length, choices=choices, arch=SMALL)
    assert plan.numerical_notes == (NumericalNote.TF32X3,)
    check_close(racing, engine, case.graph(), length=case.length, choices=choices, arch=SMALL)


def test_rows_of_a_convolution_are_pixels() -> None:
    """Pixels go through registers, whichever side of the output they make up."""
    graph = parse_case("conv n=2 c=40 hw=7x6 k=24 rs=3x3 pad=1 layout=nchw dtype=fp32").graph()
    with pytest.raises(BadParamError, match=r"SWAP_AB: expected one of \[1\], got 0"):
        CONVOLUTIONS["fprop"].plan(graph, SM_90A, {KnobType.SWAP_AB: 0})


def test_other_devices_are_refused() -> None:
    refusal = MATMUL.refuse(matmul_graph((), 8, 8, 8, data_type=DataType.FLOAT), SM_80)
    assert refusal is not None
    assert "sm_90a" in refusal.reason


def test_tiles_leave_registers_for_fragments() -> None:
    graph = matmul_graph((), 512, 512, 512, data_type=DataType.FLOAT)
    with pytest.raises(BadParamError, match="accumulators"):
        MATMUL.plan(graph, SM_90A, tile(128, 192, 0))


@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(7),early,races", "fuzz(3),late,races"])
@pytest.mark.parametrize(
    ("direction", "shape"),
    [("fprop", (128, 8, 0)), ("fprop", (256, 8, 0)), ("dgrad", (128, 8, 0)), ("wgrad", (64, 64, 1))],
)
def test_policies(policy: str, direction: str, shape: tuple[int, int, int], kernel_cache_dir: Path) -> None:
    case = parse_case(f"conv n=1 c=40 hw=9x8 k=8 rs=1x3 pad=0x1 dir={direction} dtype=fp32")
    engine = engine_named(f"conv_{direction}_wgmma_tf32x3")
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        check_exact(runtime, engine, case.graph(), length=case.length, choices=tile(*shape), arch=SMALL)


@pytest.mark.parametrize(
    ("line", "tiles"),
    [
        ("c=512 hw=14x14 k=512", {(128, 128, 0), (64, 128, 1)}),
        ("c=128 hw=28x28 k=128", {(64, 128, 1)}),
        ("c=256 hw=14x14 k=256", {(128, 128, 0)}),
        ("c=64 hw=56x56 k=64", {(256, 64, 0)}),
    ],
)
def test_tiles_are_those_measured_fastest(line: str, tiles: set[tuple[int, int, int]]) -> None:
    graph = parse_case(f"conv n=32 {line} rs=3x3 pad=1 dtype=fp32").graph()
    defaults = {knob.type: knob.default for knob in CONVOLUTIONS["fprop"].knobs(graph, SM_90A)}
    assert tuple(defaults[name] for name in (KnobType.TILE_M, KnobType.TILE_N, KnobType.WARP_SPEC_CFG)) in tiles


@pytest.mark.parametrize(
    ("line", "shape", "measured_us"),
    [
        ("conv n=32 c=128 hw=112x112 k=128 rs=3x3 pad=1", (128, 128, 0), 877),
        ("conv n=32 c=128 hw=112x112 k=128 rs=3x3 pad=1", (256, 64, 0), 1205),
        ("conv n=32 c=512 hw=28x28 k=512 rs=3x3 pad=1", (64, 128, 1), 1158),
        ("matmul m=4096 n=4096 k=4096 layout=nt", (128, 128, 0), 1085),
    ],
)
def test_estimates_are_near_the_times_of_an_h200(line: str, shape: tuple[int, int, int], measured_us: float) -> None:
    engine = CONVOLUTIONS["fprop"] if line.startswith("conv") else MATMUL
    choices = tile(*shape, STAGES=4, SPLIT_K_SLC=1, TILE_CGA_M=1, TILE_CGA_N=1)
    plan = engine.plan(parse_case(f"{line} dtype=fp32").graph(), SM_90A, choices)
    assert plan_us(plan, SM_90A) == pytest.approx(measured_us, rel=0.08)
