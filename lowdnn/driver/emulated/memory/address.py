"""Addresses of a group of lanes: which bytes of which memory they mean, with every check.

An ``Address`` is made once for each register that a block uses as a base; loads and stores at several offsets share
its extremes and its element numbers. Source: PTX ISA manual, "State Spaces", "Addresses as Operands", "Generic
Addressing".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import ARENA_BASE, LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, Array, Bytes

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Group

_I8 = np.int64


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

    def places(self, group: Group, space: str, origin: int, offset: int, shift: int) -> Any:
        """Numbers of the elements of ``1 << shift`` bytes at address + offset - origin, in the batch's memory of
        ``space``."""
        if (self.bits | offset) & ((1 << shift) - 1):
            return (self.signed(offset - origin) + _lane_base(group, space)) >> shift
        key = (space, origin, shift)
        base = self._places.get(key)
        if base is None:
            base = self._places[key] = (self.signed(-origin) + _lane_base(group, space)) >> shift
        return base + (offset >> shift) if offset else base


def _lane_base(group: Group, space: str) -> Any:
    if space == "global" or (space == "shared" and group.batch.shared_single):
        return _I8(0)
    return group.shared_base if space == "shared" else group.local_base


def resolve(group: Group, space: str, address: Address, offset: int) -> tuple[str, int]:
    """(space, origin): the space that all addresses lie in, and what to take off them. ("", 0) where lanes differ."""
    if space != "generic":
        return space, ARENA_BASE if space == "global" else 0
    low, high = address.low + offset, address.high + offset
    if low >= ARENA_BASE:
        return "global", ARENA_BASE
    for name, window in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
        if window <= low and high < window + WINDOW_BYTES:
            return name, window
    return ("global", ARENA_BASE) if high < LOCAL_WINDOW or address.scalar else ("", 0)


def split(address: Address, offset: int) -> list[Array]:
    """Masks of the lanes of a mixed generic access by space."""
    addresses = address.signed(offset)
    shared = (addresses >= SHARED_WINDOW) & (addresses < SHARED_WINDOW + WINDOW_BYTES)
    local = (addresses >= LOCAL_WINDOW) & (addresses < LOCAL_WINDOW + WINDOW_BYTES)
    return [mask for mask in (shared, local, ~(shared | local)) if mask.any()]


def check(
    group: Group, space: str, origin: int, address: Address, offset: int, size: int, write: bool = False
) -> tuple[Bytes, bool]:
    """Bounds and alignment of ``size`` bytes at every lane. Returns (memory, can there be never-written bytes)."""
    batch = group.batch
    unwritten = True
    memory: Bytes = batch.arena
    if space == "global":
        unwritten = _check_global(group, address, offset, size, write)
    else:
        memory = batch.shared if space == "shared" else batch.local
        start, end = (
            (batch.shared_start, batch.shared_end) if space == "shared" else (batch.local_start, batch.local_end)
        )
        shift = offset - origin
        if address.low + shift < start or address.high + shift + size > end:
            raise _window_fault(address, shift, size, start, end, space)
    if (address.bits | offset) & (size - 1):
        _check_alignment(address, offset, size)
    return memory, unwritten


def _check_global(group: Group, address: Address, offset: int, size: int, write: bool) -> bool:
    arena = group.batch.arena
    allocation = arena.around(address.low + offset, address.high + offset + size)
    if allocation is None:
        _check_scattered(group, address, offset, size, write)
        return True
    if write and allocation.read_only:
        raise LaneFault(FaultKind.READ_ONLY, f"a store into {allocation.label}", 0, address.lane(0, offset))
    return not allocation.complete


def _check_scattered(group: Group, address: Address, offset: int, size: int, write: bool) -> None:
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


def _check_alignment(address: Address, offset: int, size: int) -> None:
    wrong = np.atleast_1d(address.signed(offset)) & _I8(size - 1) != 0
    if wrong.any():
        position = int(np.argmax(wrong))
        where = address.lane(position, offset)
        raise LaneFault(FaultKind.MISALIGNED, f"{size} bytes at {where:#x}: not {size}-byte aligned", position, where)


def _window_fault(address: Address, offset: int, size: int, start: int, end: int, space: str) -> LaneFault:
    addresses = np.atleast_1d(address.signed(offset))
    position = int(np.argmax((addresses < start) | (addresses + size > end)))
    where = int(addresses[position])
    kind = FaultKind.SHARED_OUT_OF_BOUNDS if space == "shared" else FaultKind.LOCAL_OUT_OF_BOUNDS
    message = f"{size} bytes at {space} offset {where - start}: {space} memory of this launch has {end - start} bytes"
    return LaneFault(kind, message, position, where, f"{space} memory", where - start)
