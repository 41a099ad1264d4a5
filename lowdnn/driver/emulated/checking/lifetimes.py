"""Shared memory of a CTA must not be used by its cluster after the CTA has ended.

Every access by another CTA of the cluster must come before the end of the CTA that owns the memory. It does where a
warp of the owner knows of it when that warp exits: for it to be over, it is enough that execution is ordered, so that
barriers and waits count that are relaxed. PTX ISA manual, "Cluster of Cooperative Thread Arrays", "State Spaces".
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.checking import epochs
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.reports import Earlier
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array

#: Arrivals at cluster barriers, of whatever order, by phase.
_ARRIVALS = "arrivals of clusters"


class Lifetimes:
    """``_uses`` [CTA slots, columns of the domain]: epoch of the last use of a CTA's memory by each warp, or the
    copies, of other CTAs. ``_over`` [the same]: the time up to which these uses are over, as the CTA knows from relaxed
    synchronisation.

    Relaxed operations on mbarriers are not followed. A use that another one replaces may hide a fault, but never causes
    a false report. ``shared``: a cluster has more than one CTA; otherwise there is nothing to do.
    """

    def __init__(self, batch: CheckedBatch, history: LaunchHistory, order: Order) -> None:
        self.batch = batch
        self._history = history
        self._order = order
        self.shared = batch.cluster_size > 1
        shape = (batch.cta_count, order.clocks.columns) if self.shared else (0, 0)
        self._uses = np.zeros(shape, dtype=np.int64)
        self._over = np.zeros(shape, dtype=np.int64)

    def use(self, slots: Array, rows: Array, made: Array, strong: bool = False) -> None:
        """Warps ``rows`` access shared memory of the CTAs ``slots``, with the epochs ``made``. A warp that synchronises
        with a strong access knows of the accessing warp's last fence, and that the access is over.
        """
        others = np.flatnonzero(slots != rows // self._order.warps)
        if self.shared and others.size:
            made = made[others]
            if strong:
                fence = self._order.last_fence[rows[others]]
                made = made + epochs.timed(np.where(fence > 0, fence - 1 - self._history.time, 0))
            self._uses[slots[others], self._columns(made)] = made

    def see(self, rows: Array, written: Array) -> None:
        """Strong loads of warps have read values that were written with the epochs ``written``."""
        slots, columns = rows // self._order.warps, self._columns(written)
        np.maximum.at(self._over, (slots, columns), epochs.time_of(written) + 1)

    def cluster_arrives(self, rows: Array, phase: int) -> None:
        """Warps arrive, relaxed, for a phase at the barrier of their cluster."""
        if self.shared:
            clusters = rows // self._order.warps // self.batch.cluster_size
            self._order.release((_ARRIVALS, phase), self.batch.cta_count, rows, clusters)

    def cluster_passes(self, rows: Array, phase: int) -> None:
        """Warps have waited for the cluster's barrier."""
        if self.shared:
            slots = np.unique(rows // self._order.warps)
            held = self._order.held((_ARRIVALS, phase), self.batch.cta_count)[slots // self.batch.cluster_size]
            self._learn(slots, held)

    def mbarriers_passed(self, rows: Array, held: Array) -> None:
        """Warps have waited, relaxed, for mbarriers that hold these clocks."""
        if self.shared:
            for row, clock in zip(rows.tolist(), held, strict=True):
                self._learn(np.array([row // self._order.warps]), clock[None])

    def lanes_exit(self, group: Lanes[object]) -> None:
        """Raises LaneFault where a CTA ends, of which another one may still use the shared memory."""
        if not self.shared:
            return
        slots = np.unique(group.slots)
        for slot in slots[~self.batch.running_ctas()[slots]].tolist():
            self._check_end(group, slot)

    def _check_end(self, group: Lanes[object], slot: int) -> None:
        warps = self._order.warps
        known = self._order.clocks.known[slot * warps : (slot + 1) * warps].max(axis=0)
        used = self._uses[slot]
        open_ = (used != 0) & (np.maximum(known, self._over[slot]) <= epochs.time_of(used))
        if open_.any():
            epoch = used[int(np.argmax(open_))]
            cta, actor = self._order.who(epoch)
            place = self._history.text_of(int(epochs.site_of(epoch)))
            use = Earlier("use of its shared memory", self.batch.block_of(cta), actor, place)
            owner = self.batch.block_of(int(self.batch.geometry.ctas[slot]))
            message = f"block {owner} ends, but nothing orders that after {use}"
            raise LaneFault(FaultKind.USE_AFTER_FREE, message, int(np.argmax(group.slots == slot)))

    def _columns(self, made: Array) -> Array:
        return np.asarray(epochs.column_of(made) % self._order.clocks.columns)

    def _learn(self, slots: Array, clocks: Array) -> None:
        self._over[slots] = np.maximum(self._over[slots], clocks[:, : self._order.clocks.columns])
