"""Image and filter of a convolution as tensor maps: host side of the loaders in ``im2col_operand.cuh``.

An operand that no map can describe in place (not channels-last, or not in multiples of 16 bytes) is repacked into the
workspace first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from lowdnn.engines.conv.wgmma.im2col import PixelClass
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.gemm.tf32_split import Tf32Split
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX, ROW_SWIZZLES, box_rows
from lowdnn.engines.matmul.pixel_matmul import merged_stride
from lowdnn.ops.tensor import Tensor
from lowdnn.tensor_map import (
    ADDRESS_UNIT_BYTES,
    Im2colMap,
    TensorMapDataType,
    TensorMapL2Promotion,
    TensorMapSwizzle,
    TiledMap,
)

#: Least bytes that a stage's row has of an operand.
_HALF_ROW_BYTES = STAGE_ROW_BYTES // 2
#: Most lines of a filter for which an MN-major box is at most an eighth full.
_FEW_LINES = MN_MAJOR_BOX // 8
#: Depth of a filter from which on each tile has many copies of it.
_DEEP = 256


@dataclass(frozen=True)
class ImageOperand:
    """The tensor whose pixels are read: x, or dy.

    packing: the repacked form, channels-last and with no row of a stage across two groups; or None.
    """

    tensor: Tensor
    groups: int
    packing: Packing | None

    @classmethod
    def of(cls, tensor: Tensor, groups: int) -> ImageOperand:
        group_bytes = tensor.dims[1] // groups * tensor.element_bytes
        if groups > 1 and group_bytes % STAGE_ROW_BYTES:
            return cls(tensor, groups, Packing(tensor, groups, ADDRESS_UNIT_BYTES, STAGE_ROW_BYTES))
        return cls(tensor, groups, None if _is_channels_last(tensor) else Packing(tensor, groups, ADDRESS_UNIT_BYTES))

    @property
    def group_channels(self) -> int:
        """Channels of a group in memory, padding included."""
        return self.packing.padded_channels if self.packing else self.tensor.dims[1] // self.groups

    @property
    def is_misaligned(self) -> bool:
        """Whether half rows of a stage begin inside cache lines."""
        strides = self.packing.strides if self.packing else self.tensor.strides
        return any(strides[axis] * self.tensor.element_bytes % _HALF_ROW_BYTES for axis in range(2, self.tensor.rank))

    def corners(self, classes: Sequence[PixelClass]) -> tuple[PixelClass, ...]:
        """One class for each map: classes of equal extents share a map."""
        return tuple({pixel_class.extents: pixel_class for pixel_class in classes}.values())

    def map(self, pixel_class: PixelClass, map_type: TensorMapDataType, pixels: int, row_bytes: int) -> Im2colMap:
        """The map of the class's pixels, ``pixels`` of them in a copy, with ``row_bytes`` of channels each."""
        tensor, size = self.tensor, self.tensor.element_bytes
        strides = self.packing.strides if self.packing else tensor.strides
        channels = self.groups * self.group_channels
        inner = tuple(range(tensor.rank - 1, 1, -1))
        axes = tuple(reversed(pixel_class.axes))
        return Im2colMap(
            map_type,
            address=0,
            dims=(channels, *(tensor.dims[axis] for axis in inner), tensor.dims[0]),
            strides_bytes=tuple(_stride_bytes(tensor.dims[axis], strides[axis] * size) for axis in (*inner, 0)),
            lower_corner=tuple(axis.lower for axis in axes),
            upper_corner=tuple(axis.upper - (tensor.dims[place] - 1) for axis, place in zip(axes, inner, strict=True)),
            channels_per_pixel=row_bytes // size,
            pixels_per_column=pixels,
            element_strides=(1, *(axis.stride for axis in axes), 1),
            swizzle=ROW_SWIZZLES[row_bytes],
            l2_promotion=TensorMapL2Promotion.BYTES_128,
        )


