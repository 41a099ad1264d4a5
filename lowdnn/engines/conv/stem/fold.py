"""A convolution of few channels as one of phases: strides or taps become channels. Host side of ``stem_fold.cu``.

An axis with stride s is folded by writing the s neighbours at i * s + a - pre_padding (a < s: the phases) into the
channels of one position i. The convolution over the folded axis has stride 1, no padding, and ceil(taps / s) taps:

    y[o] = sum over r of x[o * s + r - pre] * w[r] = sum over (r', a) of folded_x[o + r', a] * folded_w[r', a],
    folded_w[r', a] = w[r' * s + a], 0 past the last tap

so that the same number of products has longer rows of channels: 16 bytes instead of 3 elements of a first layer. A
layer that cuts the image into patches (stride = taps) becomes a matrix product.

So does a convolution with all taps written into the channels, which repeats the inputs that neighbouring outputs share:

    folded_x[o, r] = x[o * s + r * dilation - pre], folded_w[0, r] = w[r]

That suits outputs with many more channels than the image, compared with which the repeated image is small.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from itertools import product
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.engines.launch import (
    aligned_bytes,
    bytes_touched,
    ceil_div,
    divider,
    i32,
    i64,
    macros,
    target_label,
    target_of_form,
)
from lowdnn.enums import ConvolutionMode
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor, channels_last_strides
from lowdnn.plan import KernelRef, Launch, MathUnit, Scalar, Struct, TensorPointer, Work, WorkspacePointer

_AXES = 3
_THREADS = 256
_CHUNK_BYTES = 16
#: Most chunks of a position that one thread takes where it loads single elements.
_MAX_ITEM_CHUNKS = 8
#: Bytes of a row of channels from which on it is padded to whole lines, which more engines take.
_SHORT_ROW_BYTES = 64
_LINE_BYTES = 128
_ALIGNMENT_BYTES = 256
_TILE_CHANNELS = 16
#: Share of the response's bytes up to which an image with taps as channels costs less than it saves.
_SMALL_SHARE = 1 / 4


class AxisFold(Enum):
    """The part of a spatial axis that is written into channels: its strides, its taps, or nothing."""

    NOTHING = auto()
    STRIDE = auto()
    TAPS = auto()


@dataclass(frozen=True)
class Params:
    """Macros of ``stem_fold.cu`` and ``stem_unfold.cu``."""

    TYPE: str
    CHANNELS: int
    PHASES_0: int
    PHASES_1: int
    PHASES_2: int
    FOLDED: int
    OVERLAPS_PREVIOUS: int


@dataclass(frozen=True)
class FoldedAxis:
    """One axis of a tensor: position i and phase a have the tensor's element origin + i * pace + a * gap."""

    positions: int
    phases: int = 1
    pace: int = 1
    origin: int = 0
    gap: int = 1


