"""``conv_direct``'s backward data and backward filter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.driver import open_driver
from lowdnn.engines.conv.direct.conv_direct import ConvDirect
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import Status
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_close, check_exact
from tests.support.runtime import open_runtime

ENGINE = ConvDirect()
DIRECTIONS = ("dgrad", "wgrad")
LAYOUTS = ("nhwc", "nchw")

GEOMETRIES = (
    "n=2 c=5 hw=7x6 k=6 rs=3x3 pad=1",
    "n=1 c=8 hw=9x11 k=8 rs=3x2 stride=2x3 pad=0:1x2:0",
    "n=1 c=4 hw=13x10 k=4 rs=3x3 stride=4x2 dil=2x3 pad=3",  # strides and dilations with common divisors
    "n=1 c=3 hw=12x12 k=5 rs=4x4 stride=4",
    "n=2 c=3 hw=11x9 k=4 rs=1x1 stride=3",  # classes without taps
    "n=1 c=3 hw=3x4 k=2 rs=2x2 stride=7 pad=1",  # a stride past the image
    "n=1 c=6 hw=8x8 k=9 rs=3x3 pad=1 groups=3",
    "n=2 c=4 hw=6x5 k=4 rs=3x3 pad=1 groups=4 stride=2",
    "n=1 c=4 hw=9x7 k=4 rs=3x2 pad=1 dil=2x1 stride=1x2 mode=flipped",
    "n=2 c=6 hw=19 k=5 rs=5 stride=2 pad=1:3 dil=2",
    "n=1 c=3 hw=5x6x7 k=4 rs=3x2x3 stride=1x2x2 pad=1x0x2 mode=flipped",
    "n=1 c=70 hw=3x3 k=20 rs=2x2",
)


def run(device: Runtime, line: str, choices: dict[KnobType, int] | None = None) -> Plan:
    """Integer data must match the reference bit for bit."""
    case = parse_case("conv " + line)
    return check_exact(device, ENGINE, case.graph(), length=case.length, choices=choices)


@paired(
    ("direction", DIRECTIONS),
    ("layout", LAYOUTS),
    ("geometry", GEOMETRIES),
)
def test_geometries(device: Runtime, geometry: str, layout: str, direction: str) -> None:
    run(device, f"{geometry} layout={layout} dir={direction}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("types", ["fp64", "fp16 compute=fp16", "bf16 out=fp32", "e5m2 out=bf16", "e4m3 compute=fp64"])
def test_data_types(device: Runtime, types: str, direction: str) -> None:
    run(device, f"n=2 c=5 hw=7x6 k=6 rs=3x3 pad=1 stride=1x2 dir={direction} dtype={types}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alpha_beta_and_an_epilogue(device: Runtime, layout: str, direction: str) -> None:
    geometry = f"n=2 c=8 hw=9x8 k=12 rs=3x3 pad=1 stride=2x1 groups=2 dir={direction} layout={layout} dtype=bf16"
    run(device, f"{geometry} out=fp32 alpha=2 beta=-3 epilogue=store+relu_bwd+bias")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_mixed_layouts(device: Runtime, direction: str) -> None:
    builder = CaseBuilder(Layout.PADDED)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (2, 1), (1, 1))
    dy = builder.tensor((2, 6, 4, 8), DataType.HALF, layout=Layout.TRANSPOSED)
    if direction == "dgrad":
        w = builder.tensor((6, 5, 3, 3), DataType.FLOAT, layout=Layout.CHANNELS_LAST)
        builder.convolution_data_gradient(dy, w, (2, 5, 8, 8), geometry=geometry, store=DataType.FLOAT)
    else:
        x = builder.tensor((2, 5, 8, 8), DataType.FLOAT, layout=Layout.CHANNELS_LAST)
        builder.convolution_filter_gradient(x, dy, (6, 5, 3, 3), geometry=geometry, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=64)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("maps", [8, 16, 32, 64, 128])
def test_tiles(device: Runtime, maps: int, direction: str) -> None:
    line = f"n=1 c=20 hw=9x9 k=24 rs=3x3 pad=1 stride=2 dir={direction}"
    plan = run(device, line, {KnobType.TILE_N: maps})
    assert plan.launches[0].block[0] == {8: 32, 16: 64, 32: 128, 64: 256, 128: 256}[maps]


@pytest.mark.parametrize("axes", ["hw=190 rs=3 pad=1", "hw=17x18 rs=2x3 pad=1", "hw=5x7x8 rs=1x3x2 pad=0x1x1"])
@pytest.mark.parametrize("rest", ["dtype=fp16 beta=1", "dtype=fp64 layout=nchw", "epilogue=scale+store+bias"])
def test_slices_of_the_filter_gradient(device: Runtime, rest: str, axes: str) -> None:
    line = f"n=3 c=10 {axes} k=7 dir=wgrad {rest}"
    plan = run(device, line, {KnobType.SPLIT_K_SLC: 2})
    assert len(plan.launches) == 2
    assert plan.workspace_bytes > 0
    whole = run(device, line, {KnobType.SPLIT_K_SLC: 1})
    assert (len(whole.launches), whole.workspace_bytes) == (1, 0)


def test_slices_fill_the_device() -> None:
    graph = parse_case("conv n=32 c=64 hw=56x56 k=64 rs=3x3 pad=1 dir=wgrad").graph()
    plan = ENGINE.plan(graph, SM_90A, {})
    assert plan.launches[0].grid[0] >= 2 * SM_90A.sm_count
    fewer = ENGINE.plan(graph, SM_90A.with_sm_count(20), {})
    assert fewer.workspace_bytes < plan.workspace_bytes


@paired(
    ("direction", DIRECTIONS),
    ("layout", LAYOUTS),
    ("scheduled", POLICIES),
    fixtures=["scheduled"],
)
def test_every_scheduling_policy(scheduled: Runtime, layout: str, direction: str) -> None:
    line = f"n=2 c=10 hw=17x12 k=20 rs=3x2 stride=2x1 pad=1 layout={layout} dir={direction}"
    run(scheduled, line, {KnobType.TILE_N: 16})


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_races(kernel_cache_dir: Path, layout: str, direction: str) -> None:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        run(runtime, f"n=2 c=10 hw=17x18 k=20 rs=3x2 stride=2x1 pad=1 layout={layout} dir={direction}")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("name", "data_type"), [("fp32", DataType.FLOAT), ("bf16", DataType.FLOAT), ("fp64", DataType.DOUBLE)]
)
def test_real_values(device: Runtime, name: str, data_type: DataType, direction: str) -> None:
    case = parse_case(f"conv n=2 c=8 hw=12x12 k=8 rs=3x3 pad=1 stride=2 dir={direction} dtype={name}")
    check_close(device, ENGINE, case.graph(), length=case.length)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_new_extents_are_the_same_kernel(direction: str) -> None:
    case = parse_case(f"conv n=2 c=8 hw=12x12 k=8 rs=3x3 pad=1 stride=2 dir={direction}")
    assert isinstance(case, ConvolutionCase)
    cases = (case, replace(case, hw=(20, 20), rs=(5, 5), stride=(3, 3)))
    plans = [ENGINE.plan(case.graph(), SM_90A, {KnobType.TILE_N: 32}) for case in cases]
    assert plans[0].kernels == plans[1].kernels


def test_refuses_positions_past_32_bits() -> None:
    for direction, image in (("dgrad", "dx"), ("wgrad", "x")):
        graph = parse_case(f"conv n=1 c=1 hw={2**30}x1 k=1 rs=1x1 dir={direction}").graph()
        refusal = ENGINE.refuse(graph, SM_90A)
        assert refusal is not None
        assert refusal.status is Status.NOT_SUPPORTED_SHAPE
        assert f".{image}.dims: expected padded spatial extents of at most {2**30 - 1}, got {2**30}" in refusal.reason