@dataclass(frozen=True)
class FilterOperand:
    """The filter as a matrix of lines (the output's channels) by k, for each tap.

    lines, depth: lines and k of one group.  is_mn_major: the lines are contiguous, otherwise k is.
    packing: the repacked form, or None.  is_split: the kernel reads k in parts (``gemm/tf32_split.py``).
    """

    tensor: Tensor
    groups: int
    lines: int
    depth: int
    is_mn_major: bool
    packing: Packing | None
    is_split: bool = False

    @classmethod
    def forward(cls, w: Tensor, groups: int) -> FilterOperand:
        """The filter of a forward convolution, whose lines are filters."""
        packing = None if _is_krsc(w) else Packing(w, 1, ADDRESS_UNIT_BYTES)
        return cls(w, groups, w.dims[0] // groups, w.dims[1], False, packing)

    @classmethod
    def gradient(cls, w: Tensor, groups: int, allows_mn_major: bool) -> FilterOperand:
        """The filter of a data gradient, whose lines are the image's channels, contiguous in w in place.

        If w is repacked anyway, few lines of many k become rows of k: MN-major, each k would take a copy's whole row.
        """
        lines, depth, is_read_in_place = w.dims[1], w.dims[0] // groups, _is_krsc(w)
        if allows_mn_major and (is_read_in_place or lines > _FEW_LINES or depth < _DEEP):
            packing = None if is_read_in_place else Packing(w, 1, ADDRESS_UNIT_BYTES)
            return cls(w, groups, lines, depth, True, packing)
        return cls(w, groups, lines, depth, False, Packing(_transposed(w, groups), 1, ADDRESS_UNIT_BYTES))

    @property
    def is_misaligned(self) -> bool:
        """Whether half rows of a stage begin inside cache lines."""
        size = self.tensor.element_bytes
        return any(extent > 1 and stride * size % _HALF_ROW_BYTES for extent, stride in self._read)

    @property
    def group_lines(self) -> int:
        """Lines in the map from one group to the next."""
        return 0 if self.is_mn_major else self.lines

    @property
    def group_depth(self) -> int:
        """Elements of k in the map from one group to the next."""
        return self.depth if self.is_mn_major else 0

    def map(self, map_type: TensorMapDataType, lines: int, row_bytes: int, sharers: int) -> TiledMap:
        """The map (contiguous dimension, taps, other dimension) for the ``lines`` of a tile.

        row_bytes: bytes along k.  sharers: number of blocks that divide the loads of a stage's lines or k.
        """
        size, contiguous = self.tensor.element_bytes, self.lines if self.is_mn_major else self.depth
        if self.is_split:
            contiguous = self.split.row_elements
        k = row_bytes // size
        return TiledMap(
            map_type,
            address=0,
            dims=(contiguous, *(extent for extent, _ in self._read)),
            strides_bytes=tuple(_stride_bytes(extent, stride * size) for extent, stride in self._read),
            box=(MN_MAJOR_BOX, 1, k // sharers) if self.is_mn_major else (k, 1, box_rows(lines // sharers)),
            element_strides=(1, 1, 1),
            swizzle=TensorMapSwizzle.BYTES_128 if self.is_mn_major else ROW_SWIZZLES[row_bytes],
            l2_promotion=TensorMapL2Promotion.BYTES_256,
        )

    @property
    def split(self) -> Tf32Split:
        """The split of a K-major filter of FLOAT, line by line and tap by tap."""
        (taps, spacing), (others, stride) = self._outer
        return Tf32Split((others, taps), (stride, spacing), self.depth)

    @property
    def _read(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """``_outer``, of the parts if the filter is split."""
        if not self.is_split:
            return self._outer
        split = self.split
        (others, taps), (stride, spacing) = split.extents, split.split_strides
        return (taps, spacing), (others, stride)

    @property
    def _outer(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Extent and stride, in elements, of the taps and of the other dimension that is not contiguous."""
        taps, others = prod(self.tensor.dims[2:]), self.groups * (self.depth if self.is_mn_major else self.lines)
        if self.packing:
            return (taps, self.packing.channels), (others, taps * self.packing.channels)
        spacing = merged_stride(self.tensor, range(2, self.tensor.rank))
        assert isinstance(spacing, int), spacing
        return (taps, spacing), (others, self.tensor.strides[0])


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether a map can describe the tensor in place."""
    if tensor.strides[1] != 1 and tensor.dims[1] != 1:
        return False
    return tensor.alignment_bytes >= ADDRESS_UNIT_BYTES and all(
        _is_whole(tensor.strides[axis] * tensor.element_bytes)
        for axis in range(tensor.rank)
        if axis != 1 and tensor.dims[axis] > 1
    )


def _is_krsc(w: Tensor) -> bool:
    """Whether w's channels are contiguous and its taps evenly spaced, so that a map can describe it in place."""
    if w.alignment_bytes < ADDRESS_UNIT_BYTES or (w.strides[1] != 1 and w.dims[1] != 1):
        return False
    spacing = merged_stride(w, range(2, w.rank))
    if isinstance(spacing, str):
        return False
    is_whole_tap = prod(w.dims[2:]) == 1 or _is_whole(spacing * w.element_bytes)
    return is_whole_tap and (w.dims[0] == 1 or _is_whole(w.strides[0] * w.element_bytes))


def _is_whole(stride_bytes: int) -> bool:
    return stride_bytes > 0 and stride_bytes % ADDRESS_UNIT_BYTES == 0


def _stride_bytes(extent: int, stride_bytes: int) -> int:
    """A tensor map's stride of a dimension, in bytes. For an extent of 1 any stride will do that the driver accepts."""
    return stride_bytes if extent > 1 else ADDRESS_UNIT_BYTES


def _transposed(w: Tensor, groups: int) -> Tensor:
    """w with a group's channels as images and its filters as channels; groups come first if there are several."""
    group_filters = w.dims[0] // groups
    dims, strides = (w.dims[1], group_filters, *w.dims[2:]), (w.strides[1], w.strides[0], *w.strides[2:])
    if groups > 1:
        dims = (groups, group_filters, w.dims[1], *w.dims[2:])
        strides = (group_filters * w.strides[0], w.strides[0], w.strides[1], *w.strides[2:])
    return replace(w, dims=dims, strides=strides)
