from __future__ import annotations

from itertools import product

import pytest

from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.engines.base import Refusal
from lowdnn.engines.conv.narrow.conv_narrow_mma import ConvNarrowMma
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.layouts import Layout
from lowdnn.ops.convolution import Convolution
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import NotSupportedError
from tests.engines.conv.grouped.test_conv_grouped_mma import Case
from tests.support.pairs import paired
from tests.support.running import check_exact

ENGINE = ConvNarrowMma()
DIRECTIONS = ("forward", "data")

#: Convolutions of one tap, with ``channels`` channels and ``filters`` filters.
CHANNELS = ((8, 8), (54, 24), (24, 54), (108, 24), (24, 144), (64, 64), (16, 34), (2, 66), (34, 2), (216, 96))


def one_tap(channels: int, filters: int, *pixels: int) -> Case:
    return Case((pixels[0], channels, *pixels[1:]), (filters, channels, *(1 for _ in pixels[1:])))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("channels", "filters"), CHANNELS)
def test_channels(device: Runtime, direction: str, channels: int, filters: int) -> None:
    case = one_tap(channels, filters, 2, 4, 29)
    check_exact(device, ENGINE, case.graph(direction), length=max(channels, filters))


@paired(
    ("direction", DIRECTIONS),
    ("data_type", [DataType.HALF, DataType.FLOAT]),
    ("pixels", [(1, 8), (3, 5, 8), (1, 2, 5, 12)]),
)
def test_types_and_spatial_axes(device: Runtime, direction: str, data_type: DataType, pixels: tuple[int, ...]) -> None:
    check_exact(device, ENGINE, one_tap(12, 20, *pixels).graph(direction, data_type), length=20)


def test_int8_forward(device: Runtime) -> None:
    geometry = Convolution(DataType.INT32, 2, (0, 0), (0, 0), (1, 1), (1, 1))
    builder = CaseBuilder(Layout.CHANNELS_LAST)
    x, w = builder.tensor((1, 20, 5, 8), DataType.INT8), builder.tensor((12, 20, 1, 1), DataType.INT8)
    builder.convolution(x, w, geometry=geometry, store=DataType.INT32)
    check_exact(device, ENGINE, builder.graph(), length=20)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_alpha_beta_and_epilogue(device: Runtime, direction: str) -> None:
    case = one_tap(24, 54, 2, 6, 10)
    check_exact(device, ENGINE, case.graph(direction, alpha=2.0, beta=1.0), length=54)
    check_exact(device, ENGINE, case.graph(direction, epilogue=True), length=54)


@pytest.mark.parametrize(("tile", "stages"), list(product((16, 32), (1, 2, 3))))
def test_tiles(device: Runtime, tile: int, stages: int) -> None:
    choices = {KnobType.TILE_M: tile, KnobType.STAGES: stages}
    check_exact(device, ENGINE, one_tap(24, 36, 2, 5, 36).graph("forward"), length=24, choices=choices)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_several_tiles_of_a_warp(scheduled: Runtime, stages: int) -> None:
    """The tiles are more than all warps of a device with two multiprocessors can have in flight."""
    few = SM_90A.with_sm_count(2)
    pixels = 16 * 16 * few.sm_count * (stages + 1) + 8
    choices = {KnobType.TILE_M: 16, KnobType.STAGES: stages}
    check_exact(scheduled, ENGINE, one_tap(2, 2, 1, pixels).graph("forward"), length=2, choices=choices, arch=few)


def test_tiles_that_do_not_fit_are_no_choice() -> None:
    """32 pixels by two stages would take 232 KiB of shared memory."""
    graph = one_tap(48, 17, 1, 8, 5).graph("forward", DataType.FLOAT)
    pixels, stages = ENGINE.knobs(graph, SM_90A)
    assert (pixels.values, stages.values) == ((16, 32), (1, 2, 3))
    with pytest.raises(NotSupportedError, match=r"TILE_M x STAGES: expected one of 32x1, 16x3, .*, got 32x2"):
        ENGINE.plan(graph, SM_90A, {KnobType.TILE_M: 32, KnobType.STAGES: 2})
    pixels, stages = ENGINE.knobs(one_tap(60, 60, 1, 8, 5).graph("forward", DataType.FLOAT), SM_90A)
    assert (pixels.values, stages.values) == ((16,), (1, 2))


def test_refusals_name_field_limit_and_value() -> None:
    def reason(case: Case, layout: Layout = Layout.CHANNELS_LAST) -> str:
        refusal = ENGINE.refuse(case.graph("forward", layout=layout), SM_90A)
        assert isinstance(refusal, Refusal)
        return refusal.reason

    assert "expected one tap, stride 1, no padding and one group, got taps [3, 3]" in reason(
        Case((1, 8, 6, 6), (8, 8, 3, 3), (1, 1))
    )
    assert "groups 2" in reason(Case((1, 16, 6, 6), (8, 8, 1, 1)))
    assert "expected dense channels-last pixels" in reason(one_tap(8, 8, 1, 4, 4), Layout.ROW_MAJOR)
    assert "expected whole pieces of 16 bytes" in reason(one_tap(2, 8, 1, 3, 3))
    assert "expected whole words of channels, got 3" in reason(one_tap(3, 8, 1, 4, 8))
    assert "bytes of shared memory besides the pixels', got" in reason(one_tap(512, 512, 1, 4, 4))
