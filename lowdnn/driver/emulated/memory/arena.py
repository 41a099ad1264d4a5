"""Device memory of an emulated device: an ``Arena`` is its part of an ``AddressSpace``, and what else it may touch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.space import ARENA_BASE, AddressSpace, Allocation

Array = np.ndarray[Any, Any]

#: Generic addresses: shared and local memory are windows below the arena.
LOCAL_WINDOW = 0x7A00_0000_0000
SHARED_WINDOW = 0x7B00_0000_0000
WINDOW_BYTES = 1 << 32

#: Largest distance in bytes of an address from the allocation that a report names for it; larger ones reach farther.
_NEAR_BYTES = 1 << 20
#: That distance as a multiple of the allocation's size.
_NEAR_SIZES = 16

#: Value code -> NumPy type; ``w16`` is a 16-byte word that is moved as a whole.
DTYPES: dict[str, Any] = {
    "p": np.bool_,
    "u1": np.uint8,
    "u2": np.uint16,
    "u4": np.uint32,
    "u8": np.uint64,
    "i1": np.int8,
    "i2": np.int16,
    "i4": np.int32,
    "i8": np.int64,
    "f4": np.float32,
    "f8": np.float64,
    "w16": np.complex128,
}
SHADOW_CODES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "w16"}
#: The shadow of ``size`` written bytes, read as one element.
WRITTEN = {size: np.frombuffer(b"\1" * size, dtype=DTYPES[code])[0] for size, code in SHADOW_CODES.items()}


def all_written(shadow: Array) -> bool:
    """Whether all bytes of a shadow, given as words of 16 bytes, are written."""
    return shadow.size == 0 or bool(shadow.view(np.uint64).min() == WRITTEN[8])


class Bytes:
    """A byte array with its shadow and with views of both, by value code and by size.

    ``name`` and ``first``, the lowest address that a kernel may use, are for reports.
    """

    def __init__(self, data: Array, shadow: Array, name: str, first: int = 0) -> None:
        self.name = name
        self.first = first
        self.data = data
        self.shadow = shadow
        self.views = {code: data.view(dtype) for code, dtype in DTYPES.items()}
        self.shadows = {size: shadow.view(DTYPES[code]) for size, code in SHADOW_CODES.items()}

    def name_of(self, address: int) -> tuple[str, int]:
        """(what holds an address, offset in it). Windows of generic addresses start at multiples of their size."""
        return self.name, address % WINDOW_BYTES - self.first


class Arena(Bytes):
    """The global memory of one device of a ``space``, by default its only one. Sizes are bytes; addresses are Python
    integers.

    Kernels reach the device's own memory, that of ``peers`` (devices to which it has peer access) and the allocations
    that begin at the addresses ``opened``, which came by IPC. Copies for the host reach all of the space.
    """

    def __init__(
        self,
        limit_bytes: int = 80 << 30,
        range_bytes: int = 1 << 37,
        *,
        space: AddressSpace | None = None,
        device: int = 0,
    ) -> None:
        self.space = AddressSpace(range_bytes) if space is None else space
        super().__init__(self.space.data, self.space.shadow, "global memory")
        self.limit_bytes = limit_bytes
        self.device = device
        self.peers: set[int] = set()
        self.opened: Counter[int] = Counter()
        self._last: Allocation | None = None
        self.space.changed.append(self.reach_changed)

    @property
    def live_bytes(self) -> int:
        return self.space.live_bytes[self.device]

    # -- allocation -----------------------------------------------------------------------------------------
    def allocate(self, size_bytes: int, label: str = "", read_only: bool = False, pooled: bool = False) -> int:
        """A new range of never-written bytes. Raises ``MemoryError`` beyond ``limit_bytes``."""
        if size_bytes <= 0:
            raise ValueError(f"size_bytes: expected a positive number, got {size_bytes}")
        if self.live_bytes + size_bytes > self.limit_bytes:
            raise MemoryError(
                f"{size_bytes} bytes asked for, {self.limit_bytes - self.live_bytes} of {self.limit_bytes} free"
            )
        return self.space.allocate(size_bytes, label, read_only, self.device, pooled).address

    def free(self, address: int) -> None:
        """Ends an allocation of any device; see ``AddressSpace.free``."""
        self.space.free(address)

    def close(self) -> None:
        """Ends all of the device's allocations."""
        self.space.free_all(self.device)
        self.space.changed.remove(self.reach_changed)

    # -- host access ----------------------------------------------------------------------------------------
    def host_write(self, address: int, source: Array) -> None:
        """Copies ``source`` (uint8) to the device."""
        allocation, span = self._span(address, source.size)
        self.data[span] = source
        self._mark(allocation, span)

    def host_read(self, address: int, size_bytes: int) -> Array:
        """A copy of device bytes as uint8; never-written ones read as they lie (zero)."""
        _, span = self._span(address, size_bytes)
        return self.data[span].copy()

    def fill(self, address: int, value: int, count: int, width_bytes: int = 1) -> None:
        """Writes ``count`` values of ``width_bytes`` (1, 2 or 4), as a kernel of the device would."""
        self.require_reach(address, count * width_bytes)
        allocation, span = self._span(address, count * width_bytes)
        pattern = np.frombuffer(value.to_bytes(width_bytes, "little"), np.uint8)
        self.data[span].reshape(-1, width_bytes)[:] = pattern
        self._mark(allocation, span)

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Device to device; what was never written stays never written."""
        allocation, to = self._span(destination, size_bytes)
        _, of = self._span(source, size_bytes)
        self.data[to] = self.data[of].copy()
        self.shadow[to] = self.shadow[of].copy()
        if bool(self.shadow[to].all()):
            self._mark(allocation, to)
        else:
            allocation.complete = False

    def written(self, address: int, size_bytes: int) -> bool:
        """Whether every byte of a range has been written."""
        return bool(self.shadow[self._span(address, size_bytes)[1]].all())

    def require(self, address: int, size_bytes: int) -> None:
        """Raises LaneFault where a range is not one that the host may copy."""
        self._span(address, size_bytes)

    def require_reach(self, address: int, size_bytes: int) -> None:
        """Raises LaneFault where a range is not one that kernels of the device may touch."""
        if self.around(address, address + size_bytes) is None:
            raise self.fault(address, size_bytes, None)

    def _mark(self, allocation: Allocation, span: slice) -> None:
        self.shadow[span] = 1
        if span.stop - span.start == allocation.size:
            allocation.complete = True

    def _span(self, address: int, size_bytes: int) -> tuple[Allocation, slice]:
        allocation = self.space.at(address)
        if allocation is None or address + size_bytes > allocation.end:
            raise self.fault(address, size_bytes, None)
        return allocation, slice(address - ARENA_BASE, address - ARENA_BASE + size_bytes)

    # -- checks ---------------------------------------------------------------------------------------------
    def around(self, low: int, end: int) -> Allocation | None:
        """The live allocation that holds all of [low, end), where the device's kernels reach it."""
        last = self._last
        if last is not None and last.address <= low and end <= last.end:
            return last
        found = self.space.nearest(low)
        if found is None or not found.alive or end > found.end or not self._reaches(found):
            return None
        self._last = found
        return found

    def reach_changed(self) -> None:
        """Forgets the allocation at hand, since the device may not reach it any more."""
        self._last = None

    def _reaches(self, allocation: Allocation) -> bool:
        owner = allocation.device
        if owner == self.device:
            return True
        return (owner in self.peers and not allocation.pooled) or self.opened[allocation.address] > 0

    def name_of(self, address: int) -> tuple[str, int]:
        near = self.space.nearest(address)
        return (self.name, address) if near is None else (near.label, address - near.address)

    def inside(self, addresses: Array, size: int) -> tuple[Array, Array]:
        """For each address: (whether [address, address + size) lies in one live allocation, whether that is
        writable)."""
        kept = [*self.space.known()]
        if not kept:
            return np.zeros(addresses.shape, dtype=np.bool_), np.zeros(addresses.shape, dtype=np.bool_)
        starts = np.array([a.address for a in kept], dtype=np.uint64)
        ends = np.array([a.end if a.alive and self._reaches(a) else 0 for a in kept], dtype=np.uint64)
        place = np.searchsorted(starts, addresses, side="right") - 1
        writable = np.array([not a.read_only for a in kept], dtype=np.bool_)
        nearest = np.maximum(place, 0)
        return (place >= 0) & (addresses + np.uint64(size) <= ends[nearest]), writable[nearest]

    def fault(self, address: int, size: int, position: int | None) -> LaneFault:
        """The fault of touching [address, address + size), named after the nearest allocation if one is near."""
        what = f"{size} bytes at {address:#x}"
        below = self.space.nearest(address)
        if below is not None and not below.alive and address < below.end:
            message, offset = f"{what}: {below.label} has been freed", address - below.address
            return LaneFault(FaultKind.USE_AFTER_FREE, message, position, address, below.label, offset)
        if below is not None and address + size <= below.end and not self._reaches(below):
            return self._no_access(what, below, address, position)
        outside = [(_distance(one, address), one) for one in (below, self.space.next_above(address)) if one is not None]
        meant = [(distance, one) for distance, one in outside if distance <= max(_NEAR_BYTES, _NEAR_SIZES * one.size)]
        if not meant:
            return LaneFault(FaultKind.OUT_OF_BOUNDS, f"{what}: no allocation is near", position, address)
        distance, near = min(meant, key=lambda pair: pair[0])
        if near is below:
            message = f"{what}: {address + size - near.end} bytes past the end of {near.label} ({near.size} bytes)"
        else:
            message = f"{what}: {distance} bytes before the start of {near.label}"
        return LaneFault(FaultKind.OUT_OF_BOUNDS, message, position, address, near.label, address - near.address)

    def _no_access(self, what: str, allocation: Allocation, address: int, position: int | None) -> LaneFault:
        """The fault of touching memory of another device."""
        owner = allocation.device
        if allocation.pooled:
            why = f"the stream-ordered pool of device {owner}, which cuCtxEnablePeerAccess does not open to peers"
        else:
            why = f"device {owner}, to which device {self.device} has no peer access (cuCtxEnablePeerAccess)"
        message, offset = f"{what}: {allocation.label} is memory of {why}", address - allocation.address
        return LaneFault(FaultKind.NO_PEER_ACCESS, message, position, address, allocation.label, offset)


def _distance(allocation: Allocation, address: int) -> int:
    """Bytes between an allocation and an address outside it (0: the first byte past its end)."""
    return allocation.address - address if address < allocation.address else max(0, address - allocation.end)
