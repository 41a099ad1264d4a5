"""The emulated device's 128-byte tensor maps: encoding, decoding, and reading them out of device memory.

The layout is this device's own, save that the first eight bytes are the tensor's address, as on a GPU. A magic number
and a checksum of everything but the address tell a map from other bytes.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.address import Address, check, resolve
from lowdnn.driver.emulated.memory.arena import Array, Bytes
from lowdnn.tensor_map import (
    TENSOR_MAP_ALIGN,
    TENSOR_MAP_BYTES,
    Im2colMap,
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapL2Promotion,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
    im2col_map_problem,
    tiled_map_problem,
)

TensorMap = TiledMap | Im2colMap

_MAGIC = 0x50414D_524F534E
_RANK = 5
#: Address, magic; kind, rank, data type, interleave, swizzle, L2 promotion, fill, unused; element strides, unused;
#: box (or channels and pixels), unused; extents minus one, unused; strides; corners.
_FIELDS = struct.Struct("<QQ8B5B3x5H2x5I4x4Q3h3h")
_CHECKSUM = struct.Struct("<I")
_TILED, _IM2COL = 0, 1


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes of a map that keeps the driver's rules."""
    is_tiled = isinstance(tensor_map, TiledMap)
    if isinstance(tensor_map, TiledMap):
        box, corners = tensor_map.box, _filled((), 6)
    else:
        box = (tensor_map.channels_per_pixel, tensor_map.pixels_per_column)
        corners = (*_filled(tensor_map.lower_corner, 3), *_filled(tensor_map.upper_corner, 3))
    content = _FIELDS.pack(
        tensor_map.address,
        _MAGIC,
        _TILED if is_tiled else _IM2COL,
        tensor_map.rank,
        tensor_map.data_type,
        tensor_map.interleave,
        tensor_map.swizzle,
        tensor_map.l2_promotion,
        tensor_map.oob_fill,
        0,
        *_filled(tensor_map.element_strides, _RANK),
        *_filled(box, _RANK),
        *_filled(tuple(extent - 1 for extent in tensor_map.dims), _RANK),
        *_filled(tensor_map.strides_bytes, _RANK - 1),
        *corners,
    )
    content = content.ljust(TENSOR_MAP_BYTES - _CHECKSUM.size, b"\0")
    return content + _CHECKSUM.pack(zlib.crc32(content[8:]))


@lru_cache(maxsize=1024)
def decode(content: bytes) -> TensorMap | None:
    """The map that 128 bytes hold; None where they hold none."""
    body = content[: -_CHECKSUM.size]
    address, magic, *fields = _FIELDS.unpack_from(body)
    if magic != _MAGIC or _CHECKSUM.pack(zlib.crc32(body[8:])) != content[-_CHECKSUM.size :]:
        return None
    kind, rank, data_type, interleave, swizzle, promotion, fill, _ = fields[:8]
    element_strides, box, dims, strides, corners = (
        tuple(fields[start:end]) for start, end in ((8, 13), (13, 18), (18, 23), (23, 27), (27, 33))
    )
    tensor = (TensorMapDataType(data_type), address, tuple(extent + 1 for extent in dims[:rank]), strides[: rank - 1])
    steps = element_strides[:rank]
    modes = (
        TensorMapInterleave(interleave),
        TensorMapSwizzle(swizzle),
        TensorMapL2Promotion(promotion),
        TensorMapOobFill(fill),
    )
    if kind == _TILED:
        return TiledMap(*tensor, box[:rank], steps, *modes)
    lower, upper = corners[: rank - 2], corners[3 : rank + 1]
    return Im2colMap(*tensor, lower, upper, box[0], box[1], steps, *modes)


def problem_of(tensor_map: TensorMap) -> str:
    """Why copies cannot use a map; empty where they can."""
    if tensor_map.interleave is not TensorMapInterleave.NONE:
        return "interleaved layouts are not modelled"
    return tiled_map_problem(tensor_map) if isinstance(tensor_map, TiledMap) else im2col_map_problem(tensor_map)


