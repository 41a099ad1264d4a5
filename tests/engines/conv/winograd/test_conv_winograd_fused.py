"""Winograd's filtering in one kernel: types, directions, layouts, tiles, tails, error bounds, and what it refuses."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec, spec_named
from lowdnn.arch.targets import GENERATIONS
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.base import OptIn
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import ConvolutionMode, DataType, HeurMode, KnobType, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.runtime.compile import machine_arch_of
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_case, check_close, run_plan
from tests.support.runtime import open_runtime
from tools.assemble import assemble

COARSE, TRUE = "conv_winograd_fused_2x2", "conv_winograd_fused_2x2_fp32"
#: The greatest root mean square of errors in units of that of a direct sum in fp32.
MOST_TIMES_DIRECT = 4.0


@paired(
    ("tile_n", (32, 64)),
    ("data_type", ("fp16", "bf16", "fp32")),
    ("direction", ("fprop", "dgrad")),
    ("layout", ("nhwc", "nchw")),
    ("extents", ("n=2 c=72 hw=9x7 k=12 pad=1", "n=1 c=3 hw=5x10 k=67 pad=0x2", "n=3 c=8 hw=12x12 k=8 pad=1")),
)
def test_types_directions_and_widths(
    device: Runtime, tile_n: int, data_type: str, direction: str, layout: str, extents: str
) -> None:
    line = f"conv {extents} rs=3x3 dir={direction} layout={layout} dtype={data_type}"
    plan = check_case(device, engine_named(COARSE), line, choices={KnobType.TILE_N: tile_n})
    assert {*plan.numerical_notes} <= {*engine_named(COARSE).numerical_notes}


@paired(("direction", ("fprop", "dgrad")), ("layout", ("nhwc", "nchw")))
def test_true_fp32(device: Runtime, direction: str, layout: str) -> None:
    """Its error is at most four times that of a direct sum in fp32."""
    case = parse_case(f"conv n=2 c=40 hw=11x8 k=33 rs=3x3 pad=1 dir={direction} layout={layout} dtype=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (exact,) = evaluate(graph, inputs).values()
    errors = []
    for name in (TRUE, "conv_direct"):
        (found,) = run_plan(device, engine_named(name).plan(graph, SM_90A, {}), graph, inputs).values()
        errors.append(float(np.sqrt(np.mean((found.astype(np.float64) - exact) ** 2))))
    assert errors[0] <= MOST_TIMES_DIRECT * errors[1]


@pytest.mark.parametrize(
    "extents", ["n=1 c=1 hw=1x1 k=1 pad=1", "n=1 c=5 hw=3x2 k=2 pad=4x3", "n=2 c=4 hw=3x3 k=6 pad=0"]
)
def test_one_pixel_and_wide_padding(device: Runtime, extents: str) -> None:
    for direction in ("fprop", "dgrad"):
        check_case(device, engine_named(COARSE), f"conv {extents} rs=3x3 dir={direction} dtype=fp16")


def test_strides_epilogue_and_a_flipped_filter(device: Runtime) -> None:
    geometry = Convolution(DataType.FLOAT, 2, (2, 0), (1, 1), (1, 1), (1, 1), mode=ConvolutionMode.CONVOLUTION)
    builder = CaseBuilder(Layout.CHANNELS_LAST, alignment_bytes=2)
    x = builder.tensor((2, 5, 9, 8), DataType.HALF, strides=(2000, 300, 31, 2))
    w = builder.tensor((7, 5, 3, 3), DataType.HALF)
    bias = builder.tensor((1, 7, 1, 1), DataType.HALF)
    value = builder.convolution(x, w, geometry=geometry)
    value = builder.pointwise(PointwiseMode.ADD, value, bias)
    builder.pointwise(PointwiseMode.RELU_FWD, value, store=DataType.HALF, layout=Layout.PADDED)
    check_close(device, engine_named(COARSE), builder.graph(), length=45)


@pytest.mark.parametrize(
    ("channels", "strides"), [(5, (480, 1, 48, 6)), (4, (241, 1, 24, 4)), (4, (480, 1, 49, 8)), (4, (960, 2, 96, 10))]
)
def test_channels_that_are_no_words(device: Runtime, channels: int, strides: tuple[int, ...]) -> None:
    """Odd strides, an odd number of neighbouring channels, and channels that are no neighbours."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((2, channels, 9, 6), DataType.HALF, strides=strides)
    w = builder.tensor((3, channels, 3, 3), DataType.HALF)
    builder.convolution(
        x, w, geometry=Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1)), store=DataType.HALF
    )
    check_close(device, engine_named(COARSE), builder.graph(), length=9 * channels)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_alpha_and_beta(device: Runtime, beta: float) -> None:
    graph = parse_case(f"conv n=1 c=8 hw=6x6 k=8 rs=3x3 pad=2:1x0:1 alpha=2 beta={beta} dir=dgrad dtype=fp32").graph()
    check_close(device, engine_named(TRUE), graph, length=72)


