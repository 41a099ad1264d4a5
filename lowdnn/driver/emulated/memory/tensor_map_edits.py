"""Tensor maps that a kernel changes: ``tensormap.replace`` and ``tensormap.cp_fenceproxy``. Generated code calls
``replace_field`` and ``copy_map``. Source: PTX ISA manual, "tensormap.replace", "tensormap.cp_fenceproxy"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.address import Address, check, resolve
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.tensor_map import decoded, encode, read_bytes
from lowdnn.driver.tensor_map import (
    TENSOR_MAP_ALIGN,
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
)

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group


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
    group: Group, space: str, tensor_map: tuple[Address, int], field: str, dimension: int, value: Any
) -> None:
    """Writes ``value`` into a field of the tiled maps at ``tensor_map``.

    A map may break the driver's rules until its last field has been replaced; copies that use it check them.
    """
    address, offset = tensor_map
    places, content = read_bytes(group, space, address, offset)
    values = np.broadcast_to(value, len(places)) if value.ndim == 0 else value[: len(places)]
    changed = np.empty_like(content)
    for row, new in enumerate(values.tolist()):
        where = address.lane(row, offset)
        old = decoded(content[row].tobytes(), where, row)
        if not isinstance(old, TiledMap):
            raise LaneFault(FaultKind.INVALID_TENSOR_MAP, "tensormap.replace.tile on an im2col map", row, where)
        if dimension >= old.rank:
            message = f"tensormap.replace: dimension {dimension} of a map of {old.rank} dimensions"
            raise LaneFault(FaultKind.INVALID_TENSOR_MAP, message, row, where)
        changed[row] = np.frombuffer(encode(FIELDS[field].put(old, dimension, new)), dtype=np.uint8)
    _write(group, space, address, offset, places, changed)


def copy_map(group: Group, to: tuple[Address, int], of: tuple[Address, int]) -> None:
    """Copies maps from shared to global memory."""
    _, content = read_bytes(group, "shared", *of)
    for row in range(len(content)):
        decoded(content[row].tobytes(), of[0].lane(row, of[1]), row)
    address, offset = to
    first = np.atleast_1d(address.places(group, "global", resolve(group, "global", address, offset)[1], offset, 0))
    _write(group, "global", address, offset, first[:, None] + np.arange(content.shape[1]), content)


def _write(group: Group, space: str, address: Address, offset: int, places: Array, content: Array) -> None:
    space, origin = resolve(group, space, address, offset)
    for part in (0, TENSOR_MAP_ALIGN):
        memory, _ = check(group, space, origin, address, offset + part, TENSOR_MAP_ALIGN, write=True)
    memory.data[places] = content
    memory.shadow[places] = 1
    group.batch.stores += 1


def _at(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _with_rank(old: TiledMap, rank: int) -> TiledMap:
    """New dimensions have one element."""

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
