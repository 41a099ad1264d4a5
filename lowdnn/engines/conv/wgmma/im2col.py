"""Pixels of a convolution as im2col tensor maps: host side of ``im2col_operand.cuh``.

A convolution forward walks its image with the filter's stride. A data gradient walks the response: pixel h of dx reads
the outputs (h + pre_padding - r * dilation) / stride of the taps r for which that is an integer. Pixels with the same
residue h % stride have the same taps, so that each residue (a class) is a correlation of stride 1 with a part of the
filter, and writes every stride-th pixel.

Some taps of pixels near the edges of the image read padding. If that is much of the work, these pixels make up separate
classes, without those taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from math import gcd, prod

from lowdnn.engines.conv.wgmma.valid_pixels import valid_outputs
from lowdnn.engines.launch import ceil_div, divider, i32
from lowdnn.enums import ConvolutionMode
from lowdnn.ops.convolution import Convolution
from lowdnn.plan import Scalar, ScalarType, Struct

#: The greatest filter offset of a copy, by the number of spatial axes.
_MAX_OFFSET = {1: (1 << 16) - 1, 2: (1 << 8) - 1, 3: (1 << 5) - 1}


@dataclass(frozen=True)
class AxisClass:
    """One axis of a class of pixels, and the taps that these read along it.

    extent: pixels; pixel o is output pixel ``o * step + origin``.  stride, lower: pixel o is at image position ``o *
    stride + lower``.  taps: number of taps; tap t reads ``first_offset + t * offset_step`` positions further on and is
    tap ``first_tap + t * tap_step`` of the filter.  run: taps that are read from one window of pixels; the last window
    may have fewer.
    """

    extent: int
    origin: int
    stride: int
    lower: int
    taps: int
    first_tap: int
    tap_step: int
    offset_step: int
    first_offset: int = 0
    run: int = 1

    @property
    def upper(self) -> int:
        """Position of the last pixel."""
        return self.lower + (self.extent - 1) * self.stride

    @property
    def reach(self) -> int:
        """The greatest offset of a tap."""
        return self.first_offset + max(self.taps - 1, 0) * self.offset_step

    @property
    def runs(self) -> int:
        """Windows, or taps where these share none."""
        return ceil_div(self.taps, self.run)

    def below(self, lower: int) -> AxisClass:
        """The pixels and taps, counted from a lower position."""
        return replace(self, lower=lower, first_offset=self.lower - lower)

    def valid(self, image_extent: int) -> list[range]:
        """For each tap, the pixels for which it reads the image and not padding."""
        place = self.lower + self.first_offset
        return [
            valid_outputs(place + tap * self.offset_step, self.stride, self.extent, image_extent)
            for tap in range(self.taps)
        ]

    def split_edges(self, image_extent: int, step: int) -> list[AxisClass]:
        """Cuts the pixels into parts in which every tap reads the image and no padding. step: output pixels from one of
        these pixels to the next.
        """
        valid = self.valid(image_extent)
        bounds = {0, self.extent, *(bound for pixels in valid if pixels for bound in (pixels.start, pixels.stop))}
        return [
            self._part(first, end, [tap for tap, pixels in enumerate(valid) if first in pixels], step)
            for first, end in pairwise(sorted(bounds))
        ]

    def _part(self, first: int, end: int, taps: Sequence[int], step: int) -> AxisClass:
        """Pixels ``first`` to ``end``, which have the neighbouring taps ``taps``."""
        origin = self.origin + first * step
        if not taps:
            return _without_taps(end - first, origin)
        lower = self.lower + self.first_offset + first * self.stride + taps[0] * self.offset_step
        return replace(
            self,
            extent=end - first,
            origin=origin,
            lower=lower,
            taps=len(taps),
            first_tap=self.first_tap + taps[0] * self.tap_step,
            first_offset=0,
        )

    def with_windows(self, image_extent: int, run: int) -> AxisClass:
        """The axis, of stride 1, with ``run`` taps read from one window that begins at the first one's pixels.

        A line is longer by as much as keeps windows inside of it. One window of all taps may run on into the next
        line where it reads padding there, for every tap of an output.
        """
        added = (run - 1) * self.offset_step
        if run == self.taps:
            padding = min(-self.lower, self.upper + self.reach - (image_extent - 1))
            added = min(max(self.reach - padding, 0), self.reach)
        return replace(self, extent=self.extent + added, run=run)


@dataclass(frozen=True)
class PixelClass:
    """Pixels with the same taps; axes outermost first."""

    axes: tuple[AxisClass, ...]

    @cached_property
    def extents(self) -> tuple[int, ...]:
        return tuple([axis.extent for axis in self.axes])

    @cached_property
    def taps(self) -> int:
        """Taps; 0 for pixels that no tap reaches."""
        return prod(axis.taps for axis in self.axes)

    @cached_property
    def runs(self) -> int:
        """Runs of taps that are read together."""
        return prod(axis.runs for axis in self.axes)

    def with_windows(self, image_extent: int, run: int) -> PixelClass:
        """The class with ``run`` taps of the last axis read from one window of pixels."""
        return PixelClass((*self.axes[:-1], self.axes[-1].with_windows(image_extent, run)))

    def pixels(self, images: int) -> int:
        return images * prod(self.extents)

    def struct(self, images: int, map_index: int, filter_taps: Sequence[int], channels_end: int) -> Struct:
        """The kernel's ``PixelClass`` (``im2col_operand.cuh``).

        filter_taps: the extents of the whole filter.  channels_end: the channel from which on no operand has channels.
        """
        pitches = [prod(filter_taps[place + 1 :]) for place in range(len(filter_taps))]
        first_filter = sum(axis.first_tap * pitch for axis, pitch in zip(self.axes, pitches, strict=True))
        counts = [axis.runs for axis in self.axes] if self.taps else [1] * len(self.axes)
        return Struct(
            (
                *(Struct(divider(axis.extent)) for axis in self.axes),
                Scalar(ScalarType.U32, self.pixels(images)),
                Scalar(ScalarType.U32, map_index),
                *i32(axis.stride for axis in self.axes),
                *i32(axis.lower for axis in self.axes),
                Struct(divider(prod(counts))),
                *(Struct(divider(count)) for count in counts),
                *i32((first_filter if self.taps else 0,)),
                *i32(axis.tap_step * pitch for axis, pitch in zip(self.axes, pitches, strict=True)),
                *i32(axis.first_offset for axis in self.axes),
                *i32(axis.offset_step for axis in self.axes),
                *i32((0 if self.taps else channels_end,)),
            )
        )


def forward_class(convolution: Convolution, filter_taps: Sequence[int], outputs: Sequence[int]) -> PixelClass:
    """The one class of a convolution forward: every output pixel has every tap."""
    is_flipped = convolution.mode is ConvolutionMode.CONVOLUTION
    return PixelClass(
        tuple(
            AxisClass(
                extent=outputs[axis],
                origin=0,
                stride=convolution.strides[axis],
                lower=-convolution.pre_paddings[axis],
                taps=taps,
                first_tap=taps - 1 if is_flipped else 0,
                tap_step=-1 if is_flipped else 1,
                offset_step=convolution.dilations[axis],
            )
            for axis, taps in enumerate(filter_taps)
        )
    )


def gradient_classes(
    convolution: Convolution, filter_taps: Sequence[int], pixels: Sequence[int]
) -> tuple[PixelClass, ...]:
    """The classes of a data gradient over ``pixels`` of dx, those with the most taps first."""
    axes = [
        _with_common_corners(
            [_residue(convolution, axis, taps, pixels[axis], at) for at in range(convolution.strides[axis])]
        )
        for axis, taps in enumerate(filter_taps)
    ]
    classes = [PixelClass(chosen) for chosen in product(*axes)]
    return _most_taps_first(classes)


def split_edges(
    classes: Sequence[PixelClass], image_extents: Sequence[int], steps: Sequence[int]
) -> tuple[PixelClass, ...]:
    """The pixels of ``classes``; those near the edges of the image are in classes without the taps that read padding.

    classes: all classes of an output.  steps: from one pixel of a class to the next, for each axis.
    """
    axes = [
        _with_common_corners([part for axis in given for part in axis.split_edges(extent, step)])
        for given, extent, step in zip(_axes(classes), image_extents, steps, strict=True)
    ]
    return _most_taps_first([PixelClass(chosen) for chosen in product(*axes)])


def image_share(classes: Sequence[PixelClass], image_extents: Sequence[int]) -> float:
    """Fraction of (output pixel, tap) pairs that read the image rather than padding."""
    share = 1.0
    for given, extent in zip(_axes(classes), image_extents, strict=True):
        seen = sum(axis.extent * axis.taps for axis in given)
        share *= sum(len(pixels) for axis in given for pixels in axis.valid(extent)) / seen if seen else 1.0
    return share


def offset_problem(classes: Sequence[PixelClass]) -> str:
    """Why the taps are too far from each other for a copy's offsets, or an empty string."""
    for pixel_class in classes:
        limit = _MAX_OFFSET[len(pixel_class.axes)]
        for place, axis in enumerate(pixel_class.axes):
            if axis.reach > limit:
                return f"dims[{2 + place}]: expected taps that reach at most {limit} positions, got {axis.reach}"
    return ""


