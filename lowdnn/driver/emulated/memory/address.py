"""Addresses of a group of lanes: which bytes of which memory they mean, with every check.

An ``Address`` is made once for each register that a block uses as a base; loads and stores at several offsets share
its extremes and its element numbers.

A shared address is an offset in the window of a CTA. Bits 24 and up name the CTA by its rank in the cluster, plus
one; 0 is the CTA of the thread itself. Such addresses mean the same in every CTA of a cluster, and generic addresses
hold them unchanged in the shared window. Source: PTX ISA manual, "State Spaces", "Addresses as Operands", "Generic
Addressing", "mapa".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, Array, Bytes
from lowdnn.driver.emulated.memory.batch import MemoryBatch
from lowdnn.driver.emulated.memory.space import ARENA_BASE

_I8 = np.int64
#: Bits of the offset in a CTA's window at the low end of a shared address; the higher bits name the CTA.
RANK_SHIFT = 24
_OFFSET = (1 << RANK_SHIFT) - 1


class Address:
    """Base addresses over the lanes of a group (uint32 or uint64), or one scalar for all of them."""

    __slots__ = ("_places", "bits", "high", "low", "scalar", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._places: dict[tuple[str, int, int], Any] = {}
        self.scalar = value.ndim == 0
        if self.scalar:
            self.low = self.high = self.bits = int(value)
        else:
            self.low = int(np.minimum.reduce(value))
            self.high = int(np.maximum.reduce(value))
            self.bits = int(np.bitwise_or.reduce(value))

    def signed(self, offset: int) -> Any:
        """Every lane's address plus ``offset``, as int64 (addresses are far below 2**63)."""
        wide = self.value.view(_I8) if self.value.dtype.itemsize == 8 else self.value.astype(_I8)
        return wide + _I8(offset)

    def lane(self, position: int, offset: int) -> int:
        """The address of one lane."""
        return int(np.atleast_1d(self.value)[0 if self.scalar else position]) + offset

    def subset(self, mask: Array) -> Address:
        return self if self.scalar else Address(self.value[mask])

    def places(self, group: Lanes[MemoryBatch], space: str, origin: int, offset: int, shift: int) -> Any:
        """Index in the batch's memory of ``space``, in elements of ``1 << shift`` bytes, of address + offset - origin,
        for each lane."""
        if space == "cluster":
            return cluster_places(group, self.signed(offset - origin)) >> shift
        if (self.bits | offset) & ((1 << shift) - 1):
            return (self.signed(offset - origin) + _lane_base(group, space)) >> shift
        key = (space, origin, shift)
        base = self._places.get(key)
        if base is None:
            base = self.value.astype(_I8)
            if origin:
                base -= _I8(origin)
            base += _lane_base(group, space)
            base >>= shift
            self._places[key] = base
        return base + (offset >> shift) if offset else base


def _lane_base(group: Lanes[MemoryBatch], space: str) -> Any:
    if space == "global" or (space == "shared" and group.batch.shared_single):
        return _I8(0)
    return group.shared_base if space == "shared" else group.local_base


def resolve(group: Lanes[MemoryBatch], space: str, address: Address, offset: int) -> tuple[str, int]:
    """(space, origin): the space in which all addresses lie, and the address at which it begins. ("", 0) if the lanes'
    spaces differ.

    The space is ``cluster`` where an address names a CTA by its rank, and ``shared`` where all mean their own CTA.
    """
    if space == "global":
        return "global", ARENA_BASE
    if space == "shared" or space == "cluster":
        return _resolve_shared(group, space, address, offset, 0)
    if space != "generic":
        return space, 0
    low, high = address.low + offset, address.high + offset
    if low >= ARENA_BASE:
        return "global", ARENA_BASE
    if low >= SHARED_WINDOW and high < SHARED_WINDOW + WINDOW_BYTES:
        return _resolve_shared(group, "cluster", address, offset, SHARED_WINDOW)
    if low >= LOCAL_WINDOW and high < LOCAL_WINDOW + WINDOW_BYTES:
        return "local", LOCAL_WINDOW
    return ("global", ARENA_BASE) if high < LOCAL_WINDOW or address.scalar else ("", 0)


def shared_bytes(
    group: Lanes[MemoryBatch],
    address: Address,
    offset: int,
    size: int,
    write: bool = False,
    align: int = 0,
    space: str = "cluster",
) -> Array:
    """Index in ``batch.shared`` of the first of ``size`` bytes at address + offset, for each lane of the group.

    It serves all instructions except plain loads and stores. Takes addresses of the shared window and generic ones.
    Bounds, alignment to ``align`` bytes (0: to ``size``) and, of a CTA named by rank, its life are checked; ``space``
    is ``shared`` for instructions that reach the own CTA only.
    """
    origin = SHARED_WINDOW if address.low >= LOCAL_WINDOW else 0
    space, origin = _resolve_shared(group, space, address, offset, origin)
    check(group, space, origin, address, offset, size, write, align)
    return np.broadcast_to(address.places(group, space, origin, offset, 0), group.count)


