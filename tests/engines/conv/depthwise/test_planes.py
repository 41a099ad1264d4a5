"""The kernels that walk along planes: forward pass, data gradient and filter gradient."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.families.convolution import ConvolutionCase
from lowdnn.driver import open_driver
from lowdnn.engines.conv.depthwise import choice
from lowdnn.engines.conv.depthwise.conv_depthwise import ConvDepthwise
from lowdnn.enums import KnobType
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotSupportedError
from tests.support.running import check_close, check_exact
from tests.support.runtime import open_runtime

ENGINE = ConvDepthwise()
DIRECTIONS = ("fprop", "dgrad", "wgrad")

SHAPES = (
    "n=2 c=6 k=6 groups=6 hw=5x6x7 rs=3x3x3 pad=1 dtype=bf16",
    "n=2 c=16 k=16 groups=16 hw=5x6x6 rs=3x3x3 pad=1 dtype=bf16",  # rows of positions without gaps
    "n=1 c=54 k=54 groups=54 hw=3x4x16 rs=3x3x3 pad=1 dtype=bf16",  # positions that are not whole copies
    "n=1 c=54 k=54 groups=54 hw=3x8x16 rs=3x3x3 pad=1 stride=1x2x2 dtype=bf16",
    "n=1 c=20 k=20 groups=20 hw=4x9x8 rs=3x3x3 pad=1 stride=1x2x2 dtype=bf16",
    "n=3 c=4 k=4 groups=4 hw=5x6x7 rs=2x3x2 pad=1x0x1 mode=flipped",
    "n=2 c=10 k=10 groups=10 hw=6x7x5 rs=5x1x1 pad=2x0x0 dtype=fp16",
    "n=1 c=8 k=8 groups=8 hw=1x4x3 rs=3x3x3 pad=1 dtype=bf16",  # fewer planes than taps
)
LAYER = SHAPES[0]


@pytest.fixture
def racing(kernel_cache_dir: Path) -> Iterator[Runtime]:
    with open_runtime(open_driver("emulated", policy="fuzz(7),early,races"), kernel_cache_dir) as runtime:
        yield runtime


def case(shape: str, direction: str, words: str = "") -> ConvolutionCase:
    parsed = parse_case(f"conv dir={direction} {shape} {words}")
    assert isinstance(parsed, ConvolutionCase)
    return parsed


def check(device: Runtime, parsed: ConvolutionCase, choices: dict[KnobType, int] | None = None) -> Plan:
    plan = check_exact(device, ENGINE, parsed.graph(), length=parsed.length, choices=choices)
    assert "_planes_" in plan.kernels[0].name
    return plan


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_geometries(racing: Runtime, shape: str, direction: str) -> None:
    check(racing, case(shape, direction))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_lines(racing: Runtime, direction: str) -> None:
    """Tensors without planes are walked along their images."""
    check(racing, case("n=3 c=16 k=16 groups=16 hw=40 rs=31 pad=15 dtype=fp16", direction))


#: With tiles of knobs; a thread's rows and columns may be all that exist, next to padding that is skipped.
IMAGES = (
    ("wgrad", "n=16 c=6 k=6 groups=6 hw=7x7 rs=7x7 pad=3 dtype=bf16", (1, 7, 7, 1)),
    ("wgrad", "n=16 c=6 k=6 groups=6 hw=7x7 rs=3x3 pad=1 dtype=bf16", (7, 7, 1, 1)),
    ("wgrad", "n=17 c=4 k=4 groups=4 hw=7x6 rs=5x5 pad=4x1:3 dtype=fp16", (4, 7, 2, 1)),
    ("wgrad", "n=16 c=8 k=8 groups=8 hw=9x12 rs=3x3 pad=1 dtype=bf16", (2, 4, 3, 2)),
    ("dgrad", "n=16 c=8 k=8 groups=8 hw=7x8 rs=5x5 pad=2 stride=2 dtype=bf16", (4, 8, 1, 1)),
    ("dgrad", "n=16 c=6 k=6 groups=6 hw=9x12 rs=3x3 pad=1 stride=2 dtype=bf16", (2, 4, 3, 2)),
    ("dgrad", "n=17 c=4 k=4 groups=4 hw=14x13 rs=5x5 pad=2x3 stride=2 dtype=fp16", (2, 14, 7, 1)),
)


@pytest.mark.parametrize(("direction", "shape", "tile"), IMAGES)
def test_images(
    racing: Runtime, monkeypatch: pytest.MonkeyPatch, direction: str, shape: str, tile: tuple[int, ...]
) -> None:
    """A line is walked along as planes."""
    monkeypatch.setattr(choice, "_WALK_SHARE", inf)
    kinds = (KnobType.TILE_ROWS, KnobType.TILE_COLS, KnobType.BLOCK_ROWS, KnobType.BLOCK_COLS)
    check(racing, case(shape, direction))
    check(racing, case(shape, direction), dict(zip(kinds, tile, strict=True)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_device(device: Runtime, direction: str) -> None:
    check(device, case(LAYER, direction, "alpha=2 beta=1"))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_real_values_and_epilogue(device: Runtime, direction: str) -> None:
    parsed = case(LAYER, direction, "epilogue=scale+sigmoid")
    check_close(device, ENGINE, parsed.graph(), length=parsed.length)


@pytest.mark.parametrize(
    ("shape", "walked"),
    [
        ("n=64 c=768 k=768 groups=768 hw=7x7 rs=7x7 pad=3 dtype=bf16", {"wgrad"}),
        ("n=64 c=576 k=576 groups=576 hw=14x14 rs=3x3 pad=1 stride=2 dtype=bf16", {"dgrad"}),
        ("n=64 c=96 k=96 groups=96 hw=56x56 rs=7x7 pad=3 dtype=bf16", set()),
        ("n=2 c=768 k=768 groups=768 hw=7x7 rs=7x7 pad=3 dtype=bf16", set()),
    ],
)
def test_images_are_walked_along_where_that_is_faster(shape: str, walked: set[str]) -> None:
    names = {one: ENGINE.plan(case(shape, one).graph(), SM_90A, {}).kernels[0].name for one in DIRECTIONS}
    assert {one for one, name in names.items() if "_planes_" in name} == walked


def test_blocks_write_whole_sectors_behind_strides() -> None:
    for shape in (
        "n=64 c=672 k=672 groups=672 hw=14x14 rs=5x5 pad=2 stride=2 dtype=bf16",
        "n=32 c=432 k=432 groups=432 hw=13x10x10 rs=3x3x3 pad=1 stride=1x2x2 dtype=bf16",
    ):
        words = dict(ENGINE.plan(case(shape, "dgrad").graph(), SM_90A, {}).choices)[KnobType.BLOCK_CHANNELS]
        assert words % 8 == 0


def test_blocks_that_would_crowd_do_not_start_early() -> None:
    def overlaps(shape: str) -> bool:
        plan = ENGINE.plan(case(f"n=32 {shape} rs=3x3x3 pad=1 dtype=bf16", "fprop").graph(), SM_90A, {})
        return plan.launches[0].overlaps_previous

    assert overlaps("c=216 k=216 groups=216 hw=13x10x10")
    assert not overlaps("c=432 k=432 groups=432 hw=13x10x10 stride=1x2x2")


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
@pytest.mark.parametrize("tile", [(2, 4, 2, 1, 2, 4), (1, 7, 3, 1, 3, 2)], ids=str)
def test_tiles(racing: Runtime, direction: str, tile: tuple[int, ...]) -> None:
    kinds = (
        KnobType.TILE_ROWS,
        KnobType.TILE_COLS,
        KnobType.BLOCK_ROWS,
        KnobType.BLOCK_COLS,
        KnobType.SPLIT_P_SLC,
        KnobType.STAGES,
    )
    check(racing, case(LAYER, direction), dict(zip(kinds, tile, strict=True)))


@pytest.mark.parametrize("tile", [(2, 4, 3, 2, 2, 4), (1, 2, 2, 3, 1, 2)], ids=str)
def test_tiles_of_filter_gradients(racing: Runtime, tile: tuple[int, ...]) -> None:
    kinds = (
        KnobType.TILE_ROWS,
        KnobType.TILE_COLS,
        KnobType.BLOCK_ROWS,
        KnobType.BLOCK_COLS,
        KnobType.SPLIT_K_SLC,
        KnobType.STAGES,
    )
    check(racing, case("n=3 c=6 k=6 groups=6 hw=5x6x7 rs=3x3x3 pad=1", "wgrad"), dict(zip(kinds, tile, strict=True)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_unfit_knobs_are_told(direction: str) -> None:
    graph = case("n=1 c=64 k=64 groups=64 hw=9x40x40 rs=3x3x3 pad=1 dtype=bf16", direction).graph()
    with pytest.raises(NotSupportedError, match="expected a block that fits"):
        ENGINE.plan(graph, SM_90A, {KnobType.TILE_ROWS: 4, KnobType.TILE_COLS: 10})
