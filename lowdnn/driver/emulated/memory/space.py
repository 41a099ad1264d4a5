"""The device addresses of all devices of a driver: one range, as with unified addressing, and the allocations in it.

Allocations are 256-byte aligned with gaps of at least 256 bytes. Addresses are used again only when the whole range has
been handed out, those that were freed last at the very end, so that a stale pointer is told from a live one. A shadow
byte stands beside every byte (1 = written). Both arrays are anonymous maps that take host memory only where they are
touched, and give it back on ``free``.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

#: The first address; shared and local memory are windows below it.
ARENA_BASE = 0x7C00_0000_0000

#: Linux's number; the mmap module has no name for it before Python 3.13.
_MAP_NORESERVE = 0x4000
_SMALLEST_RANGE = 1 << 28
#: The most freed allocations that are remembered, so that reports name them; the oldest are forgotten.
_REMEMBERED = 1024
_ALIGN = 256
_GAP = 256
_POISON = 0xA5


@dataclass(slots=True)
class Allocation:
    """One live or freed range of a device's memory. ``complete``: every byte is known to be written, so loads need no
    shadow check. ``pooled``: it is of the stream-ordered pool, which peers reach only where its owner lets them."""

    address: int
    size: int
    label: str
    read_only: bool = False
    alive: bool = True
    complete: bool = False
    device: int = 0
    pooled: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


class AddressSpace:
    """The bytes ``data`` from ARENA_BASE on, their ``shadow``, and all allocations. Addresses are Python integers.

    ``changed`` holds what is called when an allocation ends, by those who keep some at hand.
    """

    def __init__(self, range_bytes: int = 1 << 37) -> None:
        self._maps = _lazy_maps(range_bytes)
        range_bytes = len(self._maps[0])
        self.data, self.shadow = (np.frombuffer(m, dtype=np.uint8) for m in self._maps)
        self.changed: list[Callable[[], None]] = []
        #: Bytes of live allocations by device.
        self.live_bytes: Counter[int] = Counter()
        # New allocations follow each other in a gap between the known ones.
        self._next = self._extent = ARENA_BASE + _ALIGN
        self._gap_end = self._end = ARENA_BASE + range_bytes
        self._starts: list[int] = []
        self._allocations: dict[int, Allocation] = {}
        self._freed: deque[int] = deque()

    @property
    def extent_bytes(self) -> int:
        """From the first address to the end of all allocations that there have been."""
        return self._extent - ARENA_BASE

    def known(self) -> Iterator[Allocation]:
        """All live allocations and the freed ones that are remembered, by address."""
        return (self._allocations[start] for start in self._starts)

    def allocate(self, size_bytes: int, label: str, read_only: bool, device: int, pooled: bool) -> Allocation:
        """A new range of never-written bytes. Raises ``MemoryError`` where there is no room for it."""
        span = _span_bytes(size_bytes)
        if self._next + span > self._gap_end:
            self._next, self._gap_end = self._find_gap(span)
        address = self._next
        self._next += span
        self._extent = max(self._extent, self._next)
        insort(self._starts, address)
        made = Allocation(address, size_bytes, label or f"buffer {address:#x}", read_only, device=device, pooled=pooled)
        self._allocations[address] = made
        self.live_bytes[device] += size_bytes
        return made

    def free(self, address: int) -> None:
        """Ends an allocation; its bytes are gone and touching them is a fault. Raises ``ValueError`` for an unknown
        address."""
        allocation = self._allocations.get(address)
        if allocation is None or not allocation.alive:
            raise ValueError(f"address: expected the start of a live allocation, got {address:#x}")
        allocation.alive = False
        self.live_bytes[allocation.device] -= allocation.size
        for tell in self.changed:
            tell()
        self._discard(allocation)
        self._freed.append(address)
        if len(self._freed) > _REMEMBERED:
            self._forget(self._freed.popleft())

    def free_all(self, device: int) -> None:
        """Ends all allocations of a device."""
        for allocation in [one for one in self.known() if one.alive and one.device == device]:
            self.free(allocation.address)

    def at(self, address: int) -> Allocation | None:
        """The live allocation that holds ``address``."""
        found = self.nearest(address)
        return found if found is not None and found.alive and address < found.end else None

    def nearest(self, address: int) -> Allocation | None:
        """The allocation, live or freed, that starts at the address or next below it."""
        place = bisect_right(self._starts, address) - 1
        return self._allocations[self._starts[place]] if place >= 0 else None

    def next_above(self, address: int) -> Allocation | None:
        place = bisect_right(self._starts, address)
        return self._allocations[self._starts[place]] if place < len(self._starts) else None

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


def _span_bytes(size_bytes: int) -> int:
    """Bytes of an allocation with the gap behind it."""
    return -(-size_bytes // _ALIGN) * _ALIGN + _GAP


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
