"""Device memory of the emulated device.

``Arena`` is one flat range of device addresses. Allocations are 256-byte aligned with gaps of at least 256 bytes.
Addresses are used again only when the whole range has been handed out, those that were freed last at the very end, so
that a stale pointer is told from a live one. A shadow byte stands beside every byte
(1 = written). Both arrays are anonymous maps that take host memory only where they are touched, and give it back on
``free``.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault

Array = np.ndarray[Any, Any]

#: Generic addresses: shared and local memory are windows below the arena.
LOCAL_WINDOW = 0x7A00_0000_0000
SHARED_WINDOW = 0x7B00_0000_0000
WINDOW_BYTES = 1 << 32
ARENA_BASE = 0x7C00_0000_0000

#: Linux's number; the mmap module has no name for it before Python 3.13.
_MAP_NORESERVE = 0x4000
_SMALLEST_RANGE = 1 << 28
#: The most freed allocations that are remembered, so that reports name them; the oldest are forgotten.
_REMEMBERED = 1024
_ALIGN = 256
_GAP = 256
_POISON = 0xA5
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


@dataclass(slots=True)
class Allocation:
    """One live or freed range. ``complete``: every byte is known to be written, so loads need no shadow check."""

    address: int
    size: int
    label: str
    read_only: bool = False
    alive: bool = True
    complete: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


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
    """Global memory. Sizes are bytes; addresses are Python integers."""

    def __init__(self, limit_bytes: int = 80 << 30, range_bytes: int = 1 << 37) -> None:
        self._maps = _lazy_maps(range_bytes)
        range_bytes = len(self._maps[0])
        data, shadow = (np.frombuffer(m, dtype=np.uint8) for m in self._maps)
        super().__init__(data, shadow, "global memory")
        self.limit_bytes = limit_bytes
        self.live_bytes = 0
        # New allocations follow each other in a gap between the known ones.
        self._next = self._extent = ARENA_BASE + _ALIGN
        self._gap_end = self._end = ARENA_BASE + range_bytes
        self._starts: list[int] = []
        self._allocations: dict[int, Allocation] = {}
        self._freed: deque[int] = deque()
        self._last: Allocation | None = None

    @property
    def extent_bytes(self) -> int:
        """From the first address to the end of all allocations that there have been."""
        return self._extent - ARENA_BASE

    # -- allocation -----------------------------------------------------------------------------------------
    def allocate(self, size_bytes: int, label: str = "", read_only: bool = False) -> int:
        """A new range of never-written bytes. Raises ``MemoryError`` beyond ``limit_bytes``."""
        if size_bytes <= 0:
            raise ValueError(f"size_bytes: expected a positive number, got {size_bytes}")
        if self.live_bytes + size_bytes > self.limit_bytes:
            raise MemoryError(
                f"{size_bytes} bytes asked for, {self.limit_bytes - self.live_bytes} of {self.limit_bytes} free"
            )
        span = _span_bytes(size_bytes)
        if self._next + span > self._gap_end:
            self._next, self._gap_end = self._find_gap(span)
        address = self._next
        self._next += span
        self._extent = max(self._extent, self._next)
        insort(self._starts, address)
        self._allocations[address] = Allocation(address, size_bytes, label or f"buffer {address:#x}", read_only)
        self.live_bytes += size_bytes
        return address

    def free(self, address: int) -> None:
        """Ends an allocation; its bytes are gone and touching them is a fault. Raises ``ValueError`` for an unknown
        address."""
        allocation = self._allocations.get(address)
        if allocation is None or not allocation.alive:
            raise ValueError(f"address: expected the start of a live allocation, got {address:#x}")
        allocation.alive = False
        self.live_bytes -= allocation.size
        self._last = None
        self._discard(allocation)
        self._freed.append(address)
        if len(self._freed) > _REMEMBERED:
            self._forget(self._freed.popleft())

    def allocation_at(self, address: int) -> Allocation | None:
        """The live allocation that holds ``address``."""
        found = self._nearest(address)
        return found if found is not None and found.alive and address < found.end else None

    def _forget(self, address: int) -> None:
        """Forgets a freed allocation, and frees the pages that it shared with forgotten ones alone."""
        place = bisect_left(self._starts, address)
        del self._starts[place]
        end = self._allocations.pop(address).end
        below = self._allocations[self._starts[place - 1]].end if place else ARENA_BASE
        above = self._starts[place] if place < len(self._starts) else self._end
        page = mmap.PAGESIZE
        self._give_back_pages(max(below, address - page), min(above, end + page))

    def _find_gap(self, span: int) -> tuple[int, int]:
        """The widest gap between known allocations; forgets the oldest freed ones until a gap is wide enough.

        Raises ``MemoryError`` where none is.
        """
        while True:
            edges = [ARENA_BASE + _ALIGN]
            for start in self._starts:
                edges += (start, start + _span_bytes(self._allocations[start].size))
            edges.append(self._end)
            start, end = max(zip(edges[::2], edges[1::2], strict=True), key=lambda gap: gap[1] - gap[0])
            if end - start >= span:
                return start, end
            if not self._freed:
                raise MemoryError(f"no range of {span} bytes is left")
            for _ in range(-(-len(self._freed) // 2)):
                self._forget(self._freed.popleft())

    def _discard(self, allocation: Allocation) -> None:
        low, high = allocation.address - ARENA_BASE, allocation.end - ARENA_BASE
        first, last = self._give_back_pages(allocation.address, allocation.end)
        for part in (slice(low, first), slice(last, high)):
            self.data[part] = _POISON
            self.shadow[part] = 0

    def _give_back_pages(self, low: int, high: int) -> tuple[int, int]:
        """Gives the host the whole pages in [low, high), whose bytes are then zero and never written.

        Returns the offsets of the first such page and of the end of the last; both are that of ``high`` without one.
        """
        page = mmap.PAGESIZE
        first, last = -(-(low - ARENA_BASE) // page) * page, (high - ARENA_BASE) // page * page
        if first >= last:
            return high - ARENA_BASE, high - ARENA_BASE
        for map_ in self._maps:
            map_.madvise(mmap.MADV_DONTNEED, first, last - first)
        return first, last

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
        """Writes ``count`` values of ``width_bytes`` (1, 2 or 4)."""
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

    def _mark(self, allocation: Allocation, span: slice) -> None:
        self.shadow[span] = 1
        if span.stop - span.start == allocation.size:
            allocation.complete = True

    def _span(self, address: int, size_bytes: int) -> tuple[Allocation, slice]:
        allocation = self.around(address, address + size_bytes)
        if allocation is None:
            raise self.fault(address, size_bytes, None)
        return allocation, slice(address - ARENA_BASE, address - ARENA_BASE + size_bytes)

    # -- checks ---------------------------------------------------------------------------------------------
    def around(self, low: int, end: int) -> Allocation | None:
        """The live allocation that holds all of [low, end)."""
        last = self._last
        if last is not None and last.address <= low and end <= last.end:
            return last
        found = self._nearest(low)
        if found is None or not found.alive or end > found.end:
            return None
        self._last = found
        return found

    def name_of(self, address: int) -> tuple[str, int]:
        near = self._nearest(address)
        return (self.name, address) if near is None else (near.label, address - near.address)

    def inside(self, addresses: Array, size: int) -> tuple[Array, Array]:
        """For each address: (whether [address, address + size) lies in one live allocation, whether that is
        writable)."""
        starts = np.array(self._starts, dtype=np.uint64)
        if starts.size == 0:
            return np.zeros(addresses.shape, dtype=np.bool_), np.zeros(addresses.shape, dtype=np.bool_)
        kept = [self._allocations[start] for start in self._starts]
        ends = np.array([a.end if a.alive else 0 for a in kept], dtype=np.uint64)
        place = np.searchsorted(starts, addresses, side="right") - 1
        writable = np.array([not a.read_only for a in kept], dtype=np.bool_)
        nearest = np.maximum(place, 0)
        return (place >= 0) & (addresses + np.uint64(size) <= ends[nearest]), writable[nearest]

    def fault(self, address: int, size: int, position: int | None) -> LaneFault:
        """The fault of touching [address, address + size), named after the nearest allocation if one is near."""
        what = f"{size} bytes at {address:#x}"
        below = self._nearest(address)
        if below is not None and not below.alive and address < below.end:
            message, offset = f"{what}: {below.label} has been freed", address - below.address
            return LaneFault(FaultKind.USE_AFTER_FREE, message, position, address, below.label, offset)
        outside = [(_distance(one, address), one) for one in (below, self._next_above(address)) if one is not None]
        meant = [(distance, one) for distance, one in outside if distance <= max(_NEAR_BYTES, _NEAR_SIZES * one.size)]
        if not meant:
            return LaneFault(FaultKind.OUT_OF_BOUNDS, f"{what}: no allocation is near", position, address)
        distance, near = min(meant, key=lambda pair: pair[0])
        if near is below:
            message = f"{what}: {address + size - near.end} bytes past the end of {near.label} ({near.size} bytes)"
        else:
            message = f"{what}: {distance} bytes before the start of {near.label}"
        return LaneFault(FaultKind.OUT_OF_BOUNDS, message, position, address, near.label, address - near.address)

    def _next_above(self, address: int) -> Allocation | None:
        place = bisect_right(self._starts, address)
        return self._allocations[self._starts[place]] if place < len(self._starts) else None

    def _nearest(self, address: int) -> Allocation | None:
        place = bisect_right(self._starts, address) - 1
        return self._allocations[self._starts[place]] if place >= 0 else None


def _span_bytes(size_bytes: int) -> int:
    """Bytes of an allocation with the gap behind it."""
    return -(-size_bytes // _ALIGN) * _ALIGN + _GAP


def _distance(allocation: Allocation, address: int) -> int:
    """Bytes between an allocation and an address outside it (0: the first byte past its end)."""
    return allocation.address - address if address < allocation.address else max(0, address - allocation.end)


def _lazy_maps(size_bytes: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Two maps of at most ``size_bytes``: half as much as often as the host's limit on address space demands."""
    while True:
        try:
            return lazy_map(size_bytes), lazy_map(size_bytes)
        except OSError:
            if size_bytes <= _SMALLEST_RANGE:
                raise
            size_bytes //= 2


def lazy_map(size_bytes: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return mmap.mmap(-1, size_bytes, flags=flags)
