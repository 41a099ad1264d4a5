"""Vector clocks of the warps of a batch.

A domain is the CTAs that can synchronise with each other: one CTA, those of a cluster, or all of a launch. Each warp
has a row with a column for each warp of its domain, and further columns for asynchronous work of each CTA: up to which
time it knows what the other has done. Rows follow the CTA slots: row = slot * warps + warp.
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.checking.epochs import NEVER
from lowdnn.driver.emulated.memory.arena import Array


class Clocks:
    """``table`` [rows, 2 * columns]: what each warp knows, and what of it a proxy fence has covered.

    ``own`` are the rows' columns; with ``proxies`` False there is no second half. Behind both lie blocks of columns of
    other launches; a clock that lacks the last ones knows nothing of those launches.
    """

    def __init__(self, own: Array, columns: int, proxies: bool) -> None:
        self.own = own
        self.columns = columns
        self.table: Array = np.zeros((own.size, columns * (1 + proxies)), dtype=np.int64)
        self._look()
        self.known[np.arange(own.size), own] = NEVER

    def released(self, rows: Array, now: int) -> Array:
        """[rows, ...]: what each of some warps passes on at time ``now``: what it knows, and itself up to now."""
        passed = self.table[rows]
        passed[np.arange(rows.size), self.own[rows]] = now
        return passed

    def learn(self, rows: Array, clocks: Array) -> None:
        """Each of some warps learns what a clock (one for each, or one for all) holds."""
        width = clocks.shape[-1]
        self.table[rows, :width] = np.maximum(self.table[rows, :width], clocks)

    def learn_block(self, row: int, block: slice, clock: Array) -> None:
        """A warp learns what a clock of another launch holds."""
        known = self.block(block)
        known[row] = np.maximum(known[row], clock)

    def block(self, block: slice) -> Array:
        """[rows, columns of another launch]: what each warp knows of it."""
        if self.table.shape[1] < block.stop:
            self._widen(block.stop)
        return self.table[:, block]

    def widened(self, clocks: Array) -> Array:
        """Clocks [..., columns] with all columns of the table."""
        missing = self.table.shape[1] - clocks.shape[-1]
        if not missing:
            return clocks
        return np.concatenate([clocks, np.zeros((*clocks.shape[:-1], missing), dtype=np.int64)], axis=-1)

    def fence_proxy(self, rows: Array, now: int) -> None:
        """Accesses that some warps know become visible to the asynchronous work that they start."""
        self._fenced[rows] = np.maximum(self._fenced[rows], self.released(rows, now)[:, : self.columns])

    def _widen(self, width: int) -> None:
        """A table of ``width`` columns, those that there were first."""
        more = np.zeros((self.own.size, width - self.table.shape[1]), dtype=np.int64)
        self.table = np.concatenate([self.table, more], axis=1)
        self._look()

    def _look(self) -> None:
        """The parts of the table."""
        self.known = self.table[:, : self.columns]
        self._fenced = self.table[:, self.columns : 2 * self.columns]

    def knows(self, rows: Array, columns: Array, times: Array) -> Array:
        return np.asarray(self.known[rows, columns] > times)

    def has_fenced(self, rows: Array, columns: Array, times: Array) -> Array:
        return np.asarray(self._fenced[rows, columns] > times)


def joined(clocks: Array, keys: Array) -> tuple[Array, Array]:
    """(distinct keys, for each of them the maximum of every column)."""
    if keys.size == 1:
        return keys, clocks
    order = keys.argsort(kind="stable")
    ordered = keys[order]
    starts = starts_of_runs(ordered)
    return ordered[starts], np.maximum.reduceat(clocks[order], starts, axis=0)


def starts_of_runs(*columns: Array) -> Array:
    """Numbers of the entries that differ from the one before, in any column."""
    changes = np.empty(columns[0].size, dtype=np.bool_)
    changes[:1] = True
    np.not_equal(columns[0][1:], columns[0][:-1], out=changes[1:])
    for column in columns[1:]:
        changes[1:] |= column[1:] != column[:-1]
    return changes.nonzero()[0]
