"""Tensor copies: from the operands of ``cp.async.bulk.tensor`` and its kin to ``Transfer`` rows. Generated code calls
``load``, ``store``, ``reduce`` and ``prefetch``.

Source: PTX ISA manual, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk.prefetch.tensor".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.copying.async_work import Reduction
from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.copying.tensor_map import TensorMap, maps_of
from lowdnn.driver.emulated.copying.transfer import Places, Transfer, check_signal, multicast
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.address import Address, shared_bytes
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.space import ARENA_BASE
from lowdnn.driver.emulated.values import tma
from lowdnn.driver.emulated.values.atomic import updater
from lowdnn.status import NotSupportedError
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TiledMap

#: A base and an offset in bytes.
Place = tuple[Address, int]
#: One value, or an array over the group's lanes, for each coordinate.
Numbers = tuple[Any, ...]

_SHARED_ALIGN = 128
_SWIZZLE_BYTES = 1024
_BARRIER_BYTES = 8
_ROW_ALIGN = 16
_UNALIGNED = f"rows must begin at a multiple of {_ROW_ALIGN} bytes"


@dataclass(frozen=True)
class TensorForm:
    """The form of an instruction's tensor: the number of dimensions, and ``.im2col`` or ``.tile``. ``own``: the shared
    memory is that of the issuing CTA."""

    rank: int
    im2col: bool
    own: bool


@dataclass(frozen=True)
class _Part:
    """The lanes of a group that use one tensor map. ``rows``: which of the group's lanes; None for all. Used as a
    context, it turns the rows that faults name into places in the group."""

    tensor_map: TensorMap
    rows: Array | None
    start: Array
    offsets: Array

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, LaneFault) and fault.position is not None:
            fault.position = self.position(fault.position)

    def pick(self, values: Array) -> Array:
        return values if self.rows is None else values[self.rows]

    def position(self, row: int) -> int:
        """The position in the group of one of the part's lanes."""
        return row if self.rows is None else int(np.flatnonzero(self.rows)[row])

    def fault(self, kind: FaultKind, message: str, row: int, address: int | None = None) -> LaneFault:
        return LaneFault(kind, message, self.position(row), address)


def load(
    group: Lanes[CopyingBatch],
    form: TensorForm,
    to: Place,
    tensor_map: Place,
    coordinates: Numbers,
    offsets: Numbers,
    barrier: Place,
    ctas: Any | None,
    line: int,
) -> None:
    """Global to shared memory; completes the bytes of the whole box at ``barrier``. With ``ctas``, a mask of ranks in
    the cluster, the box and its completion go to the same place in each of those CTAs."""
    space = "shared" if form.own else "cluster"
    signal = shared_bytes(group, *barrier, _BARRIER_BYTES, space=space)
    for part in _parts(group, form, tensor_map, coordinates, offsets):
        first, places = _shared_first(group, part, to, space, write=True), part.pick(signal)
        transfer = _transfer(group, part, first, write=False)
        with part:
            check_signal(group.batch, places, first)
            if ctas is not None:
                masks = part.pick(group.spread(ctas)).astype(np.int64)
                transfer, places = multicast(group.batch, transfer, places, masks)
        group.batch.async_work.load(group, transfer, places, line)


def store(
    group: Lanes[CopyingBatch], form: TensorForm, tensor_map: Place, coordinates: Numbers, of: Place, line: int
) -> None:
    """Shared to global memory, where the box lies in the tensor; belongs to the lane's bulk group."""
    for part in _parts(group, form, tensor_map, coordinates, ()):
        first = _shared_first(group, part, of, "shared", write=False)
        group.batch.async_work.store(group, _transfer(group, part, first, write=True), line)


