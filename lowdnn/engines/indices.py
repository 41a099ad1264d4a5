"""The limits of 32-bit counters in kernels, and the choice of a counter's type."""

from __future__ import annotations

from typing import Final

#: The greatest signed 32-bit number.
INT32_MAX: Final = 2**31 - 1
#: The greatest extent of a tiled product, with room for the rest of the last tile.
MAX_TILED_EXTENT: Final = 2**31 - 2**10
#: The greatest index of positions, elements and bytes, with room for tiles and strides past the end.
MAX_INDEX: Final = 2**31 - 2**20


def counter_type(count: int) -> str:
    """The C++ type in which a kernel counts up to ``count``, its macro INDEX: 32 bits if 31 are enough."""
    return "u32" if count <= INT32_MAX else "i64"