def _axes(classes: Sequence[PixelClass]) -> list[list[AxisClass]]:
    """The classes of each axis; ``classes`` are all their combinations."""
    return [list(dict.fromkeys(axes)) for axes in zip(*(pixel_class.axes for pixel_class in classes), strict=True)]


def _most_taps_first(classes: Sequence[PixelClass]) -> tuple[PixelClass, ...]:
    return tuple(sorted(classes, key=lambda pixel_class: -pixel_class.taps))


def _without_taps(extent: int, origin: int, lower: int = 0) -> AxisClass:
    return AxisClass(extent, origin, 1, lower, 0, 0, 0, 0)


def _residue(convolution: Convolution, axis: int, taps: int, pixels: int, at: int) -> AxisClass:
    """The class of the pixels ``at`` plus multiples of the stride."""
    stride, dilation = convolution.strides[axis], convolution.dilations[axis]
    reached = at + convolution.pre_paddings[axis]
    period = stride // gcd(stride, dilation)
    firsts = (tap for tap in range(min(period, taps)) if (reached - tap * dilation) % stride == 0)
    seen = range(next(firsts, taps), taps, period)
    extent = max(ceil_div(pixels - at, stride), 0)
    if not seen:
        return _without_taps(extent, at)
    step = seen[1] - seen[0] if len(seen) > 1 else 0
    is_flipped = convolution.mode is ConvolutionMode.CONVOLUTION
    return AxisClass(
        extent=extent,
        origin=at,
        stride=1,
        lower=(reached - seen[-1] * dilation) // stride,
        taps=len(seen),
        first_tap=taps - 1 - seen[-1] if is_flipped else seen[-1],
        tap_step=step if is_flipped else -step,
        offset_step=step * dilation // stride,
    )


def _with_common_corners(classes: Sequence[AxisClass]) -> list[AxisClass]:
    """The classes that have pixels; those of equal extents begin at one position, so that they share tensor maps."""
    found = []
    for axis in classes:
        lower = min((other.lower for other in classes if other.extent == axis.extent and other.taps), default=0)
        if axis.extent:
            found.append(axis.below(lower) if axis.taps else _without_taps(axis.extent, axis.origin, lower))
    return found
