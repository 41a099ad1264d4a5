"""Tensor maps that a kernel changes: ``tensormap.replace`` and ``tensormap.cp_fenceproxy``. Generated code calls
``replace_field``, ``copy_map`` and ``acquire_map``. Source: PTX ISA manual, "tensormap.replace",
"tensormap.cp_fenceproxy", "membar/fence"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.copying.tensor_map import encode, map_places, stored_maps
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.address import Address
from lowdnn.tensor_map import (
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
)


@dataclass(frozen=True)
class Field:
    """One field of ``tensormap.replace``: the value code of its operand, and how a map gets the value.

    ``dimensions``: how many the field has, 0 where it is one number. ``choices``: how many values an immediate operand
    may have, 0 where the operand is any number.
    """

    code: str
    put: Callable[[TiledMap, int, int], TiledMap]
    dimensions: int = 0
    choices: int = 0

    @property
    def per_dimension(self) -> bool:
        return self.dimensions > 0


def replace_field(
    group: Lanes[CopyingBatch], space: str, tensor_map: tuple[Address, int], field: str, dimension: int, value: Any
) -> None:
    """Writes ``value`` into a field of the tiled maps at ``tensor_map``.

    A map may break the driver's rules until its last field has been replaced; copies that use it check them.
    """
    address, offset = tensor_map
    stored = stored_maps(group, space, address, offset)
    map_places(group, space, address, offset, write=True)
    if group.batch.races is not None:
        group.batch.races.maps.changed(group, stored.places[:, 0], stored.memory is group.batch.arena)
    rows = len(stored.places)
    values = np.broadcast_to(value, rows) if value.ndim == 0 else value[:rows]
    for row, new in enumerate(values.tolist()):
        old = stored.decoded(row)
        if not isinstance(old, TiledMap):
            raise stored.fault(row, "tensormap.replace.tile on an im2col map")
        if dimension >= old.rank:
            raise stored.fault(row, f"tensormap.replace: dimension {dimension} of a map of {old.rank} dimensions")
        content = encode(FIELDS[field].put(old, dimension, new))
        stored.memory.data[stored.places[row]] = np.frombuffer(content, dtype=np.uint8)
    group.batch.stores += 1


def copy_map(group: Lanes[CopyingBatch], to: tuple[Address, int], of: tuple[Address, int]) -> None:
    """Copies maps from shared to global memory."""
    stored = stored_maps(group, "shared", *of)
    for row in range(len(stored.places)):
        stored.decoded(row)
    memory, places = map_places(group, "global", *to, write=True)
    if group.batch.races is not None:
        maps = group.batch.races.maps
        maps.copied(group, stored.places[:, 0])
        maps.changed(group, places[:, 0], in_global=True)
        maps.release(group)
    memory.data[places] = stored.content
    memory.shadow[places] = 1
    group.batch.stores += 1


def acquire_map(group: Lanes[CopyingBatch], of: tuple[Address, int]) -> None:
    """``fence.proxy.tensormap::generic.acquire``: copies see the map as the warp knows it."""
    _, places = map_places(group, "generic", *of)
    if group.batch.races is not None:
        group.batch.races.maps.acquire(group, places[:, 0])


def _at(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _with_rank(old: TiledMap, rank: int) -> TiledMap:
    """The map with another rank; new dimensions have one element."""

    def fitted(values: tuple[int, ...], count: int, filler: int) -> tuple[int, ...]:
        return (*values[:count], *(filler,) * (count - len(values)))

    return replace(
        old,
        dims=fitted(old.dims, rank, 1),
        strides_bytes=fitted(old.strides_bytes, rank - 1, 0),
        box=fitted(old.box, rank, 1),
        element_strides=fitted(old.element_strides, rank, 1),
    )


#: The instruction's own numbers of data types.
_DATA_TYPES = (
    TensorMapDataType.UINT8,
    TensorMapDataType.UINT16,
    TensorMapDataType.UINT32,
    TensorMapDataType.INT32,
    TensorMapDataType.UINT64,
    TensorMapDataType.INT64,
    TensorMapDataType.FLOAT16,
    TensorMapDataType.FLOAT32,
    TensorMapDataType.FLOAT32_FTZ,
    TensorMapDataType.FLOAT64,
    TensorMapDataType.BFLOAT16,
    TensorMapDataType.TFLOAT32,
    TensorMapDataType.TFLOAT32_FTZ,
)

FIELDS: Mapping[str, Field] = {
    "global_address": Field("u8", lambda old, _, value: replace(old, address=value)),
    "rank": Field("u4", lambda old, _, value: _with_rank(old, value + 1)),
    "box_dim": Field("u4", lambda old, place, value: replace(old, box=_at(old.box, place, value)), 5),
    "global_dim": Field("u4", lambda old, place, value: replace(old, dims=_at(old.dims, place, value)), 5),
    "global_stride": Field(
        "u8", lambda old, place, value: replace(old, strides_bytes=_at(old.strides_bytes, place, value)), 4
    ),
    "element_stride": Field(
        "u4", lambda old, place, value: replace(old, element_strides=_at(old.element_strides, place, value)), 5
    ),
    "elemtype": Field("u4", lambda old, _, value: replace(old, data_type=_DATA_TYPES[value]), 0, len(_DATA_TYPES)),
    "interleave_layout": Field(
        "u4", lambda old, _, value: replace(old, interleave=TensorMapInterleave(value)), 0, len(TensorMapInterleave)
    ),
    "swizzle_mode": Field(
        "u4", lambda old, _, value: replace(old, swizzle=TensorMapSwizzle(value)), 0, len(TensorMapSwizzle)
    ),
    "fill_mode": Field(
        "u4", lambda old, _, value: replace(old, oob_fill=TensorMapOobFill(value)), 0, len(TensorMapOobFill)
    ),
}
