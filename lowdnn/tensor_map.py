"""Descriptions of tensor maps (CUtensorMap) and the rules that they must keep.

A tensor map tells the tensor memory accelerator how a box of a tensor in global memory lies, and how its copy lies in
shared memory. ``TiledMap`` describes a box of a tensor of 1 to 5 dimensions, ``Im2colMap`` the pixels that a
convolution's filter tap sees. Dimensions are listed from the innermost one outwards, as the driver takes them.
Source: CUDA Driver API reference manual, "Tensor Map Object Management"; the numbers of the enums are the driver's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

#: Bytes of an encoded tensor map; a map in memory or among a kernel's parameters is aligned to 64.
TENSOR_MAP_BYTES = 128
TENSOR_MAP_ALIGN = 64
#: Bytes of which a tensor's address and strides are multiples where nothing is interleaved.
ADDRESS_UNIT_BYTES = 16


class TensorMapDataType(IntEnum):
    """CUtensorMapDataType, the members that compute capability 9.0 has."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12

    @property
    def size_bytes(self) -> int:
        return _SIZES_BYTES[self]

    @property
    def is_float(self) -> bool:
        return self >= TensorMapDataType.FLOAT16


class TensorMapInterleave(IntEnum):
    """CUtensorMapInterleave."""

    NONE = 0
    BYTES_16 = 1
    BYTES_32 = 2


class TensorMapSwizzle(IntEnum):
    """CUtensorMapSwizzle, the members that compute capability 9.0 has."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3

    @property
    def span_bytes(self) -> int:
        """The longest row that the pattern takes; 0 where there is no pattern."""
        return 16 << self if self else 0


class TensorMapL2Promotion(IntEnum):
    """CUtensorMapL2promotion."""

    NONE = 0
    BYTES_64 = 1
    BYTES_128 = 2
    BYTES_256 = 3


class TensorMapOobFill(IntEnum):
    """CUtensorMapFloatOOBfill: the values that a load gives where the box leaves the tensor."""

    ZEROS = 0
    NAN_REQUEST_ZERO_FMA = 1


@dataclass(frozen=True)
class TiledMap:
    """The arguments of cuTensorMapEncodeTiled.

    ``strides_bytes`` holds the strides of all dimensions but the innermost one, which is dense. ``box`` counts the
    elements of a copy along each dimension, of which every ``element_strides``-th one is taken. An element's address is
    ``address`` plus the products of its coordinates and strides modulo 2^64, so that strides may cancel.
    """

    data_type: TensorMapDataType
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: TensorMapInterleave = TensorMapInterleave.NONE
    swizzle: TensorMapSwizzle = TensorMapSwizzle.NONE
    l2_promotion: TensorMapL2Promotion = TensorMapL2Promotion.NONE
    oob_fill: TensorMapOobFill = TensorMapOobFill.ZEROS

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class Im2colMap:
    """The arguments of cuTensorMapEncodeIm2col, for a tensor of dimensions (C, W, N), (C, W, H, N) or (C, W, H, D, N).

    ``lower_corner`` and ``upper_corner`` move the first and the last pixel of the box in which a copy walks away from
    those of the image, in the order of the spatial dimensions: W first. A copy takes ``channels_per_pixel`` channels of
    ``pixels_per_column`` pixels; it walks in steps of ``element_strides``.
    """

    data_type: TensorMapDataType
    address: int
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]
    channels_per_pixel: int
    pixels_per_column: int
    element_strides: tuple[int, ...]
    interleave: TensorMapInterleave = TensorMapInterleave.NONE
    swizzle: TensorMapSwizzle = TensorMapSwizzle.NONE
    l2_promotion: TensorMapL2Promotion = TensorMapL2Promotion.NONE
    oob_fill: TensorMapOobFill = TensorMapOobFill.ZEROS

    @property
    def rank(self) -> int:
        return len(self.dims)


TensorMapLayout = TiledMap | Im2colMap


def tensor_map_problem(layout: TensorMapLayout) -> str:
    """The first of the driver's rules that ``layout`` breaks; empty where it keeps all.

    Engines ask before they count on tensor copies: a tensor with strides that are no multiples of 16 bytes has no map,
    nor has a filter that reaches further than corners do.
    """
    return tiled_map_problem(layout) if isinstance(layout, TiledMap) else im2col_map_problem(layout)


def tiled_map_problem(tiled: TiledMap) -> str:
    """The first rule of cuTensorMapEncodeTiled that the description breaks; empty where it keeps all."""
    lowest = 1 if tiled.interleave is TensorMapInterleave.NONE else 3
    return (
        _rank_problem(tiled, lowest)
        or _count_problem("box", tiled.box, tiled.rank)
        or _range_problem("box", tiled.box, 1, _MAX_BOX)
        or _tensor_problem(tiled)
        or _row_problem(tiled, "box[0]", tiled.box[0])
        or _size_problem(tiled, "box", math.prod(map(_steps, tiled.box, tiled.element_strides)))
    )


def im2col_map_problem(im2col: Im2colMap) -> str:
    """The first rule of cuTensorMapEncodeIm2col that the description breaks; empty where it keeps all."""
    return (
        _rank_problem(im2col, 3)
        or _corner_problem(im2col, "lower_corner", im2col.lower_corner)
        or _corner_problem(im2col, "upper_corner", im2col.upper_corner)
        or _range_problem("channels_per_pixel", (im2col.channels_per_pixel,), 1, _MAX_BOX)
        or _range_problem("pixels_per_column", (im2col.pixels_per_column,), 1, _MAX_PIXELS)
        or _tensor_problem(im2col)
        or _walk_problem(im2col)
        or _row_problem(im2col, "channels_per_pixel", im2col.channels_per_pixel)
        or _size_problem(im2col, "pixels_per_column", im2col.channels_per_pixel * im2col.pixels_per_column)
    )


def address_alignment(interleave: TensorMapInterleave) -> int:
    """Bytes that a tensor's address and strides are multiples of."""
    return 32 if interleave is TensorMapInterleave.BYTES_32 else ADDRESS_UNIT_BYTES


