"""Valid outputs of taps, compared with all pairs of taps and outputs."""

from __future__ import annotations

import random
from itertools import product

import pytest

from lowdnn.engines.conv.wgmma.valid_pixels import valid_share, valid_taps
from lowdnn.enums import DataType
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, packed_strides
from tests.support.data import fresh_seed


@pytest.mark.parametrize(
    ("image", "outputs", "taps", "stride", "dilation", "padding"),
    [(9, 9, 3, 1, 6, 6), (5, 9, 3, 1, 4, 6), (11, 6, 3, 2, 3, 3), (4, 4, 3, 1, 9, 9), (7, 8, 5, 3, 2, 12)],
)
def test_every_tap_has_the_outputs_whose_pixel_exists(
    image: int, outputs: int, taps: int, stride: int, dilation: int, padding: int
) -> None:
    geometry = Convolution(DataType.FLOAT, 2, (padding, 0), (padding, 0), (stride, 1), (dilation, 1))
    extents = ((taps, 1), (outputs, 3), (image, 3))
    count = 0
    for tap, found in enumerate(valid_taps(geometry, *extents)):
        pixels = {output: output * stride - padding + tap * dilation for output in range(outputs)}
        valid = {output: pixel for output, pixel in pixels.items() if 0 <= pixel < image}
        (extent, width), (first, _), (pixel, _) = found.extents, found.outputs, found.pixels
        assert {first + place: pixel + place * stride for place in range(extent)} == valid
        assert (width, found.count) == (3, 3 * len(valid))
        count += len(valid)
    operation = ConvolutionForward(geometry, *tensors((image, 3), (taps, 1), (outputs, 3)))
    assert valid_share(operation) == pytest.approx(count / (taps * outputs))


def test_the_share_of_drawn_axes_is_that_of_all_pairs() -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    for _ in range(300):
        image, taps, stride, dilation = (rng.randint(1, most) for most in (20, 12, 5, 5))
        before, after = (rng.randint(0, 30) for _ in range(2))
        padded, reach = image + before + after, (taps - 1) * dilation + 1
        if padded < reach:
            continue
        outputs = (padded - reach) // stride + 1
        places = (o * stride - before + r * dilation for o in range(outputs) for r in range(taps))
        count = sum(0 <= place < image for place in places)
        geometry = Convolution(DataType.FLOAT, 1, (before,), (after,), (stride,), (dilation,))
        operation = ConvolutionForward(geometry, *tensors((image,), (taps,), (outputs,)))
        assert valid_share(operation) == pytest.approx(count / (taps * outputs)), f"seed {seed}, {operation}"


def tensors(*extents: tuple[int, ...]) -> list[Tensor]:
    """x, w and y with one image and one channel."""
    return [
        Tensor(uid, DataType.FLOAT, (1, 1, *dims), packed_strides((1, 1, *dims)), alignment_bytes=4)
        for uid, dims in enumerate(extents)
    ]


def test_taps_come_in_the_order_of_the_image() -> None:
    geometry = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (1, 1), (1, 1))
    found = valid_taps(geometry, (2, 3), (5, 5), (4, 5))
    rows = [range(max(1 - tap, 0), min(5 - tap, 5)) for tap in range(2)]
    columns = [range(max(1 - tap, 0), min(6 - tap, 5)) for tap in range(3)]
    assert [tap.extents for tap in found] == [(len(row), len(column)) for row, column in product(rows, columns)]
