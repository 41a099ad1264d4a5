"""A resampling as the kernels see it: a source that is read, a target that is computed, and three axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from lowdnn.codegen.functor import Functor, generate
from lowdnn.codegen.space import IndexSpace, space_of, with_axis
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X, ceil_div
from lowdnn.engines.resample import axes
from lowdnn.enums import DataType, NanPropagation, PaddingMode, ResampleMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.resample import AxisTaps, Resample, ResampleOperation
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.resample_forward import ResampleForward
from lowdnn.ops.tensor import Tensor

#: Neighbouring channels of a thread at most, whose results are in registers.
_MAX_CHANNELS = 8
#: Bytes of an access.
_ACCESS_BYTES = 16

#: Neighbouring channels at most whose planes a thread has.
_MAX_PLANES = 2

#: Neighbouring columns of a thread at most.
_MAX_TILE = 16

#: Threads of a block at least.
_FEWEST_THREADS = 64


@dataclass(frozen=True)
class Problem:
    """One of the two operations with its pointwise epilogue."""

    operation: ResampleOperation
    dag: PointwiseDag

    @property
    def is_backward(self) -> bool:
        return isinstance(self.operation, ResampleBackward)

    @property
    def resample(self) -> Resample:
        return self.operation.resample

    @property
    def source(self) -> Tensor:
        """x or dy."""
        return self.operation.response if self.is_backward else self.operation.image

    @property
    def target(self) -> Tensor:
        """y or dx."""
        return self.operation.image if self.is_backward else self.operation.response

    @property
    def is_maximum(self) -> bool:
        return self.resample.mode is ResampleMode.MAXPOOL

    @property
    def is_linear(self) -> bool:
        return self.resample.mode is ResampleMode.BILINEAR

    @property
    def index(self) -> Tensor | None:
        """The tensor of argmaxes that the kernel writes or reads, in each window or in the image."""
        index = self.operation.index if self.is_maximum else None
        return None if index is None or index.is_virtual else index

    @property
    def index_in_image(self) -> bool:
        """Whether the index is that of a maximum in the image."""
        return isinstance(self.operation, ResampleForward) and self.operation.index_in_image

    @property
    def searched(self) -> Tensor | None:
        """x in a backward pass that searches it for the maxima again; otherwise None."""
        operation = self.operation
        if not isinstance(operation, ResampleBackward) or not self.is_maximum or operation.index is not None:
            return None
        return operation.x

    @cached_property
    def axes(self) -> tuple[AxisTaps, AxisTaps, AxisTaps]:
        """Planes, rows, columns."""
        found = self.operation.axes
        planes, rows, columns = (*(axes.MISSING,) * (3 - len(found)), *map(axes.canonical, found))
        return planes, rows, columns

    @cached_property
    def padding(self) -> str:
        """The kernels' name for the values of positions outside the image."""
        if not any(map(axes.leaves_image, self.axes)):
            return "SKIP"
        if self.resample.is_clamped:
            return "CLAMP"
        holds_zero = self.is_maximum and self.resample.padding_mode is PaddingMode.ZERO_PAD
        return "ZERO" if holds_zero else "SKIP"

    @cached_property
    def divisor(self) -> str:
        """The kernels' name for the divisor of a sum."""
        if self.is_maximum or not self.resample.is_pooling:
            return "NONE"
        if self.resample.excludes_padding and any(map(axes.leaves_image, self.axes)):
            return "INSIDE"
        return "ALL" if self.has_whole_windows else "TAPS"

    @property
    def has_whole_windows(self) -> bool:
        """Whether all windows have the same number of taps, and begin a whole number of positions after each other."""
        return all(axis.unit == 1 for axis in self.axes)

    @property
    def tap_count(self) -> int:
        """Taps of a window that does not leave the image."""
        return prod(axis.reach for axis in self.axes)

    @property
    def has_planes(self) -> bool:
        """Whether windows extend over planes."""
        return self.axes[0] != axes.MISSING

    @property
    def has_patterns(self) -> bool:
        """Whether kernels can know the taps of a tile at compile time; argmaxes must then lie in one plane."""
        has_argmaxes = self.index is not None or self.searched is not None
        return all(map(axes.has_pattern, self.axes[1:])) and not (has_argmaxes and self.has_planes)

    @property
    def nan_wins(self) -> bool:
        """Whether NaN counts as the largest in a search for maxima."""
        is_searched = self.is_maximum and (not self.is_backward or self.searched is not None)
        return is_searched and self.resample.nan_propagation is NanPropagation.PROPAGATE_NAN

    @cached_property
    def channels_last(self) -> bool:
        """Whether neighbouring threads have neighbouring channels."""
        return self.source.strides[1] == 1 and self.source.dims[1] > 1

    @property
    def has_neighbouring_columns(self) -> bool:
        """Whether neighbouring columns are contiguous in all tensors that are read."""
        read = (self.source, self.searched, self.index if self.is_backward else None)
        return all(tensor is None or tensor.strides[-1] == 1 for tensor in read)

    @property
    def order(self) -> str:
        """The order in kernel names: "d" for planes; "c" for channels last, "p" for contiguous columns, else "s"."""
        planes = "d" if self.has_planes else ""
        return planes + ("c" if self.channels_last else "p" if self.has_neighbouring_columns else "s")

    @cached_property
    def most_channels(self) -> int:
        """Neighbouring channels that one access reads, or planes whose 16-bit maxima are computed in pairs."""
        read = [self.source] if self.searched is None else [self.source, self.searched]
        if self.channels_last:
            return min(_MAX_CHANNELS, *(neighbours(tensor, 1) for tensor in read))
        has_pairs = self.has_half_maxima and not self.is_backward and self.index is None
        return gcd(_MAX_PLANES, self.source.dims[1]) if has_pairs else 1

    @property
    def has_half_maxima(self) -> bool:
        """Whether maxima of fp16 or bf16 numbers are searched for."""
        image = self.searched if self.is_backward else self.source
        return self.is_maximum and image is not None and image.data_type in (DataType.HALF, DataType.BFLOAT16)

    @cached_property
    def space(self) -> IndexSpace:
        """The target's index space: n, c, planes, rows, columns."""
        space = space_of(self.dag)
        while space.rank < 5:
            space = with_axis(space, 2)
        return space

    @cached_property
    def functor(self) -> Functor:
        """The epilogue's functor, with vectors along the channels or along the columns."""
        axis = 1 if self.channels_last else 4
        compute_type = self.resample.compute_type
        return generate(self.dag, accumulator=compute_type, vector_axis=axis, space=self.space)

    def radices(self, channels: int, rows: int, columns: int) -> tuple[int, ...]:
        """The radices of the number of a thread's group, the slowest axis first."""
        n, c, planes, row_extent, column_extent = self.space.extents
        down, along = ceil_div(row_extent, rows), ceil_div(column_extent, columns)
        if self.channels_last:
            return n, planes, down, along, c // channels
        return n, c // channels, planes, down, along

    def index_width(self, channels: int, columns: int) -> int:
        """Elements of an access to the index; 0 if a thread's elements are not contiguous."""
        if self.index is None:
            return 0
        if self.channels_last:
            return channels if neighbours(self.index, 1) >= channels else 0
        return 1 if self.is_backward else min(columns, neighbours(self.index, self.index.rank - 1, is_whole=False))

    def refuse(self) -> str:
        """The reason why the kernels cannot take the shape, or an empty string."""
        for axis in self.axes:
            if not axes.fits(axis, _MAX_TILE):
                got = axes.largest_number(axis, _MAX_TILE)
                return (
                    f"resample.strides: expected positions, in units of their fractions, up to {MAX_EXTENT}, got {got}"
                )
        radices = self.radices(1, 1, 1)
        if max(radices) > MAX_EXTENT:
            return f"resample.{self.target.label}.dims: expected extents up to {MAX_EXTENT}, got {max(radices)}"
        blocks = ceil_div(prod(self.radices(self.most_channels, 1, 1)), _FEWEST_THREADS)
        if blocks > MAX_GRID_X:
            return f"resample.{self.target.label}.dims: expected at most {MAX_GRID_X} blocks, got {blocks}"
        return ""


def strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of n, c, planes, rows and columns; 0 for a missing axis."""
    return (*tensor.strides[:2], *(0,) * (5 - tensor.rank), *tensor.strides[2:])


def neighbours(tensor: Tensor, axis: int, is_whole: bool = True) -> int:
    """Neighbours along ``axis`` in one access of up to 16 bytes: a power of two.

    is_whole: whether it must divide the extent. Strided elements give 1 then, and 0 otherwise.
    """
    if tensor.strides[axis] != 1:
        return 0 if not is_whole else 1
    width = min(_ACCESS_BYTES, tensor.alignment_bytes) // tensor.element_bytes
    steps = [s for other, s in enumerate(tensor.strides) if other != axis and tensor.dims[other] > 1]
    while any(step % width for step in (*steps, *([tensor.dims[axis]] if is_whole else ()))):
        width //= 2
    return width