def address_problem(address: int, interleave: TensorMapInterleave) -> str:
    """Why ``address`` cannot be that of a tensor; empty where it can."""
    align = address_alignment(interleave)
    if address < 0 or address % align:
        return f"address: expected a multiple of {align}, got {address:#x}"
    return ""


_SIZES_BYTES = {
    TensorMapDataType.UINT8: 1,
    TensorMapDataType.UINT16: 2,
    TensorMapDataType.UINT32: 4,
    TensorMapDataType.INT32: 4,
    TensorMapDataType.UINT64: 8,
    TensorMapDataType.INT64: 8,
    TensorMapDataType.FLOAT16: 2,
    TensorMapDataType.FLOAT32: 4,
    TensorMapDataType.FLOAT64: 8,
    TensorMapDataType.BFLOAT16: 2,
    TensorMapDataType.FLOAT32_FTZ: 4,
    TensorMapDataType.TFLOAT32: 4,
    TensorMapDataType.TFLOAT32_FTZ: 4,
}
_MAX_RANK = 5
_MAX_BOX = 256
_MAX_PIXELS = 1024
_MAX_ELEMENT_STRIDE = 8
#: All shared memory of a multiprocessor. The manual sets no limit to a whole copy; the driver refuses larger ones.
_MAX_COPY_BYTES = 228 << 10
#: Rank -> the range of a corner's coordinates.
_CORNERS = {3: (-(1 << 15), (1 << 15) - 1), 4: (-(1 << 7), (1 << 7) - 1), 5: (-(1 << 4), (1 << 4) - 1)}


def _steps(extent: int, step: int) -> int:
    """That lie in the extent."""
    return -(-extent // step)


def _corner_problem(im2col: Im2colMap, name: str, corner: tuple[int, ...]) -> str:
    low, high = _CORNERS[im2col.rank]
    return _count_problem(name, corner, im2col.rank - 2) or _range_problem(name, corner, low, high)


def _walk_problem(im2col: Im2colMap) -> str:
    """The problem with the pixels between the corners."""
    for place, (lower, upper) in enumerate(zip(im2col.lower_corner, im2col.upper_corner, strict=True)):
        extent = im2col.dims[1 + place] + upper - lower
        if not 0 < extent < 1 << 31:
            return f"upper_corner[{place}]: expected 1 to {(1 << 31) - 1} pixels between the corners, got {extent}"
    return ""


def _rank_problem(description: TensorMapLayout, lowest: int) -> str:
    if lowest <= description.rank <= _MAX_RANK:
        return ""
    return f"dims: expected {lowest} to {_MAX_RANK} dimensions, got {description.rank}"


def _tensor_problem(description: TensorMapLayout) -> str:
    """The problem with the tensor, for both kinds of maps."""
    rank = description.rank
    return (
        address_problem(description.address, description.interleave)
        or _range_problem("dims", description.dims, 1, 1 << 32)
        or _count_problem("strides_bytes", description.strides_bytes, rank - 1)
        or _stride_problem(description.strides_bytes, address_alignment(description.interleave))
        or _count_problem("element_strides", description.element_strides, rank)
        or _range_problem("element_strides", description.element_strides, 1, _MAX_ELEMENT_STRIDE)
        or _mode_problem(description)
    )


def _stride_problem(strides_bytes: tuple[int, ...], align: int) -> str:
    for place, stride in enumerate(strides_bytes):
        if stride % align or not 0 <= stride < 1 << 40:
            return f"strides_bytes[{place}]: expected a multiple of {align} below 2**40, got {stride}"
    return ""


def _mode_problem(description: TensorMapLayout) -> str:
    if description.oob_fill is TensorMapOobFill.NAN_REQUEST_ZERO_FMA and not description.data_type.is_float:
        return f"oob_fill: NaN needs a floating-point data type, got {description.data_type.name}"
    if description.interleave is TensorMapInterleave.BYTES_32 and description.swizzle is not TensorMapSwizzle.BYTES_32:
        return f"swizzle: expected BYTES_32 with an interleave of 32 bytes, got {description.swizzle.name}"
    return ""


def _row_problem(description: TensorMapLayout, name: str, elements: int) -> str:
    """The bytes of one row in shared memory."""
    row_bytes = elements * description.data_type.size_bytes
    if row_bytes % 16:
        return f"{name}: expected a multiple of 16 bytes, got {elements} elements ({row_bytes} bytes)"
    span_bytes = description.swizzle.span_bytes
    if description.interleave is TensorMapInterleave.NONE and span_bytes and row_bytes > span_bytes:
        return f"{name}: expected at most the swizzle's {span_bytes} bytes, got {elements} elements ({row_bytes} bytes)"
    return ""


def _size_problem(description: TensorMapLayout, name: str, elements: int) -> str:
    size_bytes = elements * description.data_type.size_bytes
    if size_bytes <= _MAX_COPY_BYTES:
        return ""
    return f"{name}: expected copies of at most {_MAX_COPY_BYTES} bytes, got {size_bytes} ({elements} elements)"


def _count_problem(name: str, values: Sequence[int], count: int) -> str:
    return "" if len(values) == count else f"{name}: expected {count} numbers, got {len(values)}"


def _range_problem(name: str, values: Sequence[int], low: int, high: int) -> str:
    for place, value in enumerate(values):
        if not low <= value <= high:
            return f"{name}[{place}]: expected {low} to {high}, got {value}"
    return ""
