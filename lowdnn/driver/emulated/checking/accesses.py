"""The last write and the last reads of every granule of a memory, as epochs."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.memory.arena import Array

#: Reads that are kept of each granule, one for each warp number modulo this. A read that another one replaces may
#: hide a race; it never makes one up.
READERS = 4


class Accesses:
    """Granules of ``1 << shift`` bytes; ``writes`` [granules] and ``reads`` [READERS + 1, granules] hold epochs.

    The last row of ``reads`` is for reads by asynchronous work. Both are arrays of zeros, of a multiple of 16 bytes'
    granules. Places are numbers of units of ``1 << unit`` bytes; results are [n, granules in a unit].
    """

    def __init__(self, writes: Array, reads: Array, shift: int) -> None:
        self.shift = shift
        self._writes = {n: writes.reshape(-1, 1 << n) for n in range(5 - shift)}
        self._reads = {n: reads.reshape(-1, 1 << n) for n in range(5 - shift)}
        self._units = {n: writes.size >> n for n in range(5 - shift)}
        self.is_read = False

    def written(self, places: Array, unit: int) -> Array:
        return np.asarray(self._view(self._writes, places, unit))

    def write(self, places: Array, unit: int, epochs: Any) -> None:
        n, places = self._level(places, unit)
        self._writes[n][places] = epochs[:, None]

    def read_by(self, row: int, places: Array, unit: int) -> Array:
        """The last reads that row ``row`` keeps."""
        n, places = self._level(places, unit)
        return np.asarray(self._reads[n][places + row * self._units[n]])

    def read(self, rows: Any, places: Array, unit: int, epochs: Any) -> None:
        n, places = self._level(places, unit)
        self.is_read = True
        self._reads[n][places + rows * self._units[n]] = epochs[:, None]

    def _view(self, views: dict[int, Array], places: Array, unit: int) -> Array:
        n, places = self._level(places, unit)
        return np.asarray(views[n][places])

    def _level(self, places: Array, unit: int) -> tuple[int, Array]:
        """(log2 of the granules in a unit, places in such units); a unit below a granule stands for all of it."""
        if unit >= self.shift:
            return unit - self.shift, places
        return 0, places >> (self.shift - unit)


def of_shared(size_bytes: int, shift: int) -> Accesses:
    """For shared memory of a batch."""
    granules = -(-size_bytes // 16) * 16 >> shift
    return Accesses(np.zeros(granules, np.int64), np.zeros((READERS + 1) * granules, np.int64), shift)
