"""Classes of pixels, compared with the taps of each pixel one by one."""

from __future__ import annotations

from itertools import product

import pytest

from lowdnn.engines.conv.wgmma.im2col import (
    AxisClass,
    forward_class,
    gradient_classes,
    image_share,
    offset_problem,
    split_edges,
)
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.ops.convolution import Convolution


def meetings(axis: AxisClass) -> dict[int, set[tuple[int, int]]]:
    """For each pixel of dx: (position in dy, tap of the filter)."""
    found: dict[int, set[tuple[int, int]]] = {}
    for pixel in range(axis.extent):
        place = axis.lower + pixel * axis.stride
        found[pixel] = {
            (place + axis.first_offset + tap * axis.offset_step, axis.first_tap + tap * axis.tap_step)
            for tap in range(axis.taps)
        }
    return found


@pytest.mark.parametrize("mode", list(ConvolutionMode))
@pytest.mark.parametrize(
    ("pixels", "taps", "stride", "dilation", "padding"),
    [
        (9, 3, 1, 1, 1),
        (9, 3, 2, 1, 1),
        (8, 4, 2, 1, 0),
        (7, 3, 3, 2, 2),
        (9, 5, 4, 2, 3),
        (3, 2, 4, 1, 1),
        (9, 1, 2, 1, 0),
    ],
)
def test_every_pixel_meets_its_taps_once(
    mode: ConvolutionMode, pixels: int, taps: int, stride: int, dilation: int, padding: int
) -> None:
    geometry = Convolution(DataType.FLOAT, 1, (padding,), (padding,), (stride,), (dilation,), mode)
    classes = gradient_classes(geometry, (taps,), (pixels,))
    found: dict[int, set[tuple[int, int]]] = {}
    for pixel_class in classes:
        (axis,) = pixel_class.axes
        found |= {axis.origin + pixel * stride: places for pixel, places in meetings(axis).items()}
        assert axis.first_offset >= 0
    expected: dict[int, set[tuple[int, int]]] = {pixel: set() for pixel in range(pixels)}
    for pixel, tap in product(range(pixels), range(taps)):
        position, rest = divmod(pixel + padding - tap * dilation, stride)
        if rest == 0:
            expected[pixel].add((position, tap if mode is ConvolutionMode.CROSS_CORRELATION else taps - 1 - tap))
    assert found == expected


@pytest.mark.parametrize("mode", list(ConvolutionMode))
@pytest.mark.parametrize(
    ("image", "outputs", "taps", "stride", "dilation", "padding"),
    [
        (9, 9, 3, 1, 6, 6),  # pixels in the middle have one valid tap
        (5, 9, 3, 1, 4, 6),
        (3, 5, 2, 1, 1, 2),  # pixels at the ends have none
        (11, 6, 3, 2, 3, 3),
        (7, 7, 5, 3, 2, 12),
    ],
)
def test_split_edges_meet_all_but_padding(
    mode: ConvolutionMode, image: int, outputs: int, taps: int, stride: int, dilation: int, padding: int
) -> None:
    geometry = Convolution(DataType.FLOAT, 1, (padding,), (padding,), (stride,), (dilation,), mode)
    whole = forward_class(geometry, (taps,), (outputs,))
    whole_places = meetings(whole.axes[0])
    inside = {pixel: {place for place in places if 0 <= place[0] < image} for pixel, places in whole_places.items()}
    found: dict[int, set[tuple[int, int]]] = {}
    for pixel_class in split_edges((whole,), (image,), (1,)):
        (axis,) = pixel_class.axes
        found |= {axis.origin + pixel: places for pixel, places in meetings(axis).items()}
    assert found == inside
    seen, valid = (sum(map(len, places.values())) for places in (whole_places, inside))
    assert image_share((whole,), (image,)) == pytest.approx(valid / seen)


def test_edges_of_residues_share_their_corners() -> None:
    geometry = Convolution(DataType.FLOAT, 1, (3,), (3,), (2,), (2,))
    classes = gradient_classes(geometry, (4,), (12,))
    parts = split_edges(classes, (6,), (2,))
    found: dict[int, set[tuple[int, int]]] = {}
    for axis in (pixel_class.axes[0] for pixel_class in parts):
        found |= {axis.origin + pixel * 2: places for pixel, places in meetings(axis).items()}
    expected = {
        pixel: {((pixel + 3 - 2 * tap) // 2, tap) for tap in range(4) if pixel % 2 and 0 <= pixel + 3 - 2 * tap < 12}
        for pixel in range(12)
    }
    assert found == expected
    corners = {(pixel_class.extents, pixel_class.axes[0].lower) for pixel_class in parts if pixel_class.taps}
    assert len(corners) == len({pixel_class.extents for pixel_class in parts if pixel_class.taps})


def test_classes_of_one_extent_share_their_corners_and_come_longest_first() -> None:
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (2, 2), (1, 1))
    classes = gradient_classes(geometry, (3, 3), (8, 9))
    assert [pixel_class.taps for pixel_class in classes] == [4, 2, 2, 1]
    corners = {(pixel_class.extents, tuple(axis.lower for axis in pixel_class.axes)) for pixel_class in classes}
    assert len(corners) == 2


def test_offsets_have_a_reach() -> None:
    geometry = Convolution(DataType.FLOAT, 3, (0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 1, 16))
    assert "dims[4]: expected taps that reach at most 31 positions, got 32" in offset_problem(
        gradient_classes(geometry, (1, 1, 3), (4, 4, 40))
    )
