"""Tensor copies one element at a time, in plain Python: what ``values.tma`` is held against.

A tensor is a dictionary from coordinates (innermost first) to anything; a copy is the list of the coordinates that its
elements come from, in the order in which they lie in shared memory before swizzling.
"""

from __future__ import annotations

from itertools import product

from lowdnn.tensor_map import Im2colMap, TensorMapSwizzle, TiledMap

Coordinates = tuple[int, ...]


def tile(tiled: TiledMap, start: Coordinates) -> list[Coordinates]:
    steps = (1, *tiled.element_strides[1:])
    ranges = [range(0, box, step) for box, step in zip(tiled.box, steps, strict=True)]
    walks = product(*reversed(ranges))
    return [tuple(s + m for s, m in zip(start, reversed(moves), strict=True)) for moves in walks]


def column(im2col: Im2colMap, start: Coordinates, offsets: Coordinates) -> list[Coordinates]:
    spatial = im2col.rank - 2
    at = list(start[1:])
    found: list[Coordinates] = []
    for _ in range(im2col.pixels_per_column):
        pixel = [a + o for a, o in zip(at, (*offsets, 0), strict=True)]
        found += [(start[0] + channel, *pixel) for channel in range(im2col.channels_per_pixel)]
        for dimension in range(spatial + 1):
            at[dimension] += im2col.element_strides[dimension + 1]
            if dimension == spatial or at[dimension] < im2col.dims[dimension + 1] + im2col.upper_corner[dimension]:
                break
            at[dimension] = im2col.lower_corner[dimension]
    return found


def in_tensor(description: TiledMap | Im2colMap, at: Coordinates) -> bool:
    return all(0 <= a < extent for a, extent in zip(at, description.dims, strict=True))


def byte_of(description: TiledMap | Im2colMap, at: Coordinates) -> int:
    """Byte offset of an element from the tensor's address."""
    strides = (description.data_type.size_bytes, *description.strides_bytes)
    return sum(a * stride for a, stride in zip(at, strides, strict=True))


def row_bytes(description: TiledMap | Im2colMap) -> int:
    elements = description.box[0] if isinstance(description, TiledMap) else description.channels_per_pixel
    return elements * description.data_type.size_bytes


def shared_offset(description: TiledMap | Im2colMap, base: int, byte: int) -> int:
    """Where a byte of the copy lies, from shared address ``base`` on: rows begin at least a span apart."""
    row = row_bytes(description)
    pitch = max(row, 16 << description.swizzle if description.swizzle else 0)
    return swizzled(description.swizzle, base + byte // row * pitch + byte % row) - base


def swizzled(swizzle: TensorMapSwizzle, address: int) -> int:
    """The pattern as the manual's tables show it: 16-byte chunk ``c`` of line ``l`` (of 128 bytes) changes places."""
    line, chunk, byte = address // 128, address // 16 % 8, address % 16
    flip = {
        TensorMapSwizzle.NONE: 0,
        TensorMapSwizzle.BYTES_32: line % 2,
        TensorMapSwizzle.BYTES_64: line % 4,
        TensorMapSwizzle.BYTES_128: line % 8,
    }[swizzle]
    return line * 128 + (chunk ^ flip) * 16 + byte
