"""The outputs of a convolution whose pixel of the image exists, for each tap of its filter.

Along an axis, tap r of output o reads pixel o * stride - padding + r * dilation. If paddings and dilations are large
compared with the image, many of those pixels are padding, which adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from lowdnn.engines.launch import ceil_div
from lowdnn.ops.convolution import Convolution, ConvolutionOperation


@dataclass(frozen=True)
class ValidTap:
    """The valid outputs of one tap, a box, and the pixels that it reads for them, along the spatial axes (outermost
    first).

    extents: extents of the box of outputs, 0 if there are none.  outputs: the first output.  pixels: its pixel in the
    image.
    """

    extents: tuple[int, ...]
    outputs: tuple[int, ...]
    pixels: tuple[int, ...]

    @property
    def count(self) -> int:
        """Valid outputs in an image."""
        return prod(self.extents)


def valid_taps(
    convolution: Convolution, taps: Sequence[int], outputs: Sequence[int], pixels: Sequence[int]
) -> tuple[ValidTap, ...]:
    """Valid pixels of every tap, the last axis fastest, in the order of increasing image positions.

    That is the order of CROSS_CORRELATION.

    taps, outputs, pixels: extents of the filter, of the response and of the image.
    """
    axes = [
        [_valid(convolution, axis, tap, outputs[axis], pixels[axis]) for tap in range(count)]
        for axis, count in enumerate(taps)
    ]
    return tuple(ValidTap(*map(tuple, zip(*chosen, strict=True))) for chosen in product(*axes))


def valid_share(operation: ConvolutionOperation) -> float:
    """Fraction of (output, tap) pairs whose pixel exists."""
    extents = (operation.filter.dims[2:], operation.response.dims[2:], operation.image.dims[2:])
    return _valid_share(operation.convolution, *extents)


@lru_cache(maxsize=1024)
def _valid_share(
    convolution: Convolution, taps: tuple[int, ...], outputs: tuple[int, ...], pixels: tuple[int, ...]
) -> float:
    """Cached, since a layer is planned for many batch sizes."""
    share = 1.0
    for axis, (tap_count, output_count, pixel_count) in enumerate(zip(taps, outputs, pixels, strict=True)):
        valid = sum(_valid(convolution, axis, tap, output_count, pixel_count)[0] for tap in range(tap_count))
        share *= valid / (tap_count * output_count) if tap_count * output_count else 1.0
    return share


def valid_outputs(place: int, stride: int, outputs: int, pixels: int) -> range:
    """The outputs o of an axis for which ``place`` + o * ``stride`` is one of ``pixels`` pixels."""
    return range(max(ceil_div(-place, stride), 0), min(ceil_div(pixels - place, stride), outputs))


def _valid(convolution: Convolution, axis: int, tap: int, outputs: int, pixels: int) -> tuple[int, int, int]:
    """(number of valid outputs, first valid output, pixel that it reads) along one axis."""
    stride, place = convolution.strides[axis], tap * convolution.dilations[axis] - convolution.pre_paddings[axis]
    valid = valid_outputs(place, stride, outputs, pixels)
    return (len(valid), valid.start, valid.start * stride + place) if valid else (0, 0, 0)
