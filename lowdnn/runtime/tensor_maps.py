"""Tensor maps of plans on a device: encoded once when a plan is loaded, given other addresses ever after."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from lowdnn.driver.base import Driver
from lowdnn.tensor_map import TENSOR_MAP_BYTES, TensorMapLayout, TiledMap

_WORDS = struct.Struct(f"<{TENSOR_MAP_BYTES // 8}Q")
#: No tensor's address, but it could be one: 47 bits as those of a GPU, aligned, and like no other number in a map.
_OTHER_ADDRESS = 0x5A96_C3F1_2D00


@dataclass(frozen=True)
class EncodedMap:
    """A map with address 0 as the driver encodes it.

    ``address_word`` is the number of the 8-byte word that is the address, and all that an address changes; None where
    the driver hides the address otherwise, and only it can replace it.
    """

    content: bytes
    address_word: int | None


MapEncoder = Callable[[TensorMapLayout], EncodedMap]


def encode_map(driver: Driver, layout: TensorMapLayout) -> EncodedMap:
    """Encodes ``layout``, whose address is 0, and once more with another address to see where it goes.

    Needs a current context. Raises DriverError.
    """
    content = _encode(driver, layout)
    other = _WORDS.unpack(_encode(driver, replace(layout, address=_OTHER_ADDRESS)))
    changed = [
        (number, before, after)
        for number, (before, after) in enumerate(zip(_WORDS.unpack(content), other, strict=True))
        if before != after
    ]
    is_plain = len(changed) == 1 and changed[0][1:] == (0, _OTHER_ADDRESS)
    return EncodedMap(content, changed[0][0] if is_plain else None)


def _encode(driver: Driver, layout: TensorMapLayout) -> bytes:
    if isinstance(layout, TiledMap):
        return driver.tensor_map_encode_tiled(layout)
    return driver.tensor_map_encode_im2col(layout)
