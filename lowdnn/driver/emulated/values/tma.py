"""Which bytes a tensor copy moves: boxes of tiled maps and columns of pixels of im2col maps, for many copies at once.

Both give ``Units``: where each unit of the copy lies in the tensor, and which units exist. In shared memory they lie
row by row, the innermost dimension first; ``shared_pattern`` says where. Source: PTX ISA manual, "Tensors": "Tiled
Mode", "Im2col Mode", "Swizzling Modes", "Out-of-Boundary Access". Cases that the manual leaves open are as an H200 does
them: rows that are shorter than the swizzle's span begin a span apart, addresses are modulo 2^64, the fill is 0x7FF7 in
every 16 bits, TFLOAT32 loads round to nearest, and the FTZ types flush nothing on loads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lowdnn.driver.emulated.values import formats
from lowdnn.driver.emulated.values.packed import Array
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TensorMapOobFill, TensorMapSwizzle, TiledMap

#: Shared memory is swizzled in chunks of 16 bytes, from this bit of the address on.
_CHUNK_BITS = 4
#: Lowest of the address bits that the swizzle XORs into the chunk's bits.
_ROW_BITS = 7
_LARGEST_UNIT = 16


@dataclass(frozen=True)
class Units:
    """The n units of L copies. ``first`` [L] plus ``pattern``, [n] where all copies look alike, else [L, n]: byte
    offset of each unit from the tensor's address; ``inside`` [L, n] bool: is it in the tensor, None where all are.
    ``unit``: bytes of a unit."""

    first: Array
    pattern: Array
    inside: Array | None
    unit: int

    @property
    def places(self) -> Array:
        """[L, n] byte offset of each unit."""
        return np.asarray(self.first[:, None] + self.pattern)

    def extent(self) -> tuple[int, int] | None:
        """(first, one past the last) byte offset of the units in the tensor; None where there are none."""
        if self.inside is None and self.pattern.ndim == 1:
            low, high = self.first.min() + self.pattern.min(), self.first.max() + self.pattern.max()
        else:
            places = self.places if self.inside is None else self.places[self.inside]
            if not places.size:
                return None
            low, high = places.min(), places.max()
        return int(low), int(high) + self.unit


def tile_bytes(tiled: TiledMap) -> int:
    """Bytes of the box in shared memory."""
    return math.prod(_tile_extents(tiled)) * tiled.data_type.size_bytes


def column_bytes(im2col: Im2colMap) -> int:
    """Bytes of a column of pixels in shared memory."""
    return im2col.pixels_per_column * im2col.channels_per_pixel * im2col.data_type.size_bytes


def tile_units(tiled: TiledMap, start: Array) -> Units:
    """The box whose first corner is at the coordinates ``start`` [L, rank] (int64, innermost first)."""
    extents, steps = _tile_extents(tiled), (1, *tiled.element_strides[1:])
    last = start + [(extent - 1) * step for extent, step in zip(extents, steps, strict=True)]
    unit = _unit(tiled, start[:, 0], bool((last[:, 0] >= tiled.dims[0]).any()))
    pattern = _tile_pattern(extents, steps, tiled.strides_bytes, tiled.data_type.size_bytes, unit)
    first = _origins(tiled, start)
    if not (start < 0).any() and (last < tiled.dims).all():
        return Units(first, pattern.places, None, unit)
    shape = (len(start), *(len(relative) for relative in pattern.coordinates))
    inside = np.ones(shape, dtype=np.bool_)
    for axis, relative in enumerate(pattern.coordinates):
        dimension = tiled.rank - 1 - axis
        at = start[:, dimension, None] + relative
        good = (at >= 0) & (at < tiled.dims[dimension])
        inside &= good.reshape(len(start), *(-1 if i == axis else 1 for i in range(tiled.rank)))
    return Units(first, pattern.places, inside.reshape(len(start), -1), unit)


def column_units(im2col: Im2colMap, start: Array, offsets: Array) -> Units:
    """The column of pixels that begins with the base pixel at ``start`` [L, rank], each moved by the filter's
    ``offsets`` [L, rank - 2] (int64, W first).

    Base pixels follow each other along W, then H, D and N, in steps of the map's element strides, within the box of
    pixels between the map's corners.
    """
    size = im2col.data_type.size_bytes
    channels, pixels = im2col.channels_per_pixel, im2col.pixels_per_column
    clips = bool((start[:, 0] + channels > im2col.dims[0]).any())
    unit = _unit(im2col, start[:, 0], clips)
    channel = np.arange(0, channels, unit // size) if unit > size else np.arange(channels)
    at = start[:, :1] + channel
    channel_inside = (at >= 0) & (at < im2col.dims[0])
    pixel_places = np.zeros((len(start), pixels), dtype=np.int64)
    pixel_inside = np.ones((len(start), pixels), dtype=np.bool_)
    for dimension, coordinates in enumerate(_pixels(im2col, start), start=1):
        if dimension <= offsets.shape[1]:
            coordinates = coordinates + offsets[:, dimension - 1, None]
        pixel_places += coordinates * im2col.strides_bytes[dimension - 1]
        pixel_inside &= (coordinates >= 0) & (coordinates < im2col.dims[dimension])
    places = pixel_places[:, :, None] + (at * size)[:, None, :]
    inside = pixel_inside[:, :, None] & channel_inside[:, None, :]
    pattern = places.reshape(len(start), -1)
    return Units(np.zeros_like(start[:, 0]), pattern, None if inside.all() else inside.reshape(pattern.shape), unit)


def off_the_box(im2col: Im2colMap, start: Array) -> Array:
    """[L] bool: whether the column begins outside of the box of pixels, at which an H200 stops the kernel."""
    off = np.zeros(len(start), dtype=np.bool_)
    for dimension in range(1, im2col.rank - 1):
        off |= start[:, dimension] < im2col.lower_corner[dimension - 1]
        off |= start[:, dimension] > _last_pixel(im2col, dimension)
    return off


def swizzled(swizzle: TensorMapSwizzle, address: Array) -> Array:
    """Where bytes at these shared addresses go: the pattern takes the address itself, not the place in the box."""
    if swizzle is TensorMapSwizzle.NONE:
        return address
    moved: Array = address ^ (((address >> _ROW_BITS) & ((1 << swizzle) - 1)) << _CHUNK_BITS)
    return moved


def row_bytes(tensor_map: TiledMap | Im2colMap) -> int:
    """Bytes of a row of a copy."""
    elements = tensor_map.box[0] if isinstance(tensor_map, TiledMap) else tensor_map.channels_per_pixel
    return elements * tensor_map.data_type.size_bytes


def shared_bytes_of(tensor_map: TiledMap | Im2colMap, nbytes: int) -> int:
    """Bytes from the first to the last that a copy of ``nbytes`` takes in shared memory."""
    length = row_bytes(tensor_map)
    return nbytes // length * max(length, tensor_map.swizzle.span_bytes)


@lru_cache(maxsize=256)
def shared_pattern(swizzle: TensorMapSwizzle, base: int, unit: int, nbytes: int, row: int) -> Array:
    """[n] byte offsets from ``base`` of the units of a copy of ``nbytes`` in rows of ``row`` bytes; ``base`` counts
    modulo the pattern's 1024 bytes."""
    offsets = np.arange(0, nbytes, unit, dtype=np.int64)
    spread = offsets // row * max(row, swizzle.span_bytes) + offsets % row
    pattern: Array = swizzled(swizzle, base + spread) - base
    return pattern