@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(7),early,races"])
def test_policies(policy: str, kernel_cache_dir: Path) -> None:
    """Three chunks of channels; words of channels are copied at once, or element by element."""
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        for line in ("conv n=2 c=72 hw=7x6 k=40 rs=3x3 dtype=fp16", "conv n=1 c=67 hw=7x5 k=9 rs=3x3 dtype=fp16"):
            check_case(runtime, engine_named(COARSE), line, choices={KnobType.TILE_N: 64})
        check_case(runtime, engine_named(TRUE), "conv n=1 c=36 hw=6x7 k=9 rs=3x3 layout=nchw dtype=fp32")


@pytest.mark.parametrize("arch", [generation.target for generation in GENERATIONS])
@pytest.mark.parametrize(("name", "tile_n"), [(COARSE, 64), (TRUE, 32)])
def test_no_registers_are_spilled(name: str, tile_n: int, arch: str) -> None:
    """On the architectures that kernels are written for; each run draws a type, a layout and an epilogue."""
    draw, spec = random.Random(fresh_seed()), spec_named(arch)
    data_type = draw.choice(("fp16", "bf16", "fp32")) if name == COARSE else "fp32"
    words = (
        f"layout={draw.choice(('nhwc', 'nchw'))} epilogue={draw.choice(('bias', 'bias+add+relu'))} dtype={data_type}"
    )
    graph = parse_case(f"conv n=8 c=64 hw=28x28 k=64 rs=3x3 pad=1 {words}").graph()
    *_, fused = engine_named(name).plan(graph, spec, {KnobType.TILE_N: tile_n}).kernels
    figures = assemble(fused, machine_arch_of(fused, spec.compute_capability))
    assert 0 < figures.registers <= 128
    assert figures.spilled == 0, words


def test_the_workspace_holds_the_filter_alone() -> None:
    graph = parse_case("conv n=64 c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=fp16").graph()
    assert engine_named(COARSE).plan(graph, SM_90A, {}).workspace_bytes == 16 * 64 * 64 * 2


@pytest.mark.parametrize("arch", [SM_80, SM_90A])
@pytest.mark.parametrize(
    ("name", "data_type", "mode"),
    [(COARSE, "fp16", HeurMode.A), (TRUE, "fp32", HeurMode.A), (TRUE, "fp32", HeurMode.FALLBACK)],
)
def test_nobody_gets_it_unasked(name: str, data_type: str, mode: HeurMode, arch: ArchSpec) -> None:
    graph = parse_case(f"conv n=64 c=256 hw=56x56 k=256 rs=3x3 pad=1 dtype={data_type}").graph()
    engines = [found.engine for found in rank(graph, arch, mode, ENGINES).candidates]
    assert name in {engine.name for engine in engines}
    on_request = [isinstance(engine, OptIn) for engine in engines]
    assert on_request == sorted(on_request)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=8 hw=9x9 k=8 rs=5x5 dtype=fp16", "expected 3 x 3 taps, got [5, 5]"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 stride=2 dtype=fp16", "strides, dilations: expected 1, got [2, 2], [1, 1]"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 dir=wgrad dtype=fp16", "expected an output or a gradient of the data"),
        ("n=1 c=1 hw=1x1 k=100000000 rs=3x3 pad=1 dtype=fp16", "tiles of all channels, got 3200000000"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=int8", "expected one of HALF, BFLOAT16, FLOAT, got INT8"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    refusal = engine_named(COARSE).refuse(parse_case(f"conv {line}").graph(), SM_90A)
    assert refusal is not None
    assert reason in refusal.reason
