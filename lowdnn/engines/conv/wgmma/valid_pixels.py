"""The outputs of a convolution whose pixel of the image exists, for each tap of its filter.

Along an axis, tap r of output o reads pixel o * stride - padding + r * dilation. If paddings and dilations are large
compared with the image, many of those pixels are padding, which adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """Fraction of (output, tap) pairs whose pixel exists; it takes no longer for filters of 2^30 taps."""
    convolution, share = operation.convolution, 1.0
    extents = zip(operation.filter.dims[2:], operation.response.dims[2:], operation.image.dims[2:], strict=True)
    for axis, (taps, outputs, pixels) in enumerate(extents):
        steps = (taps, convolution.dilations[axis]), (outputs, convolution.strides[axis])
        first = convolution.pre_paddings[axis]
        if taps and outputs:
            share *= (_pairs_below(first + pixels, *steps) - _pairs_below(first, *steps)) / (taps * outputs)
    return share


def _pairs_below(limit: int, taps: tuple[int, int], outputs: tuple[int, int]) -> int:
    """Number of pairs whose place, tap * dilation + output * stride, is below ``limit``; each as (count, step)."""
    (tap_count, dilation), (output_count, stride) = taps, outputs
    end = min(max(ceil_div(limit, dilation), 0), tap_count)
    whole = min(max(ceil_div(limit - (output_count - 1) * stride, dilation), 0), end)
    last = limit - (end - 1) * dilation + stride - 1
    return whole * output_count + _sum_of_quotients(end - whole, dilation, last, stride)


def _sum_of_quotients(count: int, step: int, first: int, divisor: int) -> int:
    """The sum of (first + n * step) // divisor over n < ``count``, by Euclid's algorithm."""
    found = 0
    while count > 0:
        found += (count - 1) * count // 2 * (step // divisor) + count * (first // divisor)
        step, first = step % divisor, first % divisor
        count, first = divmod(step * count + first, divisor)
        step, divisor = divisor, step
    return found


def valid_outputs(place: int, stride: int, outputs: int, pixels: int) -> range:
    """The outputs o of an axis for which ``place`` + o * ``stride`` is one of ``pixels`` pixels."""
    return range(max(ceil_div(-place, stride), 0), min(ceil_div(pixels - place, stride), outputs))


def _valid(convolution: Convolution, axis: int, tap: int, outputs: int, pixels: int) -> tuple[int, int, int]:
    """(number of valid outputs, first valid output, pixel that it reads) along one axis."""
    stride, place = convolution.strides[axis], tap * convolution.dilations[axis] - convolution.pre_paddings[axis]
    valid = valid_outputs(place, stride, outputs, pixels)
    return (len(valid), valid.start, valid.start * stride + place) if valid else (0, 0, 0)