def reduce(
    group: Lanes[CopyingBatch],
    form: TensorForm,
    operation: str,
    tensor_map: Place,
    coordinates: Numbers,
    of: Place,
    line: int,
) -> None:
    """Like ``store``, but combines each element with the one in global memory."""
    for part in _parts(group, form, tensor_map, coordinates, ()):
        data_type = part.tensor_map.data_type
        code, ptx_type = _ELEMENTS[data_type]
        try:
            reduction = Reduction(updater(operation, ptx_type), code)
        except NotSupportedError:
            message = f".{operation} on a tensor map of {data_type.name}"
            raise part.fault(FaultKind.INVALID_TENSOR_MAP, message, 0) from None
        first = _shared_first(group, part, of, "shared", write=False)
        group.batch.async_work.store(group, _transfer(group, part, first, write=True), line, reduction)


def prefetch(
    group: Lanes[CopyingBatch], form: TensorForm, tensor_map: Place, coordinates: Numbers, offsets: Numbers
) -> None:
    """Prefetches: checks the map and the form, and changes nothing."""
    for _ in _parts(group, form, tensor_map, coordinates, offsets):
        pass


#: Data type -> (value code, PTX type) of its elements in a reduction.
_ELEMENTS = {
    TensorMapDataType.UINT8: ("u1", "u8"),
    TensorMapDataType.UINT16: ("u2", "u16"),
    TensorMapDataType.UINT32: ("u4", "u32"),
    TensorMapDataType.INT32: ("i4", "s32"),
    TensorMapDataType.UINT64: ("u8", "u64"),
    TensorMapDataType.INT64: ("i8", "s64"),
    TensorMapDataType.FLOAT16: ("u2", "f16"),
    TensorMapDataType.FLOAT32: ("f4", "f32"),
    TensorMapDataType.FLOAT64: ("f8", "f64"),
    TensorMapDataType.BFLOAT16: ("u2", "bf16"),
    TensorMapDataType.FLOAT32_FTZ: ("f4", "f32"),
    TensorMapDataType.TFLOAT32: ("f4", "f32"),
    TensorMapDataType.TFLOAT32_FTZ: ("f4", "f32"),
}


def _parts(
    group: Lanes[CopyingBatch], form: TensorForm, tensor_map: Place, coordinates: Numbers, offsets: Numbers
) -> Iterator[_Part]:
    """The group's lanes by tensor map; faults where the map is not what the instruction says."""
    start, moved = _over_lanes(group, coordinates), _over_lanes(group, offsets)
    for description, rows in maps_of(group, *tensor_map):
        if rows is None:
            part = _Part(description, None, start, moved)
        else:
            part = _Part(description, rows, start[rows], moved[rows])
        if isinstance(description, Im2colMap) != form.im2col or description.rank != form.rank:
            kind = "im2col" if isinstance(description, Im2colMap) else "tiled"
            wanted = "im2col" if form.im2col else "tiled"
            message = f"the instruction takes {wanted} maps of {form.rank} dimensions, this map is {kind} and has"
            raise part.fault(FaultKind.INVALID_TENSOR_MAP, f"{message} {description.rank}", 0)
        yield part


def _over_lanes(group: Lanes[CopyingBatch], numbers: Numbers) -> Array:
    """[lanes, numbers] int64."""
    table = np.empty((group.count, len(numbers)), dtype=np.int64)
    for column, number in enumerate(numbers):
        table[:, column] = number
    return table


def _shared_first(group: Lanes[CopyingBatch], part: _Part, place: Place, space: str, write: bool) -> Array:
    """Byte number in ``batch.shared`` where each of the part's boxes begins."""
    nbytes = tma.shared_bytes_of(part.tensor_map, _box_bytes(part.tensor_map))
    return part.pick(shared_bytes(group, *place, nbytes, write=write, align=_SHARED_ALIGN, space=space))


def _box_bytes(tensor_map: TensorMap) -> int:
    return tma.tile_bytes(tensor_map) if isinstance(tensor_map, TiledMap) else tma.column_bytes(tensor_map)


