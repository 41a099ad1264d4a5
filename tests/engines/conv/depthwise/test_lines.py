"""The kernels of lines: forward pass and data gradient with and without tensor cores, filter gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.conv.depthwise import choice
from lowdnn.engines.conv.depthwise.conv_depthwise import ConvDepthwise
from lowdnn.enums import DataType
from lowdnn.enums import KnobType as K
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotSupportedError
from tests.support.running import check_close, check_exact, run_plan
from tests.support.runtime import open_runtime
from tests.support.tolerance import assert_exact

ENGINE = ConvDepthwise()
DIRECTIONS = ("fprop", "dgrad", "wgrad")

#: Shapes for every direction; the last one's lines lie along the rows.
SHAPES = (
    "n=2 c=12 k=12 groups=12 hw=40 rs=31 pad=15 dtype=fp16",
    "n=3 c=12 k=12 groups=12 hw=33 rs=9 pad=8:0 stride=2 dil=3",  # residue classes and phases
    "n=1 c=6 k=6 groups=6 hw=41 rs=9 stride=3 pad=4 mode=flipped dtype=fp16",
    "n=1 c=5 k=5 groups=5 hw=3x26 rs=1x11 pad=0x5 dtype=bf16",
)
ACROSS = "n=1 c=6 k=6 groups=6 hw=14x3 rs=5x1 pad=2x0 dtype=bf16"
LAYER = "n=2 c=18 k=18 groups=18 hw=24 rs=15 pad=7"


@pytest.fixture(autouse=True)
def _only_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are also run where others are estimated to be faster; those on tensor cores if they take the
    operands.
    """
    line_problems = choice._line_problems
    monkeypatch.setattr(choice, "_grid_problem", lambda *_: "none asked for")
    monkeypatch.setattr(choice, "_line_problems", lambda *of: line_problems(*of)[-1:])


