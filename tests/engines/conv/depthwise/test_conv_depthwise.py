from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.conv.depthwise.conv_depthwise import ConvDepthwise
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.builders import matmul_graph
from tests.support.pairs import paired
from tests.support.running import check_close, check_exact, run_plan
from tests.support.runtime import open_runtime
from tests.support.tolerance import assert_exact

ENGINE = ConvDepthwise()
DIRECTIONS = ("fprop", "dgrad", "wgrad")

#: Shapes for every direction, channels-last.
SHAPES = (
    "n=2 c=40 k=40 groups=40 hw=9x17 rs=3x3 pad=1",
    "n=2 c=6 k=6 groups=6 hw=12x10 rs=7x7 pad=3 dtype=bf16",
    "n=2 c=16 k=16 groups=16 hw=11x9 rs=3x3 pad=1 stride=2 dtype=bf16",
    "n=1 c=7 k=21 groups=7 hw=9x17 rs=3x4 pad=1:0x1:2 stride=2x3 dil=2 mode=flipped",
    "n=1 c=8 k=8 groups=8 hw=19x18 rs=3x3 pad=2 dil=3x2 stride=2x4 dtype=fp16",
    "n=2 c=64 k=64 groups=64 hw=23 rs=4 pad=3:0 dtype=bf16",
    "n=1 c=4 k=4 groups=4 hw=5x6x7 rs=2x3x2 pad=1x0x1 mode=flipped",
    "n=1 c=6 k=6 groups=6 hw=3x40 rs=1x11 pad=0x5",
    "n=1 c=5 k=5 groups=5 hw=9x8 rs=1x1 stride=2",
    "n=1 c=4 k=4 groups=4 hw=9x1 rs=5x3 pad=0x1:3 stride=1x3 dtype=fp16",  # one class, which has one tap of three
    "n=1 c=4 k=4 groups=4 hw=1x4 rs=2x2 pad=1x0 dil=2x1",  # no tap reads a row of x
    "n=2 c=10 k=10 groups=10 hw=1x5x2 rs=1x2x1 pad=1x0x1 stride=1x2x1",  # targets that read one plane, of padding
)

#: Shapes for every direction, channels first.
PLANAR_SHAPES = (
    "n=2 c=12 k=12 groups=12 hw=9x20 rs=3x3 pad=1 dtype=bf16",
    "n=1 c=3 k=6 groups=3 hw=9x20 rs=3x3 pad=2 stride=2",
    "n=2 c=4 k=4 groups=4 hw=40 rs=5 pad=4:0 dtype=fp16",
    "n=1 c=4 k=4 groups=4 hw=4x7x6 rs=3x3x3 pad=1 stride=1x2x2 dtype=bf16",
)

SMALL = "n=2 c=12 k=12 groups=12 hw=7x8 rs=3x3 pad=1"


def case(shape: str, direction: str, words: str = "") -> ConvolutionCase:
    parsed = parse_case(f"conv dir={direction} {shape} {words}")
    assert isinstance(parsed, ConvolutionCase)
    return parsed


def check(device: Runtime, parsed: ConvolutionCase, choices: dict[KnobType, int] | None = None) -> Plan:
    return check_exact(device, ENGINE, parsed.graph(), length=parsed.length, choices=choices)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_geometries(device: Runtime, shape: str, direction: str) -> None:
    check(device, case(shape, direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", PLANAR_SHAPES)
def test_channels_first(device: Runtime, shape: str, direction: str) -> None:
    check(device, case(shape, direction, "layout=nchw"))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_real_values_and_epilogue(device: Runtime, direction: str) -> None:
    parsed = case(SMALL, direction, "dtype=bf16 epilogue=scale+sigmoid")
    check_close(device, ENGINE, parsed.graph(), length=parsed.length)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_alpha_beta_and_operands(device: Runtime, direction: str) -> None:
    check(device, case(SMALL, direction, "alpha=2 beta=1"))
    check(device, case(SMALL, direction, "layout=nchw epilogue=bias+residual+relu out=fp16"))


@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.CHANNELS_LAST, Layout.PADDED, Layout.TRANSPOSED])
def test_layouts_of_weights(device: Runtime, layout: Layout) -> None:
    check_exact(device, ENGINE, mixed_graph(DataType.HALF, DataType.HALF, layout), length=9)