@dataclass(frozen=True)
class StoredMaps:
    """Maps in memory: a row for each lane, or one row where all lanes name the same address. ``places`` [rows, 128]:
    byte numbers in ``memory``; ``content`` [rows, 128]: the bytes."""

    memory: Bytes
    addresses: Array
    places: Array
    content: Array

    def decoded(self, row: int) -> TensorMap:
        """The map in a row. Raises LaneFault where there is none."""
        tensor_map = decode(self.content[row].tobytes())
        if tensor_map is None:
            raise self.fault(row, f"the {TENSOR_MAP_BYTES} bytes at {int(self.addresses[row]):#x} are no tensor map")
        return tensor_map

    def usable(self, row: int) -> TensorMap:
        """Like ``decoded``, and the map keeps the rules."""
        tensor_map = self.decoded(row)
        problem = _problem(self.content[row].tobytes())
        if problem:
            raise self.fault(row, f"the tensor map at {int(self.addresses[row]):#x}: {problem}")
        return tensor_map

    def fault(self, row: int, message: str) -> LaneFault:
        where = int(self.addresses[row])
        return LaneFault(FaultKind.INVALID_TENSOR_MAP, message, row, where, *self.memory.name_of(where))


def maps_of(group: Lanes[CopyingBatch], address: Address, offset: int) -> list[tuple[TensorMap, Array | None]]:
    """The maps that the lanes' (generic) addresses name, each with the mask of its lanes; None stands for all of them.

    Faults: bytes that are no map, or not aligned, or not written, or break a rule; a map outside global, constant and
    parameter memory.
    """
    if resolve(group, "generic", address, offset)[0] != "global":
        message = "the tensor map is not in global, constant or parameter memory"
        raise LaneFault(FaultKind.INVALID_TENSOR_MAP, message, 0, address.lane(0, offset))
    stored = stored_maps(group, "global", address, offset)
    if group.batch.races is not None:
        group.batch.races.maps.used(group, stored.places[:, 0])
    if address.low == address.high:
        return [(stored.usable(0), None)]
    found: list[tuple[TensorMap, Array | None]] = []
    for value in np.unique(stored.addresses):
        mask = stored.addresses == value
        found.append((stored.usable(int(np.argmax(mask))), mask))
    return found


def stored_maps(group: Lanes[CopyingBatch], space: str, address: Address, offset: int) -> StoredMaps:
    """The bytes of the maps at ``address``, which must be 64-byte aligned and written."""
    memory, places = map_places(group, space, address, offset)
    written = memory.shadow[places].all(axis=1)
    if not written.all():
        position = int(np.argmin(written))
        raise unwritten_fault(memory, address.lane(position, offset), TENSOR_MAP_BYTES, position)
    addresses = np.broadcast_to(np.atleast_1d(address.signed(offset)), len(places))
    return StoredMaps(memory, addresses, places, memory.data[places])


def map_places(
    group: Lanes[CopyingBatch], space: str, address: Address, offset: int, write: bool = False
) -> tuple[Bytes, Array]:
    """(memory, byte numbers [rows, 128]) of maps at ``address``, checked; rows as in ``StoredMaps``."""
    space, origin = resolve(group, space, address, offset)
    for part in (0, TENSOR_MAP_ALIGN):
        memory, _ = check(group, space, origin, address, offset + part, TENSOR_MAP_ALIGN, write)
    first = np.atleast_1d(address.places(group, space, origin, offset, 0))
    return memory, first[:, None] + np.arange(TENSOR_MAP_BYTES)


@lru_cache(maxsize=1024)
def _problem(content: bytes) -> str:
    tensor_map = decode(content)
    return "" if tensor_map is None else problem_of(tensor_map)


def _filled(values: tuple[int, ...], count: int) -> tuple[int, ...]:
    return values + (0,) * (count - len(values))