def fill_of(fill: TensorMapOobFill, unit: int) -> bytes:
    """The bytes of a unit outside the tensor; none for zeros."""
    return b"" if fill is TensorMapOobFill.ZEROS else b"\xf7\x7f" * (unit // 2)


def conversion_of(data_type: TensorMapDataType) -> Callable[[Array], Array] | None:
    """How a load changes the bytes (uint8) of this type; None where it does not."""
    if data_type in (TensorMapDataType.TFLOAT32, TensorMapDataType.TFLOAT32_FTZ):
        return _rounded_to_tf32
    return None


def _rounded_to_tf32(content: Array) -> Array:
    return np.asarray(formats.encode(content.view(np.float32), "tf32").view(np.uint8))


@dataclass(frozen=True)
class _Pattern:
    """A box at the origin: byte offset of each of its n units, and the coordinates along each dimension, outermost
    first (along the innermost one those of each unit's first element)."""

    places: Array
    coordinates: tuple[Array, ...]


@lru_cache(maxsize=256)
def _tile_pattern(
    extents: tuple[int, ...], steps: tuple[int, ...], strides_bytes: tuple[int, ...], size: int, unit: int
) -> _Pattern:
    coordinates = [np.arange(extent, dtype=np.int64) * step for extent, step in zip(extents, steps, strict=True)]
    coordinates[0] = coordinates[0][:: max(unit // size, 1)]
    places = np.zeros(1, dtype=np.int64)
    for along, stride in zip(reversed(coordinates), reversed((size, *strides_bytes)), strict=True):
        places = (places[:, None] + along * stride).reshape(-1)
    return _Pattern(places, tuple(reversed(coordinates)))


def _tile_extents(tiled: TiledMap) -> tuple[int, ...]:
    """Elements along each dimension of the box; the innermost dimension has no element stride."""
    outer = zip(tiled.box[1:], tiled.element_strides[1:], strict=True)
    return (tiled.box[0], *(-(-box // step) for box, step in outer))


def _origins(tiled: TiledMap, start: Array) -> Array:
    """[L] byte offset of each first corner, modulo 2^64 as addresses are."""
    strides = np.array((tiled.data_type.size_bytes, *tiled.strides_bytes), dtype=np.int64)
    origins: Array = start @ strides
    return origins


def _unit(tensor_map: TiledMap | Im2colMap, first: Array, clips: bool) -> int:
    """The largest unit, of at most 16 bytes, that lies wholly inside or wholly outside of the tensor; rows begin at the
    coordinates ``first``."""
    size = tensor_map.data_type.size_bytes
    edges = int(np.bitwise_or.reduce(first)) * size
    if clips:
        edges |= tensor_map.dims[0] * size
    return min(_LARGEST_UNIT, edges & -edges) if edges else _LARGEST_UNIT


def _pixels(im2col: Im2colMap, start: Array) -> list[Array]:
    """The coordinates [L, pixels] of the base pixels along W, then H, D and N."""
    steps_left = np.broadcast_to(np.arange(im2col.pixels_per_column), (len(start), im2col.pixels_per_column))
    found = []
    for dimension in range(1, im2col.rank - 1):
        coordinates, steps_left = _walk(
            start[:, dimension, None],
            im2col.lower_corner[dimension - 1],
            _last_pixel(im2col, dimension),
            im2col.element_strides[dimension],
            steps_left,
        )
        found.append(coordinates)
    found.append(start[:, -1:] + steps_left * im2col.element_strides[-1])
    return found


def _last_pixel(im2col: Im2colMap, dimension: int) -> int:
    return im2col.dims[dimension] - 1 + im2col.upper_corner[dimension - 1]


def _walk(start: Array, lower: int, last: int, step: int, count: Array) -> tuple[Array, Array]:
    """Coordinates after ``count`` steps from ``start`` that go on at ``lower`` beyond ``last``, and how often they
    did."""
    first_row = (last - start) // step + 1
    whole_row = (last - lower) // step + 1
    beyond = count - first_row
    turned = beyond >= 0
    coordinates = np.where(turned, lower + beyond % whole_row * step, start + count * step)
    return coordinates, np.where(turned, 1 + beyond // whole_row, 0)