@pytest.fixture
def racing(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


def case(shape: str, direction: str, words: str = "") -> ConvolutionCase:
    parsed = parse_case(f"conv dir={direction} {shape} {words}")
    assert isinstance(parsed, ConvolutionCase)
    return parsed


def check(device: Runtime, parsed: ConvolutionCase, choices: dict[K, int] | None = None) -> Plan:
    plan = check_exact(device, ENGINE, parsed.graph(), length=parsed.length, choices=choices)
    assert "_lines_" in plan.kernels[0].name
    return plan


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("shape", SHAPES)
def test_geometries(racing: Runtime, shape: str, layout: str, direction: str) -> None:
    check(racing, case(shape, direction, f"layout={layout}"))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lines_across_the_rows(racing: Runtime, direction: str) -> None:
    check(racing, case(ACROSS, direction))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("data_type", ["fp32", "bf16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_scheduling_policy(scheduled: Runtime, direction: str, data_type: str, layout: str) -> None:
    check(scheduled, case(LAYER, direction, f"dtype={data_type} layout={layout}"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_device(device: Runtime, direction: str, layout: str) -> None:
    for data_type in ("fp32", "fp16"):
        check(device, case(LAYER, direction, f"dtype={data_type} layout={layout} alpha=2 beta=1"))
    parsed = case(LAYER, direction, f"dtype=bf16 layout={layout} epilogue=scale+sigmoid")
    check_close(device, ENGINE, parsed.graph(), length=parsed.length)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("data_type", [DataType.FLOAT, DataType.HALF])
@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
def test_infinities_stay_with_their_taps(device: Runtime, direction: str, data_type: DataType, layout: str) -> None:
    """Zeros of a band of weights, with which tensor cores multiply infinities, make no NaN."""
    shape = "n=1 c=4 k=4 groups=4 hw=40 rs=7 pad=3"
    graph = replace(case(shape, direction, f"layout={layout}"), dtype=data_type).graph()
    inputs = {tensor.uid: np.ones(tensor.dims, dtypes.info(data_type).storage) for tensor in graph.inputs}
    source = inputs[next(tensor.uid for tensor in graph.inputs if tensor.dims[-1] == 40)]
    source[0, 1, 20], source[0, 2, 11], source[0, 3, 5:8] = np.inf, np.nan, (np.inf, 1, -np.inf)
    ((uid, actual),) = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs).items()
    with np.errstate(invalid="ignore"):
        expected = evaluate(graph, inputs)[uid]
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert_exact(actual, expected, data_type)


#: (layout, data type, tile): columns, strips, rows of channels and of batches, lanes.
TILES = (
    ("nchw", "fp32", {K.TILE_COLS: 20, K.BLOCK_COLS: 2, K.BLOCK_CHANNELS: 3, K.BLOCK_BATCHES: 2}),
    ("nhwc", "fp32", {K.TILE_COLS: 12, K.BLOCK_COLS: 1, K.CHANNEL_LANES: 32, K.BLOCK_BATCHES: 2}),
    ("nchw", "fp16", {K.BLOCK_COLS: 2, K.BLOCK_CHANNELS: 3, K.BLOCK_BATCHES: 2, K.WARP_TILES: 2}),
    ("nhwc", "fp16", {K.BLOCK_COLS: 3, K.CHANNEL_LANES: 32, K.BLOCK_BATCHES: 2, K.WARP_TILES: 1}),
)


@pytest.mark.parametrize(("layout", "data_type", "tile"), TILES)
def test_tiles(racing: Runtime, layout: str, data_type: str, tile: dict[K, int]) -> None:
    check(racing, case(LAYER, "fprop", f"dtype={data_type} layout={layout}"), tile)


def test_tiles_of_filter_gradients(racing: Runtime) -> None:
    rows = {K.BLOCK_COLS: 2, K.BLOCK_CHANNELS: 3, K.BLOCK_BATCHES: 2, K.SPLIT_K_SLC: 1}
    check(racing, case(LAYER, "wgrad", "layout=nchw"), {K.TILE_COLS: 8, K.TILEK: 12, **rows})
    lanes = {K.CHANNEL_LANES: 32, K.BLOCK_CHANNELS: 1, K.BLOCK_BATCHES: 2, K.BLOCK_COLS: 1}
    check(racing, case(LAYER, "wgrad", "dtype=fp16"), {K.TILE_COLS: 16, K.TILEK: 20, **lanes})


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("data_type", ["fp32", "fp16"])
def test_unfit_knobs_are_told(data_type: str, direction: str) -> None:
    graph = case("n=8 c=64 k=64 groups=64 hw=4096 rs=127 pad=63", direction, f"dtype={data_type}").graph()
    with pytest.raises(NotSupportedError, match="knob_choices: expected a block"):
        ENGINE.plan(graph, SM_90A, {K.BLOCK_COLS: 60, K.BLOCK_BATCHES: 8})
    with pytest.raises(NotSupportedError, match="expected one row of channels with"):
        ENGINE.plan(graph, SM_90A, {K.BLOCK_CHANNELS: 2})


def test_lines_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines may also be the one row of a plane, as callers without 1-D convolutions have them."""
    monkeypatch.undo()
    lines = "n=32 c=512 k=512 groups=512 hw=360 rs=51 pad=25"
    taken = {
        (lines, "fprop", "fp16 layout=nchw"): "lines_mma",
        (lines, "dgrad", "bf16"): "lines_mma",
        (lines, "dgrad", "fp32 layout=nchw"): "lines_fp32",
        (lines, "wgrad", "fp16"): "filter_lines",
        ("n=32 c=512 k=512 groups=512 hw=1x360 rs=1x51 pad=0x25", "fprop", "bf16 layout=nchw"): "lines_mma",
        ("n=32 c=768 k=768 groups=768 hw=500 rs=31 pad=15", "fprop", "bf16"): "planes",
    }
    for (shape, direction, words), kernel in taken.items():
        plan = ENGINE.plan(case(shape, direction, f"dtype={words}").graph(), SM_90A, {})
        assert plan.kernels[0].name.startswith(f"conv_depthwise_{kernel}")
