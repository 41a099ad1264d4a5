"""Vector clocks of the warps of a batch.

A domain is the CTAs that can synchronise with each other by barriers: one CTA, or those of a cluster. Each warp has a
row with a column for each warp of its domain, and further columns for asynchronous work: up to which time it knows
what the other has done. Rows follow the CTA slots: row = slot * warps + warp.
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.checking.epochs import NEVER
from lowdnn.driver.emulated.memory.arena import Array


class Clocks:
    """``known`` [rows, columns]. ``extra``: columns of asynchronous work for each CTA."""

    def __init__(self, slots: int, warps: int, cluster_size: int, extra: int) -> None:
        self.warps = warps
        self.columns = cluster_size * (warps + extra)
        self.own = np.arange(slots * warps) % (cluster_size * warps)
        self.known = np.zeros((slots * warps, self.columns), dtype=np.int64)
        self.known[np.arange(slots * warps), self.own] = NEVER

    def released(self, rows: Array, now: int) -> Array:
        """[rows, columns]: what each of some warps passes on at time ``now``: what it knows, and itself up to now."""
        passed = self.known[rows]
        passed[np.arange(rows.size), self.own[rows]] = now
        return passed

    def learn(self, rows: Array, clocks: Array) -> None:
        """Each of some warps learns what a clock (one for each, or one for all) holds."""
        self.known[rows] = np.maximum(self.known[rows], clocks)

    def knows(self, rows: Array, columns: Array, times: Array) -> Array:
        return np.asarray(self.known[rows, columns] > times)


def joined(clocks: Array, keys: Array) -> tuple[Array, Array]:
    """(distinct keys, for each of them the latest of every column)."""
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    return found, np.maximum.reduceat(clocks[order], starts, axis=0)
