"""The last write and the last reads of every granule of a memory, as epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lowdnn.driver.emulated.memory.arena import Array

#: Last reads that are kept for each granule: one for each value of the warp's number modulo this. A read that another
#: one replaces may hide a race, but never causes a false report.
READERS = 4
#: Index of the first row of reads that is for asynchronous work.
ASYNC_READER = READERS
ASYNC_READERS = 2
READER_ROWS = READERS + ASYNC_READERS
_EPOCH_BYTES = 8
_LARGEST_SHIFT = 4
#: log2 of the bytes of a region; for each region a flag says whether anything in it has been accessed.
_REGION_SHIFT = 16
_WRITES, _WARP_READS, _ASYNC_READS = range(3)
#: Most units read that wait to be entered into the arrays.
_MOST_WAITING = 1 << 22


class Accesses:
    """Granules of ``1 << shift`` bytes; ``writes`` [granules] and ``reads`` [READER_ROWS, granules] hold epochs.

    Both are arrays of zeros. Places are numbers of units of ``1 << unit`` bytes, at most 16; a unit below a granule
    stands for all of it. Results are [n, granules in a unit].

    Reads are entered when the next question about their region is asked: memory that is never written asks none.
    """

    def __init__(self, writes: Array, reads: Array, shift: int) -> None:
        self.shift = shift
        self._count = ((writes.size << shift) - 1 >> _REGION_SHIFT) + 1
        #: A byte for each region (1: touched), by kind of access. They are bytearrays, not NumPy arrays, since few are
        #: looked at at a time.
        self._touched = tuple(bytearray(self._count) for _ in range(3))
        #: The places that were looked up last, their unit and their regions.
        self._found: tuple[Array | None, int, slice] = (None, 0, slice(0, 0))
        self._waiting: list[tuple[Any, Array, int, Array]] = []
        self._waiting_units = 0
        self._levels = [_Level(writes, reads, 1 << n) for n in range(_LARGEST_SHIFT + 1 - shift)]

    def touched(self, places: Array, unit: int) -> tuple[bool, range]:
        """Returns (whether some of the places may have been written, the rows that may hold reads of them)."""
        regions = self._regions(places, unit)
        is_written, by_warps, by_async = (1 in touched[regions] for touched in self._touched)
        return is_written, range(0 if by_warps else ASYNC_READER, READER_ROWS if by_async else ASYNC_READER)

    def written(self, places: Array, unit: int) -> Array:
        level, places = self._level(places, unit)
        return level.writes.take(places, axis=0, mode="clip")

    def write(self, places: Array, unit: int, made: Array) -> None:
        self._touch(_WRITES, places, unit)
        level, places = self._level(places, unit)
        level.put(level.whole_writes, places, made)

    def read_by(self, row: int, places: Array, unit: int) -> Array:
        """The last reads that row ``row`` keeps."""
        self._enter_reads()
        level, places = self._level(places, unit)
        return level.reads.take(places + row * level.units, axis=0, mode="clip")

    def read(self, rows: Any, places: Array, unit: int, made: Array) -> None:
        """Reads of one kind: ``rows`` are all of warps or all of asynchronous work. Keeps the arrays."""
        first = rows if isinstance(rows, int) else rows[0]
        self._touch(_WARP_READS if first < ASYNC_READER else _ASYNC_READS, places, unit)
        self._waiting.append((rows, places, unit, made))
        self._waiting_units += places.size
        if self._waiting_units > _MOST_WAITING:
            self._enter_reads()

    def _enter_reads(self) -> None:
        for rows, places, unit, made in self._waiting:
            level, places = self._level(places, unit)
            level.put(level.whole_reads, places + rows * level.units, made)
        self._waiting.clear()
        self._waiting_units = 0

    def _touch(self, kind: int, places: Array, unit: int) -> None:
        regions = self._regions(places, unit)
        self._touched[kind][regions] = b"\1" * (regions.stop - regions.start)

    def _regions(self, places: Array, unit: int) -> slice:
        """The regions from the lowest to the highest place."""
        known, of_unit, regions = self._found
        if places is known and unit == of_unit:
            return regions
        if not places.size:
            regions = slice(0, 0)
        elif self._count == 1:
            regions = slice(0, 1)
        else:
            low, high = int(np.minimum.reduce(places)), int(np.maximum.reduce(places))
            first, last = low << unit >> _REGION_SHIFT, high << unit >> _REGION_SHIFT
            regions = slice(min(first, self._count), min(last + 1, self._count))
        self._found = places, unit, regions
        return regions

    def _level(self, places: Array, unit: int) -> tuple[_Level, Array]:
        if unit >= self.shift:
            return self._levels[unit - self.shift], places
        return self._levels[0], places >> (self.shift - unit)


class _Level:
    """Epochs of units of ``size`` granules, as two views: [units, size], and [units] words, which scatter faster."""

    def __init__(self, writes: Array, reads: Array, size: int) -> None:
        self.size = size
        self.units = writes.size // size
        self.writes = writes.reshape(-1, size)
        self.reads = reads.reshape(-1, size)
        self._whole = np.dtype(np.int64) if size == 1 else np.dtype(f"V{_EPOCH_BYTES * size}")
        self.whole_writes = writes.view(self._whole)
        self.whole_reads = reads.view(self._whole)

    def put(self, target: Array, places: Array, made: Array) -> None:
        target[places] = made if self.size == 1 else np.repeat(made, self.size).view(self._whole)


def epoch_bytes(size_bytes: int, shift: int) -> int:
    """Bytes of the epochs of ``size_bytes`` bytes of memory, in granules of ``1 << shift`` bytes."""
    return (size_bytes >> shift) * _EPOCH_BYTES * (1 + READER_ROWS)


def of_shared(size_bytes: int, shift: int) -> Accesses:
    """For shared memory of a batch."""
    granules = -(-size_bytes // 16) * 16 >> shift
    return Accesses(np.zeros(granules, np.int64), np.zeros(READER_ROWS * granules, np.int64), shift)


def of_global(size_bytes: int, shift: int, make: Callable[[int], Any]) -> Accesses:
    """For the first ``size_bytes`` of global memory; what lies beyond looks like their last granules, never accessed.

    ``make(bytes)`` gives a buffer of zeros that takes host memory where it is touched.
    """
    granules = (-(-size_bytes // 16) + 1) * 16 >> shift
    writes, reads = (np.frombuffer(make(_EPOCH_BYTES * n * granules), dtype=np.int64) for n in (1, READER_ROWS))
    return Accesses(writes, reads, shift)
