"""Winograd's filtering: types, directions, layouts, tails, error bounds, notes, and its place in a ranking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A, ArchSpec
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.compare import tolerance_of
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.base import OptIn
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import ConvolutionMode, DataType, HeurMode, KnobType, NumericalNote, PointwiseMode
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.pairs import paired
from tests.support.running import POLICIES, check_case, check_close, run_plan
from tests.support.runtime import open_runtime

COARSE = ("conv_winograd_2x2", "conv_winograd_4x4")
TRUE = ("conv_winograd_2x2_fp32", "conv_winograd_4x4_fp32")
#: The greatest root mean square of errors in units of that of a direct sum in fp32.
MOST_TIMES_DIRECT = 4.0


@paired(
    ("engine", COARSE),
    ("data_type", ("fp16", "bf16", "fp32")),
    ("direction", ("fprop", "dgrad", "wgrad")),
    ("layout", ("nhwc", "nchw")),
    ("extents", ("n=2 c=16 hw=9x7 k=12 pad=1", "n=1 c=3 hw=5x10 k=17 pad=0x2", "n=3 c=8 hw=12x12 k=8 pad=1")),
)
def test_types_and_directions(
    device: Runtime, engine: str, data_type: str, direction: str, layout: str, extents: str
) -> None:
    line = f"conv {extents} rs=3x3 dir={direction} layout={layout} dtype={data_type}"
    plan = check_case(device, engine_named(engine), line)
    assert {*plan.numerical_notes} <= {*engine_named(engine).numerical_notes}


@paired(
    ("engine", TRUE), ("direction", ("fprop", "dgrad", "wgrad")), ("layout", ("nhwc", "nchw")), ("in_parts", (0, 1))
)
def test_true_fp32(device: Runtime, engine: str, direction: str, layout: str, in_parts: int) -> None:
    """Its error is at most four times that of a direct sum in fp32."""
    case = parse_case(f"conv n=2 c=40 hw=11x8 k=33 rs=3x3 pad=1 dir={direction} layout={layout} dtype=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (exact,), errors = evaluate(graph, inputs).values(), []
    own = engine_named(engine).plan(graph, SM_90A, {KnobType.KERNEL_CFG: in_parts})
    for plan in (own, engine_named("conv_direct").plan(graph, SM_90A, {})):
        (found,) = run_plan(device, plan, graph, inputs).values()
        errors.append(float(np.sqrt(np.mean((found.astype(np.float64) - exact) ** 2))))
    assert errors[0] <= MOST_TIMES_DIRECT * errors[1]
    check_close(device, engine_named(engine), graph, length=case.length)


@paired(
    ("engine", TRUE),
    ("direction", ("fprop", "wgrad")),
    ("layout", ("nhwc", "nchw")),
    ("extents", ("n=2 c=40 hw=11x8 k=33 pad=1", "n=3 c=9 hw=13x12 k=10 pad=0x2", "n=1 c=1 hw=1x1 k=1 pad=1")),
)
def test_factors_in_parts(device: Runtime, engine: str, direction: str, layout: str, extents: str) -> None:
    """Rows of tiles and channels that end inside a block, of tensors whose neighbours are channels or columns."""
    line = f"conv {extents} rs=3x3 dir={direction} layout={layout} dtype=fp32"
    plan = check_case(device, engine_named(engine), line, choices={KnobType.KERNEL_CFG: 1})
    assert not any("tf32_split" in kernel.name for kernel in plan.kernels)


@pytest.mark.parametrize("engine", [*COARSE, *TRUE])
def test_one_pixel_and_wide_padding(device: Runtime, engine: str) -> None:
    for extents in ("n=1 c=1 hw=1x1 k=1 pad=1", "n=1 c=5 hw=3x2 k=2 pad=4x3", "n=2 c=4 hw=3x3 k=6 pad=0"):
        for direction in ("fprop", "dgrad", "wgrad"):
            check_case(device, engine_named(engine), f"conv {extents} rs=3x3 dir={direction} dtype=fp32")


@pytest.mark.parametrize("engine", COARSE)
def test_strides_epilogue_and_a_flipped_filter(device: Runtime, engine: str) -> None:
    geometry = Convolution(DataType.FLOAT, 2, (2, 0), (1, 1), (1, 1), (1, 1), mode=ConvolutionMode.CONVOLUTION)
    builder = CaseBuilder(Layout.CHANNELS_LAST, alignment_bytes=2)
    x = builder.tensor((2, 5, 9, 8), DataType.HALF, strides=(2000, 300, 31, 2))
    w = builder.tensor((7, 5, 3, 3), DataType.HALF)
    bias = builder.tensor((1, 7, 1, 1), DataType.HALF)
    value = builder.convolution(x, w, geometry=geometry)
    value = builder.pointwise(PointwiseMode.ADD, value, bias)
    builder.pointwise(PointwiseMode.RELU_FWD, value, store=DataType.HALF, layout=Layout.PADDED)
    check_close(device, engine_named(engine), builder.graph(), length=45)


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_flipped_filters_and_separate_paddings(device: Runtime, direction: str) -> None:
    line = f"conv n=2 c=5 hw=9x8 k=6 rs=3x3 pad=2:0x0:1 mode=flipped dir={direction} dtype=fp32"
    check_case(device, engine_named("conv_winograd_2x2_fp32"), line)


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_alpha_and_beta(device: Runtime, beta: float) -> None:
    graph = parse_case(f"conv n=1 c=8 hw=6x6 k=8 rs=3x3 pad=1 alpha=2 beta={beta} dir=dgrad dtype=fp32").graph()
    check_close(device, engine_named("conv_winograd_4x4_fp32"), graph, length=72)


@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(7),early,races"])
def test_policies(policy: str, kernel_cache_dir: Path) -> None:
    with open_runtime(open_driver("emulated", policy=policy), kernel_cache_dir) as runtime:
        for direction in ("fprop", "wgrad"):
            line = f"conv n=2 c=8 hw=7x6 k=9 rs=3x3 dir={direction} dtype=fp16"
            check_case(runtime, engine_named("conv_winograd_2x2"), line)
        line = "conv n=2 c=9 hw=13x10 k=5 rs=3x3 dir=wgrad dtype=fp32"
        check_case(runtime, engine_named("conv_winograd_4x4_fp32"), line, choices={KnobType.KERNEL_CFG: 1})


def test_fewer_multiplications() -> None:
    graph = parse_case("conv n=8 c=128 hw=64x64 k=128 rs=3x3 pad=1 dtype=fp16").graph()
    direct = 2 * 8 * 64 * 64 * 128 * 128 * 9
    for name, saving in (("conv_winograd_2x2", 2.25), ("conv_winograd_4x4", 4.0)):
        _, _, product, _ = engine_named(name).plan(graph, SM_90A, {}).launches
        assert product.work.flops == pytest.approx(direct / saving, rel=0.05)


def test_error_bounds_are_those_of_the_tiles() -> None:
    graph = parse_case("conv n=1 c=16 hw=8x8 k=16 rs=3x3 dtype=fp16").graph()
    (output,) = graph.outputs
    notes = [(), (NumericalNote.WINOGRAD_TILE_4x4,), (NumericalNote.WINOGRAD_TILE_6x6,)]
    allowed = [tolerance_of(graph, output, own, 144).absolute for own in notes]
    assert allowed[0] < allowed[1] / 100
    assert allowed[2] == pytest.approx(4 * allowed[1], rel=0.01)


@pytest.mark.parametrize("line", ["n=64 c=256 hw=56x56 k=256 dtype=fp32", "n=64 c=512 hw=28x28 k=512 dtype=fp16"])
@pytest.mark.parametrize("arch", [SM_80, SM_90A])
def test_nobody_gets_rounded_factors_unasked(line: str, arch: ArchSpec) -> None:
    graph = parse_case(f"conv {line} rs=3x3 pad=1").graph()
    engines = [found.engine for found in rank(graph, arch, HeurMode.A, ENGINES).candidates]
    assert {*COARSE} <= {engine.name for engine in engines}
    on_request = [isinstance(engine, OptIn) for engine in engines]
    assert on_request == sorted(on_request)


@pytest.mark.parametrize("arch", [SM_80, SM_90A])
@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_layers_in_true_fp32_have_it(arch: ArchSpec, direction: str) -> None:
    """A forward layer took 0.16 of the time of cuDNN's best, and 0.54 of that of products, on an NVIDIA H200."""
    graph = parse_case(f"conv n=32 c=256 hw=56x56 k=256 rs=3x3 pad=1 dir={direction} dtype=fp32").graph()
    best = rank(graph, arch, HeurMode.FALLBACK, ENGINES).best
    assert best is not None
    assert best.engine.name == "conv_winograd_4x4_fp32"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("n=1 c=8 hw=9x9 k=8 rs=5x5 dtype=fp16", "expected 3 x 3 taps, got [5, 5]"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 stride=2 dtype=fp16", "strides, dilations: expected 1, got [2, 2], [1, 1]"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 dil=2 dtype=fp16", "strides, dilations: expected 1, got [1, 1], [2, 2]"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 groups=2 dtype=fp16", "groups: expected 1, got 2"),
        ("n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=int8", "expected one of HALF, BFLOAT16, FLOAT, got INT8"),
        ("n=1 c=8 hw=9x9x9 k=8 rs=3x3x3 dtype=fp16", "expected 3 x 3 taps, got [3, 3, 3]"),
    ],
)
def test_refusals(line: str, reason: str) -> None:
    refusal = engine_named("conv_winograd_2x2").refuse(parse_case(f"conv {line}").graph(), SM_90A)
    assert refusal is not None
    assert reason in refusal.reason


def test_true_fp32_refuses_other_types() -> None:
    refusal = engine_named(TRUE[0]).refuse(parse_case("conv n=1 c=8 hw=9x9 k=8 rs=3x3 dtype=fp16").graph(), SM_90A)
    assert refusal is not None
    assert "expected one of FLOAT, got HALF" in refusal.reason


def test_products_of_true_fp32_are_those_of_wgmma() -> None:
    """Products by wgmma are estimated faster than those by mma.sync, with the split of the filter's factors."""
    graph = parse_case("conv n=32 c=512 hw=28x28 k=512 rs=3x3 pad=1 dtype=fp32").graph()
    kernels = engine_named("conv_winograd_4x4_fp32").plan(graph, SM_90A, {}).kernels
    assert sum(kernel.name.startswith("matmul_wgmma_tf32x3") for kernel in kernels) == 1
