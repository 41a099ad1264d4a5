"""The common axes of copies: their order, which of them merge, and how wide accesses along them may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowdnn import dtypes
from lowdnn.engines.transform.matching import Copy
from lowdnn.engines.transform.views import View


@dataclass(frozen=True)
class Axis:
    """One axis of several copies, with each copy's extent, stride in x and stride in y.

    padding: zeros after the elements that only y has, which is contiguous along this axis.
    """

    extents: tuple[int, ...]
    x_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    padding: int = 0

    @property
    def y_extents(self) -> tuple[int, ...]:
        return tuple(extent + self.padding for extent in self.extents)


def common_axes(copies: Sequence[Copy], padding: int = 0) -> tuple[Axis, ...]:
    """The axes of non-empty copies of equal rank, slowest in y first; neighbours merge if all copies allow it.

    Axes of extent 1 are dropped, unless none would be left.  padding: zeros after the last axis.
    """
    rank = len(copies[0].y.dims)
    axes = [_axis(copies, axis) for axis in range(rank)]
    if padding:
        axes[-1] = replace(axes[-1], padding=padding)
    axes = [axis for axis in axes if max(axis.y_extents) > 1]
    axes.sort(key=lambda axis: axis.y_strides[0], reverse=True)
    merged: list[Axis] = []
    for axis in axes:
        if merged and _joins(merged[-1], axis):
            extents = tuple(a * b for a, b in zip(merged[-1].extents, axis.extents, strict=True))
            merged[-1] = Axis(extents, axis.x_strides, axis.y_strides)
        else:
            merged.append(axis)
    ones = (1,) * len(copies)
    return tuple(merged) or (Axis(ones, ones, ones),)


def _axis(copies: Sequence[Copy], axis: int) -> Axis:
    return Axis(
        tuple(copy.y.dims[axis] for copy in copies),
        tuple(copy.x.strides[axis] for copy in copies),
        tuple(copy.y.strides[axis] for copy in copies),
    )


def _joins(outer: Axis, inner: Axis) -> bool:
    return not inner.padding and all(
        outside == inside * extent
        for strides, insides in ((outer.x_strides, inner.x_strides), (outer.y_strides, inner.y_strides))
        for outside, inside, extent in zip(strides, insides, inner.extents, strict=True)
    )


def access_width(views: Sequence[View], steps: Sequence[Sequence[int]], most: int) -> int:
    """Elements of one access, a power of two up to ``most`` to which the start of every row of ``views`` is aligned.

    steps: for each view, the strides of all axes but the row's, and other numbers that the width must divide.
    """
    width = most
    for view, others in zip(views, steps, strict=True):
        size = dtypes.info(view.data_type).size_bytes
        width = min(width, max(16 // size, 1))
        while width > 1 and (view.alignment_bytes % (width * size) or any(s % width for s in (view.offset, *others))):
            width //= 2
    return width