def test_mixed_types(device: Runtime) -> None:
    graph = mixed_graph(DataType.BFLOAT16, DataType.FLOAT, Layout.ROW_MAJOR)
    check_exact(device, ENGINE, graph, length=9)


def mixed_graph(source: DataType, weights: DataType, layout: Layout) -> OperationGraph:
    """A 3x3 forward pass; ``layout``: the layout of the weights."""
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x = builder.tensor((1, 6, 5, 7), source)
    w = builder.tensor((6, 1, 3, 3), weights, layout=layout)
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    builder.convolution(x, w, geometry=geometry, store=DataType.FLOAT)
    return builder.graph()


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
@pytest.mark.parametrize("tile", [(2, 4, 3, 3, 128), (4, 2, 7, 4, 256), (1, 8, 2, 2, 64)], ids=str)
def test_tiles(device: Runtime, direction: str, tile: tuple[int, ...]) -> None:
    kinds = (KnobType.LOAD_SIZE, KnobType.TILE_COLS, KnobType.TILE_ROWS, KnobType.STAGES, KnobType.BLOCK_SIZE)
    check(device, case(SMALL, direction), dict(zip(kinds, tile, strict=True)))


@pytest.mark.parametrize("tile", [(2, 4, 4, 3, 4), (4, 2, 2, 3, 16), (1, 8, 8, 2, 2)], ids=str)
def test_tiles_of_filter_gradients(device: Runtime, tile: tuple[int, ...]) -> None:
    kinds = (KnobType.LOAD_SIZE, KnobType.TILE_COLS, KnobType.TILE_ROWS, KnobType.STAGES, KnobType.SPLIT_K_SLC)
    check(device, case("n=3 c=12 k=12 groups=12 hw=8x9 rs=3x3 pad=1", "wgrad"), dict(zip(kinds, tile, strict=True)))