def _transfer(group: Lanes[CopyingBatch], part: _Part, first: Array, write: bool) -> Transfer:
    """One row for each of the part's lanes, between the shared bytes at ``first`` and the tensor."""
    tensor_map = part.tensor_map
    units = _units(part, write)
    complete = _check_outside(group, part, units, write)
    nbytes = _box_bytes(tensor_map)
    shift = units.unit.bit_length() - 1
    outside = Places((units.first + (tensor_map.address - ARENA_BASE)) >> shift, units.pattern >> shift)
    return Transfer(
        lanes=part.pick(group.lanes),
        shared=_shared_units(group, tensor_map, first, units.unit, nbytes),
        outside=outside,
        unit=units.unit,
        nbytes=np.full(len(first), nbytes, dtype=np.int64),
        inside=units.inside,
        fill=tma.fill_of(tensor_map.oob_fill, units.unit),
        written=complete and not write,
        converted=tma.conversion_of(tensor_map.data_type),
    )


def _units(part: _Part, write: bool) -> tma.Units:
    tensor_map = part.tensor_map
    _check_start(part, part.start[:, 0] * tensor_map.data_type.size_bytes % _ROW_ALIGN != 0, _UNALIGNED)
    if write:
        _check_start(part, part.start.min(axis=1) < 0, "a store may not begin at a negative coordinate")
    if isinstance(tensor_map, TiledMap):
        return tma.tile_units(tensor_map, part.start)
    _check_start(part, tma.off_the_box(tensor_map, part.start), "the first pixel lies outside the map's box of pixels")
    offsets = part.offsets if part.offsets.size else np.zeros((len(part.start), tensor_map.rank - 2), dtype=np.int64)
    return tma.column_units(tensor_map, part.start, offsets)


def _check_start(part: _Part, wrong: Array, rule: str) -> None:
    """Raises a fault for coordinates at which an H200 stops the kernel or that the manual does not define."""
    if wrong.any():
        row = int(np.argmax(wrong))
        at = ", ".join(str(int(i)) for i in part.start[row])
        raise part.fault(FaultKind.INVALID_TENSOR_COPY, f"coordinates {{{at}}}: {rule}", row)


def _shared_units(group: Lanes[CopyingBatch], tensor_map: TensorMap, first: Array, unit: int, nbytes: int) -> Places:
    """Units in ``batch.shared``. The swizzle sees addresses in the CTA's window."""
    phases = (first % group.batch.shared_stride % _SWIZZLE_BYTES).tolist()
    shift = unit.bit_length() - 1
    form = (unit, nbytes, tma.row_bytes(tensor_map))
    patterns = {phase: tma.shared_pattern(tensor_map.swizzle, phase, *form) >> shift for phase in set(phases)}
    pattern = patterns[phases[0]] if len(patterns) == 1 else np.stack([patterns[phase] for phase in phases])
    return Places(first >> shift, pattern)


def _check_outside(group: Lanes[CopyingBatch], part: _Part, units: tma.Units, write: bool) -> bool:
    """Raises a fault if the box reaches beyond allocated memory. Returns whether all of it is known to be written."""
    arena, base = group.batch.arena, part.tensor_map.address
    extent = units.extent()
    if extent is None:
        return True
    low, high = extent[0] + base, extent[1] + base
    allocation = arena.around(low, high)
    if allocation is not None:
        if write and allocation.read_only:
            raise part.fault(FaultKind.READ_ONLY, f"a store into {allocation.label}", 0, low)
        return allocation.complete
    reached = units.places if units.inside is None else units.places[units.inside]
    addresses = (reached.reshape(-1) + base).view(np.uint64)
    good, writable = arena.inside(addresses, units.unit)
    rows = np.arange(reached.size) // units.pattern.shape[-1] if units.inside is None else np.nonzero(units.inside)[0]
    if not good.all():
        wrong = int(np.argmin(good))
        raise arena.fault(int(addresses[wrong]), units.unit, part.position(int(rows[wrong])))
    if write and not writable.all():
        wrong = int(np.argmin(writable))
        raise part.fault(FaultKind.READ_ONLY, "a store into constant memory", int(rows[wrong]), int(addresses[wrong]))
    return False
