"""Conversions of tensor maps to and from ``cuda.bindings``. ``cu`` is the bindings' module."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from lowdnn.tensor_map import TENSOR_MAP_BYTES, Im2colMap, TiledMap

_WORDS = struct.Struct("<16Q")


def tiled_arguments(cu: Any, tiled: TiledMap) -> tuple[Any, ...]:
    """The arguments of cuTensorMapEncodeTiled."""
    return (*_tensor(cu, tiled), _words(cu, tiled.box), *_modes(cu, tiled))


def im2col_arguments(cu: Any, im2col: Im2colMap) -> tuple[Any, ...]:
    """The arguments of cuTensorMapEncodeIm2col."""
    corners = list(im2col.lower_corner), list(im2col.upper_corner)
    counts = im2col.channels_per_pixel, im2col.pixels_per_column
    return (*_tensor(cu, im2col), *corners, *counts, *_modes(cu, im2col))


def map_of_bytes(cu: Any, content: bytes) -> Any:
    """The CUtensorMap of 128 bytes."""
    opaque = cu.CUtensorMap()
    opaque.opaque = [cu.cuuint64_t(word) for word in _WORDS.unpack(content)]
    return opaque


def bytes_of_map(opaque: Any) -> bytes:
    """The 128 bytes of a CUtensorMap."""
    return ctypes.string_at(opaque.getPtr(), TENSOR_MAP_BYTES)


def _tensor(cu: Any, description: TiledMap | Im2colMap) -> tuple[Any, ...]:
    return (
        cu.CUtensorMapDataType(description.data_type),
        description.rank,
        description.address,
        [cu.cuuint64_t(extent) for extent in description.dims],
        # The driver reads rank - 1 strides, but refuses the null pointer that an empty list becomes.
        [cu.cuuint64_t(stride) for stride in description.strides_bytes or (0,)],
    )


def _modes(cu: Any, description: TiledMap | Im2colMap) -> tuple[Any, ...]:
    return (
        _words(cu, description.element_strides),
        cu.CUtensorMapInterleave(description.interleave),
        cu.CUtensorMapSwizzle(description.swizzle),
        cu.CUtensorMapL2promotion(description.l2_promotion),
        cu.CUtensorMapFloatOOBfill(description.oob_fill),
    )


def _words(cu: Any, values: Sequence[int]) -> list[Any]:
    return [cu.cuuint32_t(value) for value in values]