@paired(
    ("direction", ["fprop", "wgrad"]),
    ("data_type", ["bf16", "fp16"]),
    ("stride", [1, 2]),
)
def test_pairs_of_channels_in_a_word(device: Runtime, stride: int, data_type: str, direction: str) -> None:
    shape = f"n=1 c=12 k=12 groups=12 hw=7x8 rs=3x3 pad=1 stride={stride} dtype={data_type}"
    check(device, case(shape, direction), {KnobType.LOAD_SIZE: 4, KnobType.TILE_COLS: 2, KnobType.STAGES: 1})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_scheduling_policy(scheduled: Runtime, direction: str) -> None:
    check(scheduled, case(SMALL, direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_no_races(kernel_cache_dir: Path, direction: str) -> None:
    """A stride makes the gradient of the data read weights through shared memory."""
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        check(runtime, case(SMALL, direction, "stride=2"))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_infinities_stay_in_their_channel(device: Runtime, direction: str) -> None:
    """Infinities forwards, and backwards in the data, reach the outputs that the reference says; the filter gradient of
    a channel with an infinity in x may have a NaN where the reference is finite.
    """
    graph = case(SMALL, direction, "dtype=fp16").graph()
    inputs = {tensor.uid: np.ones(tensor.dims, np.float16) for tensor in graph.inputs}
    source = inputs[next(tensor.uid for tensor in graph.inputs if tensor.dims[0] == 2)]
    source[1, 3, 0, 2], source[0, 5, 6, 7] = np.inf, np.nan
    ((uid, actual),) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).items()
    with np.errstate(invalid="ignore"):
        expected = evaluate(graph, inputs)[uid]
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    if direction == "wgrad":
        assert not np.isfinite(actual[~np.isfinite(expected)]).any()
        actual[[3, 5]] = expected[[3, 5]]
    assert_exact(actual, expected, DataType.HALF)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_only_filter_gradients_need_a_workspace(direction: str) -> None:
    plan = ENGINE.plan(case(SMALL, direction).graph(), SM_90A, {})
    assert (plan.workspace_bytes > 0) == (direction == "wgrad")


def test_shares_need_workspace() -> None:
    graph = case("n=16 c=32 k=32 groups=32 hw=28x28 rs=3x3 pad=1", "wgrad").graph()
    few, many = (ENGINE.plan(graph, SM_90A, {KnobType.SPLIT_K_SLC: shares}).workspace_bytes for shares in (1, 16))
    assert few < many <= 16 * few


def test_unfit_knobs_are_told() -> None:
    graph = case("n=1 c=16 k=16 groups=16 hw=20x20 rs=5x5 pad=2 dtype=fp16", "fprop").graph()
    with pytest.raises(NotSupportedError, match="expected at most 175 registers of a thread's own data, got"):
        ENGINE.plan(graph, SM_90A, {KnobType.LOAD_SIZE: 8, KnobType.TILE_COLS: 7})
    with pytest.raises((BadParamError, NotSupportedError), match="LOAD_SIZE"):
        ENGINE.plan(graph, SM_90A, {KnobType.LOAD_SIZE: 16})


def test_refusals_name_field_limit_and_value() -> None:
    def reason(shape: str, direction: str = "fprop") -> str:
        refusal = ENGINE.refuse(case(shape, direction).graph(), SM_90A)
        assert refusal is not None
        return str(refusal)

    assert "expected" in str(ENGINE.refuse(matmul_graph(), SM_90A))
    assert "expected several groups of one channel, got 4 channels in each of 2" in reason(
        "n=1 c=8 k=8 groups=2 hw=6x6 rs=3x3"
    )
    assert "expected one of" in reason(f"{SMALL} dtype=int8")
    assert "registers, got 361 taps" in reason("n=1 c=8 k=8 groups=8 hw=20x20 rs=19x19")
    assert "registers, got 19 x 19 taps" in reason("n=1 c=8 k=8 groups=8 hw=20x20 rs=19x19", "wgrad")
    assert "at most 32 residue classes along an axis, got 40" in reason(
        "n=1 c=4 k=4 groups=4 hw=80x80 rs=1x1 stride=40", "dgrad"
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "shape",
    [
        "n=64 c=32 k=32 groups=32 hw=112x112 rs=3x3 pad=1",
        "n=64 c=672 k=672 groups=672 hw=14x14 rs=5x5 pad=2 stride=2",
        "n=64 c=96 k=96 groups=96 hw=56x56 rs=7x7 pad=3",
        "n=2 c=4096 k=4096 groups=4096 hw=4096 rs=4 pad=3:0",
        "n=64 c=192 k=192 groups=192 hw=28x28 rs=3x3 pad=1 layout=nchw",
    ],
)
def test_layers_of_networks_are_ranked_first(shape: str, direction: str) -> None:
    graph = replace(case(shape, direction), dtype=DataType.BFLOAT16).graph()
    assert rank(graph, SM_90A, HeurMode.INSTANT, ENGINES).candidates[0].engine.name == ENGINE.name


def test_tiles_suit_their_layers() -> None:
    """Wide windows have wide strips; threads have several channels if these are contiguous, runs if columns are."""

    def defaults(shape: str) -> dict[KnobType, int]:
        graph = replace(case(shape, "fprop"), dtype=DataType.BFLOAT16).graph()
        return {knob.type: knob.default for knob in ENGINE.knobs(graph, SM_90A)}

    wide = defaults("n=64 c=96 k=96 groups=96 hw=56x56 rs=7x7 pad=3")
    assert (wide[KnobType.LOAD_SIZE], wide[KnobType.TILE_COLS]) == (1, 7)
    narrow = defaults("n=64 c=144 k=144 groups=144 hw=56x56 rs=3x3 pad=1")
    assert narrow[KnobType.LOAD_SIZE] > 1
    planar = defaults("n=64 c=192 k=192 groups=192 hw=28x28 rs=3x3 pad=1 layout=nchw")
    assert planar[KnobType.LOAD_SIZE] == 1
    assert planar[KnobType.TILE_COLS] % 4 == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", [SMALL, "n=1 c=6 k=6 groups=6 hw=3x4x5 rs=3x3x3 pad=1 dtype=bf16"])
def test_launches_that_follow_each_other_overlap(kernel_cache_dir: Path, shape: str, direction: str) -> None:
    """The race detector reports accesses before the end of the previous launch."""
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        plan = check(runtime, case(shape, direction))
    assert all(launch.overlaps_previous for launch in plan.launches)
    assert not any(
        launch.overlaps_previous for launch in ENGINE.plan(case(shape, direction).graph(), SM_80, {}).launches
    )
