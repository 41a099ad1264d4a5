"""Lines of depthwise convolutions with taps along one axis: the host side of ``depthwise_lines.cuh``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.codegen.space import IndexSpace, space_of, with_axis
from lowdnn.engines.conv.depthwise.axes import Axis, AxisGeometry
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.launch import ACCESS_BYTES, ceil_div, ceil_power, divider, i32, i64
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct

#: Samples of one access to shared memory.
CHUNK = 4

#: Choices of channels in neighbouring threads of a block, if they are neighbours in memory.
LANES = (16, 32)

#: Banks of shared memory.
_BANKS = 32
#: Most residue classes of an axis.
_MAX_CLASSES = 32


@dataclass(frozen=True)
class LineGeometry:
    """The lines of a convolution.

    line: the one of ``geometry.axes`` along which lines run; they are counted over the two others and the images.
    """

    geometry: DepthwiseGeometry
    line: int

    @classmethod
    def of(cls, geometry: DepthwiseGeometry) -> LineGeometry | str:
        """The lines of ``geometry``, or why there are none."""
        with_taps = [number for number, axis in enumerate(geometry.axes) if axis.taps > 1]
        if len(with_taps) != 1:
            return f"expected taps along one axis, got {len(with_taps)}"
        if not all(_is_batch(axis) for number, axis in enumerate(geometry.axes) if number not in with_taps):
            return "expected no strides and no padding across the lines"
        if geometry.multiplier > 1:
            return f"expected one filter of each channel, got {geometry.multiplier}"
        return cls(geometry, with_taps[0])

    @property
    def axis(self) -> AxisGeometry:
        return self.geometry.axes[self.line]

    @cached_property
    def others(self) -> tuple[int, int]:
        """The other two of ``geometry.axes``, the last one first."""
        last, first = (number for number in (2, 1, 0) if number != self.line)
        return last, first

    @cached_property
    def batches(self) -> tuple[int, int, int]:
        """The radices of a line's number within its channel, the fastest first."""
        last, first = (self.geometry.axes[number].image for number in self.others)
        return last, first, self.geometry.images

    @property
    def batch_count(self) -> int:
        return prod(self.batches)

    def stride(self, tensor: Tensor) -> int:
        """Elements of ``tensor`` from one position of a line to the next."""
        return self.geometry.spatial_strides(tensor)[self.line]

    def lanes(self, tensor: Tensor) -> tuple[int, ...]:
        """Choices of channels in neighbouring threads: one if positions are contiguous instead; none if neither are."""
        if tensor.strides[1] == 1:
            return tuple(n for n in LANES if n < 2 * self.geometry.channels or n == LANES[0])
        return (1,) if self.stride(tensor) == 1 else ()

    def vector(self, tensor: Tensor, lanes: int, spacing: int) -> int:
        """Elements of an access.  spacing: positions from one sample to the next."""
        if lanes > 1:
            return min(self.geometry.neighbours(tensor), lanes)
        if spacing != 1:
            return 1
        line = 2 + self._axis_of_tensor
        steps = [s for axis, s in enumerate(tensor.strides) if axis != line and tensor.dims[axis] > 1]
        width = min(ACCESS_BYTES, tensor.alignment_bytes) // tensor.element_bytes
        while any(step % width for step in (*steps, tensor.dims[line])):
            width //= 2
        return width

    def lines(self, tensor: Tensor, extent: int) -> Struct:
        """The kernel's ``Lines``.  extent: the tensor's extent along the line."""
        strides = self.geometry.spatial_strides(tensor)
        batches = (*(strides[number] for number in self.others), tensor.strides[0])
        return Struct((*i64((*batches, tensor.strides[1], strides[self.line])), *i32((extent,))))

    def rows(self, channels: int, batches: int) -> Struct:
        """The kernel's ``Rows`` for a block with ``channels`` rows of channels and ``batches`` batches."""
        radices = (Struct(divider(radix)) for radix in self.batches)
        counts = i32((self.batch_count, self.geometry.channels, batches))
        return Struct((Struct(tuple(radices)), *counts, Struct(divider(channels))))

    def space(self, dag: PointwiseDag) -> IndexSpace:
        """The targets' index space: n, c, the other two axes, the line."""
        space = space_of(dag)
        for position, axis in enumerate(self.geometry.placed, 2):
            space = with_axis(space, position) if axis is None else space
        last, first = self.others
        return space.permuted((0, 1, 2 + first, 2 + last, 2 + self.line))

    def refuse(self, axis: Axis, tensors: tuple[Tensor, ...]) -> str:
        """Why the kernels cannot take lines of ``tensors`` with the classes of ``axis``, or an empty string."""
        if len(axis.classes) > _MAX_CLASSES:
            return f"expected at most {_MAX_CLASSES} residue classes, got {len(axis.classes)}"
        kinds = {self.lanes(tensor) for tensor in tensors}
        if len(kinds) > 1 or not next(iter(kinds)):
            return "expected neighbouring channels or neighbouring positions"
        return ""

    @property
    def _axis_of_tensor(self) -> int:
        placed = self.geometry.placed[self.line]
        assert placed is not None  # since the line has taps
        return placed


@dataclass(frozen=True)
class Staged:
    """Rows of one tensor in shared memory: ``samples`` of each, for ``lanes`` channels, in accesses of ``vector``."""

    samples: int
    lanes: int
    vector: int
    pitch: int

    @classmethod
    def of(cls, tile: int, halo: int, lanes: int, vector: int) -> Staged:
        """Rows of ``tile`` samples plus a halo of ``halo``. The pitch from row to row has the same bank offset as
        ``tile`` words."""
        if lanes > 1:
            samples = tile + halo
            return cls(samples, lanes, vector, samples * lanes)
        samples = ceil_div(tile + halo, vector) * vector
        return cls(samples, lanes, vector, tile + ceil_div(samples - tile, _BANKS) * _BANKS)

    @property
    def vectors(self) -> int:
        """Accesses that copy a row."""
        return self.samples * self.lanes // self.vector

    def struct(self) -> Struct:
        """The kernel's ``StagedRows``."""
        return Struct((Struct(divider(self.vectors)), *i32((self.pitch,))))


def lanes_reason(lanes: int, channels: int) -> str | None:
    """Why a block cannot have ``lanes`` lanes together with ``channels`` rows of channels, or None."""
    if lanes > 1 and channels > 1:
        return f"knob_choices: expected one row of channels with {lanes} lanes, got {channels}"
    return None


def class_room(axis: Axis) -> int:
    """Classes that a kernel has room for: a power of two, so that few kernels serve all shapes."""
    return ceil_power(len(axis.classes))


def whole_chunks(count: int) -> int:
    return ceil_div(count, CHUNK) * CHUNK


def _is_batch(axis: AxisGeometry) -> bool:
    return axis.taps == 1 and axis.stride == 1 and axis.padding == 0 and axis.image == axis.response
