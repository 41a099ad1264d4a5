"""Strided views of memory: the element that a coordinate names, through transposes, slices and reshapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lowdnn.enums import DataType
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.plan import Pointer, TensorPointer


@dataclass(frozen=True)
class View:
    """A view whose element ``i`` is ``offset + sum(i[d] * strides[d])`` elements after ``target``.

    alignment_bytes: the alignment of the address of ``target``.
    """

    target: Pointer
    data_type: DataType
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    alignment_bytes: int
    offset: int = 0

    @staticmethod
    def of(tensor: Tensor) -> View:
        """The view of a whole tensor in device memory."""
        target = TensorPointer(tensor.uid)
        return View(target, tensor.data_type, tensor.dims, tensor.strides, tensor.alignment_bytes)

    @staticmethod
    def packed(target: Pointer, data_type: DataType, dims: tuple[int, ...], alignment_bytes: int) -> View:
        return View(target, data_type, dims, packed_strides(dims), alignment_bytes)

    def transposed(self, permutation: tuple[int, ...]) -> View:
        return replace(
            self,
            dims=tuple(self.dims[axis] for axis in permutation),
            strides=tuple(self.strides[axis] for axis in permutation),
        )

    def sliced(self, start: tuple[int, ...], steps: tuple[int, ...], dims: tuple[int, ...]) -> View:
        """``dims`` elements from ``start`` on, at distances ``steps``."""
        moved = sum(first * stride for first, stride in zip(start, self.strides, strict=True))
        strides = tuple(stride * step for stride, step in zip(self.strides, steps, strict=True))
        return replace(self, dims=dims, strides=strides, offset=self.offset + moved)

    def reshaped(self, dims: tuple[int, ...]) -> View | None:
        """The elements in row-major order under other dims; None if no strides describe them."""
        if 0 in dims:
            return replace(self, dims=dims, strides=packed_strides(dims))
        strides: list[int] = []
        rest = list(merged_rows(self.dims, self.strides))
        for extent in reversed(dims):
            if extent == 1:
                strides.append(1)
                continue
            if not rest or rest[-1][0] % extent:
                return None
            left, stride = rest.pop()
            strides.append(stride)
            if left > extent:
                rest.append((left // extent, stride * extent))
        return replace(self, dims=dims, strides=tuple(reversed(strides)))

    def refined(self, other: View) -> tuple[View, View] | None:
        """Both views under the fewest dims that they can share in row-major order; None if there are none."""
        mine, others = (list(merged_rows(view.dims, view.strides)) for view in (self, other))
        axes: list[tuple[int, int, int]] = []
        while mine and others:
            (extent, stride), (other_extent, other_stride) = mine.pop(), others.pop()
            common = min(extent, other_extent)
            if extent % common or other_extent % common:
                return None
            axes.append((common, stride, other_stride))
            for rest, left, step in ((mine, extent, stride), (others, other_extent, other_stride)):
                if left > common:
                    rest.append((left // common, step * common))
        dims, strides, other_strides = (tuple(axis[n] for axis in reversed(axes)) for n in range(3))
        return replace(self, dims=dims, strides=strides), replace(other, dims=dims, strides=other_strides)


def merged_rows(dims: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(extent, stride) of each axis, the outermost first, with neighbours merged and without axes of extent 1."""
    merged: tuple[int, int] | None = None
    for extent, stride in zip(dims, strides, strict=True):
        if extent == 1:
            continue
        if merged is not None and merged[1] == stride * extent:
            merged = (merged[0] * extent, stride)
            continue
        if merged is not None:
            yield merged
        merged = (extent, stride)
    if merged is not None:
        yield merged
