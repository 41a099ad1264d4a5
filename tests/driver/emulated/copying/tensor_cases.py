"""Random tensor maps of every rank, and random places to copy at."""

from __future__ import annotations

import numpy as np

from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TensorMapSwizzle, TiledMap

SWIZZLES = tuple(TensorMapSwizzle)
#: TFLOAT32 loads change their bits.
_DATA_TYPES = [data_type for data_type in TensorMapDataType if data_type < TensorMapDataType.TFLOAT32]


def random_tiled(
    rng: np.random.Generator, rank: int, swizzle: TensorMapSwizzle = TensorMapSwizzle.NONE, address: int = 1 << 20
) -> TiledMap:
    """A small tensor with padded rows and a box that may be larger than it."""
    data_type = _DATA_TYPES[rng.integers(len(_DATA_TYPES))]
    size = data_type.size_bytes
    row_bytes = 16 * int(rng.integers(1, (swizzle.span_bytes or 64) // 16 + 1))
    dims = [int(rng.integers(1, 80 // size + 2)), *(int(n) for n in rng.integers(1, 6, rank - 1))]
    box = [row_bytes // size, *(int(n) for n in rng.integers(1, 5, rank - 1))]
    steps = [int(n) for n in rng.choice([1, 1, 2, 3], rank)]
    strides = _strides(rng, dims, size)
    return TiledMap(data_type, address, tuple(dims), strides, tuple(box), tuple(steps), swizzle=swizzle)


def random_im2col(
    rng: np.random.Generator,
    rank: int,
    swizzle: TensorMapSwizzle = TensorMapSwizzle.NONE,
    address: int = 1 << 20,
    inside: bool = False,
) -> Im2colMap:
    """A small image with corners on either side of its edges; ``inside``: the lower ones not below zero."""
    data_type = _DATA_TYPES[rng.integers(len(_DATA_TYPES))]
    size = data_type.size_bytes
    channels = 16 * int(rng.integers(1, (swizzle.span_bytes or 64) // 16 + 1)) // size
    spatial = [int(n) for n in rng.integers(1, 7, rank - 2)]
    dims = [int(rng.integers(1, 80 // size + 2)), *spatial, int(rng.integers(1, 4))]
    lower = [int(n) for n in rng.integers(0 if inside else -3, 3, rank - 2)]
    upper = [int(rng.integers(max(-4, low - extent + 1), 4 + low)) for low, extent in zip(lower, spatial, strict=True)]
    upper = [max(up, low - extent + 1) for up, low, extent in zip(upper, lower, spatial, strict=True)]
    steps = [int(n) for n in rng.choice([1, 1, 2, 3], rank)]
    return Im2colMap(
        data_type,
        address,
        tuple(dims),
        _strides(rng, dims, size),
        tuple(lower),
        tuple(upper),
        channels,
        int(rng.integers(1, 40)),
        tuple(steps),
        swizzle=swizzle,
    )


def tile_start(rng: np.random.Generator, tiled: TiledMap, inside: bool = False) -> tuple[int, ...]:
    """Coordinates around the tensor, on either side of its edges; ``inside``: none below zero. Rows are aligned."""
    spans = zip(tiled.box, tiled.dims, strict=True)
    at = [int(rng.integers(0 if inside else -box, extent + 2)) for box, extent in spans]
    return (_aligned(at[0], tiled.data_type), *at[1:])


def pixel_start(
    rng: np.random.Generator, im2col: Im2colMap, inside: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(coordinates of a base pixel in the box of pixels, offsets of the filter); ``inside``: no coordinate is
    below zero in a map that is inside."""
    at = [_aligned(int(rng.integers(0 if inside else -20, im2col.dims[0] + 1)), im2col.data_type)]
    for extent, low, up in zip(im2col.dims[1:-1], im2col.lower_corner, im2col.upper_corner, strict=True):
        at.append(int(rng.integers(low, extent + up)))
    at.append(int(rng.integers(0 if inside else -1, im2col.dims[-1] + 1)))
    return tuple(at), tuple(int(n) for n in rng.integers(0, 4, im2col.rank - 2))


def _aligned(coordinate: int, data_type: TensorMapDataType) -> int:
    step = 16 // data_type.size_bytes
    return coordinate // step * step


def tensor_bytes(description: TiledMap | Im2colMap) -> int:
    """Bytes from the first to the last element."""
    strides = (description.data_type.size_bytes, *description.strides_bytes)
    last = sum((extent - 1) * stride for extent, stride in zip(description.dims, strides, strict=True))
    return last + description.data_type.size_bytes


def _strides(rng: np.random.Generator, dims: list[int], size: int) -> tuple[int, ...]:
    strides = []
    step = dims[0] * size
    for extent in dims[1:]:
        step = -(-step // 16) * 16 + 16 * int(rng.integers(0, 2))
        strides.append(step)
        step *= extent
    return tuple(strides)