def cluster_places(group: Lanes[MemoryBatch], addresses: Any) -> Any:
    """Index in ``batch.shared``, the shared memory of all CTAs, of the byte at each shared address; an address may name
    a CTA by its rank. Bounds are not checked here."""
    return (addresses & _I8(_OFFSET)) + _slots(group, addresses) * _I8(group.batch.shared_stride)


def mapped(group: Lanes[MemoryBatch], address: Any, rank: Any) -> Any:
    """``mapa``: the address of the same variable in the CTA of ``rank``, for shared and for generic addresses."""
    size = group.batch.cluster_size
    wrong = np.atleast_1d(rank >= size)
    if wrong.any():
        position = int(np.argmax(wrong))
        bad = int(np.atleast_1d(rank)[position if rank.ndim else 0])
        raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, f"mapa: rank {bad} in a cluster of {size} CTAs", position)
    kind = address.dtype.type
    ranks = (rank.astype(kind) + kind(1)) << kind(RANK_SHIFT)
    return _window_base(address) + (address & kind(_OFFSET)) + ranks


def cta_rank(group: Lanes[MemoryBatch], address: Any) -> Any:
    """``getctarank``: the rank (uint32) of the CTA that a shared or generic address lies in."""
    kind = address.dtype.type
    named = ((address - _window_base(address)) >> kind(RANK_SHIFT)).astype(np.uint32)
    own = group.pick(group.batch.rank).astype(np.uint32)
    return np.where(named == 0, own, named - np.uint32(1))[()]


def own_shared(group: Lanes[MemoryBatch], address: Any) -> Any:
    """``isspacep.shared::cta``: which generic addresses lie in the window of the thread's own CTA (bool)."""
    kind = address.dtype.type
    inside = (address >= kind(SHARED_WINDOW)) & (address < kind(SHARED_WINDOW + WINDOW_BYTES))
    if not inside.any():
        return inside
    return inside & (cta_rank(group, address) == group.pick(group.batch.rank))


def _window_base(address: Any) -> Any:
    """The base of the shared window for generic addresses (64 bits), 0 for plain ones."""
    kind = address.dtype.type
    if kind is not np.uint64:
        return kind(0)
    return np.where(address >= kind(SHARED_WINDOW), kind(SHARED_WINDOW), kind(0))[()]


def _slots(group: Lanes[MemoryBatch], addresses: Any) -> Any:
    """For each lane, the slot (index in ``batch.shared``) of the CTA that its address lies in."""
    own = group.pick(group.batch.slot)
    named = addresses >> RANK_SHIFT
    first = own - group.pick(group.batch.rank)
    return np.where(named == 0, own, first + named - 1)


def _resolve_shared(
    group: Lanes[MemoryBatch], space: str, address: Address, offset: int, origin: int
) -> tuple[str, int]:
    """(``cluster``, origin) if an address names a CTA by its rank, otherwise (``shared``, origin). With ``space``
    ``shared`` only the thread's own CTA may be named."""
    shift = offset - origin
    if address.high + shift <= _OFFSET or address.high + shift > _OFFSET + (group.batch.cluster_size << RANK_SHIFT):
        return "shared", origin
    if space == "shared":
        addresses = address.signed(shift)
        others = np.atleast_1d(_slots(group, addresses) != group.pick(group.batch.slot))
        if others.any():
            position = int(np.argmax(others))
            where = address.lane(position, shift)
            message = f"{where:#x} lies in the CTA of rank {(where >> RANK_SHIFT) - 1}; use .shared::cluster"
            raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, message, position, where)
    return "cluster", origin


def split(address: Address, offset: int) -> list[Array]:
    """For a generic access to several spaces, the masks of the lanes of each space."""
    addresses = address.signed(offset)
    shared = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + WINDOW_BYTES)
    local = (addresses >= LOCAL_WINDOW) & (addresses < LOCAL_WINDOW + WINDOW_BYTES)
    return [mask for mask in (shared, local, ~(shared | local)) if mask.any()]