@dataclass(frozen=True)
class FoldedTensor:
    """``tensor`` (images or filters, channels, spatial...) with phases of its axes as channels, in the workspace.

    channels: channels of a folded position, padding included.  overlaps: its launches are dependent ones, on sm_90a.
    """

    tensor: Tensor
    axes: tuple[FoldedAxis, ...]
    channels: int
    overlaps: bool = False

    @cached_property
    def folded(self) -> Tensor:
        """The tensor of the convolution of phases; it keeps the uid."""
        dims = (self.tensor.dims[0], self.channels, *(axis.positions for axis in self.axes))
        strides = channels_last_strides(dims)
        return replace(self.tensor, dims=dims, strides=strides, alignment_bytes=_ALIGNMENT_BYTES)

    @property
    def size_bytes(self) -> int:
        return aligned_bytes(self.folded.element_count * self.tensor.element_bytes)

    def fold_kernel(self) -> KernelRef:
        rows = self._rows
        kernel = rows._kernel("stem_fold")
        parameters = (*kernel.parameters, ("VECTOR", rows._vector))
        return replace(kernel, name=f"{kernel.name}_v{rows._vector}", parameters=parameters)

    def fold_launch(self, kernel: int, to: WorkspacePointer) -> Launch:
        rows, axes = self._rows, self._rows._three
        chunks = self.folded.element_count * self.tensor.element_bytes // _CHUNK_BYTES
        items = chunks if rows._vector > 1 or self._chunks > _MAX_ITEM_CHUNKS else chunks // self._chunks
        arguments = Struct(
            (
                TensorPointer(self.tensor.uid),
                to,
                *rows._strides,
                *i32(rows._extents),
                *i32(axis.origin for axis in axes),
                *i32(axis.pace for axis in axes),
                *i32(axis.gap for axis in axes),
                *(Struct(divider(extent)) for extent in (self.tensor.dims[0], *(axis.positions for axis in axes))),
                *i32((items,)),
            )
        )
        return self._launch(kernel, items, arguments)

    def unfold_kernel(self) -> KernelRef:
        return self._kernel("stem_unfold")

    def unfold_launch(self, kernel: int, source: WorkspacePointer) -> Launch:
        """The launch that unfolds axes whose phases are neighbours, each of them in one position only."""
        axes, places = self._three, self.tensor.element_count // self.tensor.dims[1]
        arguments = Struct(
            (
                source,
                TensorPointer(self.tensor.uid),
                *self._strides,
                *(Struct(divider(extent)) for extent in (self.tensor.dims[0], *self._extents)),
                *i32(axis.origin for axis in axes),
                *i32(axis.gap for axis in axes),
                *(Struct(divider(abs(axis.pace))) for axis in axes),
                *i32(axis.positions for axis in axes),
                *i32((places,)),
            )
        )
        return self._launch(kernel, places, arguments)

    @property
    def _three(self) -> tuple[FoldedAxis, ...]:
        return (*(FoldedAxis(1),) * (_AXES - len(self.axes)), *self.axes)

    @property
    def _extents(self) -> tuple[int, ...]:
        return (*(1,) * (_AXES - len(self.axes)), *self.tensor.dims[2:])

    @property
    def _strides(self) -> tuple[Scalar, ...]:
        images, channels, *spatial = self.tensor.strides
        return (*i64((images,)), *i32((*(0,) * (_AXES - len(spatial)), *spatial, channels)))

    @cached_property
    def _rows(self) -> FoldedTensor:
        """The tensor with channels as elements of the last axis, if they are contiguous there."""
        tensor, (*outer, last) = self.tensor, self.axes
        images, channels, *_, width = tensor.dims
        if tensor.strides[1] != 1 or tensor.strides[-1] != channels or last.gap != 1:
            return self
        row = FoldedAxis(last.positions, last.phases * channels, last.pace * channels, last.origin * channels)
        elements = replace(
            tensor,
            dims=(images, 1, *tensor.dims[2:-1], width * channels),
            strides=(*tensor.strides[:-1], 1),
        )
        return replace(self, tensor=elements, axes=(*outer, row))

    @property
    def _vector(self) -> int:
        """Phases of the last axis that one aligned access may load, for a tensor with one or with merged channels."""
        size, last, (images, _, *outer, step) = self.tensor.element_bytes, self.axes[-1], self.tensor.strides
        if self.tensor.dims[1] != 1 or step != 1 or last.gap != 1:
            return 1
        places = (last.phases, last.pace, last.origin, self.tensor.dims[-1], images, *outer)
        return gcd(_CHUNK_BYTES // size, self.tensor.alignment_bytes // size, *places)

    @property
    def _chunks(self) -> int:
        """Chunks of a position."""
        return self.channels * self.tensor.element_bytes // _CHUNK_BYTES

    def _kernel(self, name: str) -> KernelRef:
        facts, axes = dtypes.info(self.tensor.data_type), self._three
        phases = (axes[0].phases, axes[1].phases, axes[2].phases)
        params = Params(facts.c_type, self.tensor.dims[1], *phases, self.channels, int(self.overlaps))
        target = target_of_form(is_newer=self.overlaps)
        pieces = f"c{params.CHANNELS}p{'x'.join(map(str, phases))}to{params.FOLDED}"
        variant = f"{facts.short_name}_{pieces}_{target_label(target)}"
        return KernelRef(f"{name}_{variant}", f"conv/stem/{name}.cu", target, macros(params))

    def _launch(self, kernel: int, threads: int, arguments: Struct) -> Launch:
        work = Work(bytes=bytes_touched(self.tensor) + self.size_bytes, unit=MathUnit.NONE)
        grid, block = (ceil_div(threads, _THREADS), 1, 1), (_THREADS, 1, 1)
        return Launch(kernel, grid, block, (arguments,), work=work, overlaps_previous=self.overlaps)


@dataclass(frozen=True)
class FoldedConvolution:
    """``operation`` (one group) with some of its axes folded.  axis_folds: the fold of each spatial axis."""

    operation: ConvolutionOperation
    axis_folds: tuple[AxisFold, ...]

    @classmethod
    def cheapest(cls, operation: ConvolutionOperation) -> FoldedConvolution:
        """The fold with all taps as channels if that pays; otherwise the fold with the shortest sums, padding
        included, and of those the one with the fewest taps."""
        geometry = operation.convolution
        of_taps = cls(operation, (AxisFold.TAPS,) * geometry.spatial_dims)
        if not isinstance(operation, ConvolutionBackwardData) and of_taps._has_small_image:
            return of_taps
        can_fold = (stride > 1 and gap == 1 for stride, gap in zip(geometry.strides, geometry.dilations, strict=True))
        folds = product(*((AxisFold.NOTHING, AxisFold.STRIDE) if can else (AxisFold.NOTHING,) for can in can_fold))
        return min((cls(operation, fold) for fold in folds), key=lambda folded: folded._cost)

    @cached_property
    def image(self) -> FoldedTensor:
        tensor = self.operation.image
        return FoldedTensor(tensor, tuple(map(self._image_axis, range(len(self.axis_folds)))), self.channels)

    @cached_property
    def filter(self) -> FoldedTensor:
        tensor = self.operation.filter
        return FoldedTensor(tensor, tuple(map(self._filter_axis, range(len(self.axis_folds)))), self.channels)

    @cached_property
    def channels(self) -> int:
        """Channels of a folded position, padding included: whole pieces of 16 bytes, or lines, in both tensors."""
        image, filters = self.operation.image, self.operation.filter
        phases = prod(map(self._phases, range(len(self.axis_folds))))
        element_bytes = min(image.element_bytes, filters.element_bytes)
        row_bytes = image.dims[1] * phases * element_bytes
        unit_bytes = _CHUNK_BYTES if row_bytes <= _SHORT_ROW_BYTES else _LINE_BYTES
        return ceil_div(row_bytes, unit_bytes) * unit_bytes // element_bytes

    @cached_property
    def geometry(self) -> Convolution:
        """The geometry of the convolution of phases."""
        old = self.operation.convolution
        return replace(
            old,
            mode=ConvolutionMode.CROSS_CORRELATION,
            strides=self._where_folded(1, old.strides),
            pre_paddings=self._where_folded(0, old.pre_paddings),
            post_paddings=self._where_folded(0, old.post_paddings),
            dilations=self._where_folded(1, old.dilations),
        )

    @property
    def _has_small_image(self) -> bool:
        image, response = self.image.folded, self.operation.response
        image_bytes = image.element_count * image.element_bytes
        return image_bytes <= _SMALL_SHARE * response.element_count * response.element_bytes

    @property
    def _cost(self) -> tuple[int, int]:
        """Length of the sums, and taps. Gradients have the folded channels as rows or columns, which come in 16s."""
        _, channels, *taps = self.filter.folded.dims
        unit = 1 if isinstance(self.operation, ConvolutionForward) else _TILE_CHANNELS
        return ceil_div(channels, unit) * unit * prod(taps), prod(taps)

    def _phases(self, axis: int) -> int:
        """Taps of one folded tap."""
        taps = self.operation.filter.dims[2 + axis]
        most = {AxisFold.NOTHING: 1, AxisFold.STRIDE: self.operation.convolution.strides[axis], AxisFold.TAPS: taps}
        return min(most[self.axis_folds[axis]], taps)

    def _image_axis(self, axis: int) -> FoldedAxis:
        if self.axis_folds[axis] is AxisFold.NOTHING:
            return FoldedAxis(self.operation.image.dims[2 + axis])
        geometry, phases = self.operation.convolution, self._phases(axis)
        positions = self.operation.response.dims[2 + axis] + self._filter_axis(axis).positions - 1
        origin = -geometry.pre_paddings[axis]
        return FoldedAxis(positions, phases, geometry.strides[axis], origin, geometry.dilations[axis])

    def _filter_axis(self, axis: int) -> FoldedAxis:
        taps, phases = self.operation.filter.dims[2 + axis], self._phases(axis)
        is_flipped = self.operation.convolution.mode is ConvolutionMode.CONVOLUTION
        origin, gap = (taps - 1, -1) if is_flipped else (0, 1)
        return FoldedAxis(ceil_div(taps, phases), phases, gap * phases, origin, gap)

    def _where_folded(self, value: int, old: tuple[int, ...]) -> tuple[int, ...]:
        pairs = zip(self.axis_folds, old, strict=True)
        return tuple(other if fold is AxisFold.NOTHING else value for fold, other in pairs)