def check(
    group: Lanes[MemoryBatch],
    space: str,
    origin: int,
    address: Address,
    offset: int,
    size: int,
    write: bool = False,
    align: int = 0,
) -> tuple[Bytes, bool]:
    """Bounds of ``size`` bytes at every lane and their alignment (``align`` 0: to ``size``).

    Returns (memory, can there be never-written bytes).
    """
    batch = group.batch
    unwritten = True
    memory: Bytes = batch.arena
    if space == "global":
        unwritten = _check_global(group, address, offset, size, write)
    elif space == "cluster":
        memory = batch.shared
        _check_cluster(group, address, offset - origin, size, write)
    else:
        memory = batch.shared if space == "shared" else batch.local
        start, end = (
            (batch.shared_start, batch.shared_end) if space == "shared" else (batch.local_start, batch.local_end)
        )
        shift = offset - origin
        if address.low + shift < start or address.high + shift + size > end:
            raise _window_fault(group, address, shift, size, start, end, space)
    align = align or size
    if (address.bits | offset) & (align - 1):
        _check_alignment(memory, address, offset, align)
    return memory, unwritten


def _check_cluster(group: Lanes[MemoryBatch], address: Address, shift: int, size: int, write: bool) -> None:
    """Shared addresses with ranks: the offset lies in the window, the CTA exists and has not exited."""
    batch = group.batch
    addresses = np.broadcast_to(address.signed(shift), group.count)
    offsets, named = addresses & _I8(_OFFSET), addresses >> RANK_SHIFT
    wrong = (addresses < 0) | (offsets < batch.shared_start) | (offsets + size > batch.shared_end)
    wrong |= named > batch.cluster_size
    if wrong.any():
        position = int(np.argmax(wrong))
        raise _out_of_window(group, position, int(addresses[position]), size, "shared")
    gone = (named > 0) & ~batch.running_ctas()[_slots(group, addresses)]
    if gone.any():
        position = int(np.argmax(gone))
        what = "a store into" if write else "a read of"
        message = f"{what} shared memory of the CTA of rank {int(named[position]) - 1}, which has exited"
        raise LaneFault(FaultKind.USE_AFTER_FREE, message, position, int(addresses[position]))


def _check_global(group: Lanes[MemoryBatch], address: Address, offset: int, size: int, write: bool) -> bool:
    arena = group.batch.arena
    allocation = arena.around(address.low + offset, address.high + offset + size)
    if allocation is None:
        _check_scattered(group, address, offset, size, write)
        return True
    if write and allocation.read_only:
        raise LaneFault(FaultKind.READ_ONLY, f"a store into {allocation.label}", 0, address.lane(0, offset))
    return not allocation.complete


def _check_scattered(group: Lanes[MemoryBatch], address: Address, offset: int, size: int, write: bool) -> None:
    """Lanes that touch several allocations: each must lie inside one."""
    arena = group.batch.arena
    addresses = np.atleast_1d(address.signed(offset)).view(np.uint64)
    good, writable = arena.inside(addresses, size)
    if not good.all():
        position = int(np.argmin(good))
        raise arena.fault(int(addresses[position]), size, position)
    if write and not writable.all():
        position = int(np.argmin(writable))
        raise LaneFault(FaultKind.READ_ONLY, "a store into constant memory", position, int(addresses[position]))


def _check_alignment(memory: Bytes, address: Address, offset: int, size: int) -> None:
    wrong = np.atleast_1d(address.signed(offset)) & _I8(size - 1) != 0
    if wrong.any():
        position = int(np.argmax(wrong))
        where = address.lane(position, offset)
        message = f"{size} bytes at {where:#x}: not {size}-byte aligned"
        raise LaneFault(FaultKind.MISALIGNED, message, position, where, *memory.name_of(where))


def _window_fault(
    group: Lanes[MemoryBatch], address: Address, offset: int, size: int, start: int, end: int, space: str
) -> LaneFault:
    addresses = np.atleast_1d(address.signed(offset))
    position = int(np.argmax((addresses < start) | (addresses + size > end)))
    return _out_of_window(group, position, int(addresses[position]), size, space)


def _out_of_window(group: Lanes[MemoryBatch], position: int, where: int, size: int, space: str) -> LaneFault:
    batch = group.batch
    start, end = (batch.shared_start, batch.shared_end) if space == "shared" else (batch.local_start, batch.local_end)
    kind = FaultKind.SHARED_OUT_OF_BOUNDS if space == "shared" else FaultKind.LOCAL_OUT_OF_BOUNDS
    whose, inside = "", where
    if space == "shared" and batch.cluster_size > 1 and where > _OFFSET:
        rank, inside = (where >> RANK_SHIFT) - 1, where & _OFFSET
        whose = f" of the CTA of rank {rank} in a cluster of {batch.cluster_size}"
    message = (
        f"{size} bytes at {space} offset {inside - start}{whose}: {space} memory of this launch has {end - start} bytes"
    )
    return LaneFault(kind, message, position, where, f"{space} memory", inside - start)
