"""The race detector of a batch: hooks that memory and copies call. Barriers and waits call those of its ``order``.

Two accesses to a granule, one of them a write, race unless the later warp knows the earlier access: it has learned,
through barriers and other synchronisation, of a time of the earlier warp after that access. Accesses of one warp do
not race with each other. Strong accesses do not race with each other where their scopes reach. PTX ISA manual, "Memory
Consistency Model".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lowdnn.driver.emulated.checking.asynchronous import AsyncRaces
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.epochs import NEVER, WEAK, stamp
from lowdnn.driver.emulated.checking.fences import Fences
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.maps import MapRaces
from lowdnn.driver.emulated.checking.neighbours import Neighbours
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.visit import Visit
from lowdnn.driver.emulated.checking.visits import Visits
from lowdnn.driver.emulated.copying.pending import PendingCopies, PendingCopy
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array

_WARP = 32


class Races:
    """Follows the accesses of one batch. ``work``: those of the async proxy, and mbarriers, ``maps``: tensor maps."""

    def __init__(self, batch: CheckedBatch, history: LaunchHistory) -> None:
        self.batch = batch
        self.history = history
        self.order = Order(batch, history)
        self._neighbours = None if history.records is None else Neighbours(history.records, history, self.order)
        self.fences = Fences(self.order, history, self._neighbours)
        self._visits = Visits(batch, history, self.order, self._neighbours)
        self.work = AsyncRaces(batch, history, self.order, self._visits)
        self.maps = MapRaces(batch, self.order, self._visits)
        self._lifetimes = self._visits.lifetimes
        self._copies = PendingCopies()

    # -- accesses ---------------------------------------------------------------------------------------------------
    def load(self, group: Lanes[object], space: str, places: Any, unit: int, words: int = 1, scope: int = WEAK) -> None:
        """A load of ``words`` units of ``1 << unit`` bytes at each lane's place."""
        self._access(group, space, places, unit, words, scope, write=False)

    def store(
        self, group: Lanes[object], space: str, places: Any, unit: int, words: int = 1, scope: int = WEAK
    ) -> None:
        """A store of ``words`` units of ``1 << unit`` bytes at each lane's place."""
        self._access(group, space, places, unit, words, scope, write=True)

    def update(self, group: Lanes[object], space: str, places: Any, unit: int, scope: int) -> None:
        """An atomic operation."""
        self._access(group, space, places, unit, 1, scope, write=True, reads=True)

    def matrix_rows(self, group: Lanes[object], places: Array, write: bool) -> None:
        """``ldmatrix`` and ``stmatrix``: rows of 16 bytes at ``places`` [warps, matrices, 8]."""
        warps = group.pick(self.order.row_of_lane)[::_WARP]
        per_warp = places[0].size
        rows = np.repeat(warps, per_warp)
        positions = np.repeat(np.arange(warps.size) * _WARP, per_warp)
        memory, accesses = self._visits.memory(in_global=False)
        visit = Visit(memory, accesses, places.reshape(-1), 4, rows, positions, WEAK, write)
        self._visits.check(visit)
        self._visits.note(visit)

    def _access(
        self,
        group: Lanes[object],
        space: str,
        places: Any,
        unit: int,
        words: int,
        scope: int,
        write: bool,
        reads: bool = False,
    ) -> None:
        if space == "local":
            return
        for word in range(words):
            visit = self._visit(group, space, places + word, unit, scope, write)
            self._visits.check(visit)
            self._visits.note(visit)
            if scope != WEAK:
                self._strong_access(visit, reads)

    def _strong_access(self, visit: Visit, reads: bool) -> None:
        if self.history.traits.orders_memory:
            self.fences.strong_access(visit, reads)
        if not visit.write and visit.memory is self.batch.shared:
            self._visits.note_seen(visit)

    def _visit(self, group: Lanes[object], space: str, places: Any, unit: int, scope: int, write: bool) -> Visit:
        rows, positions = group.pick(self.order.row_of_lane), None
        if not places.ndim:
            positions = _one_of_each_warp(group)
            rows = rows[positions]
            places = np.full(rows.size, places)
        memory, accesses = self._visits.memory(space == "global")
        return Visit(memory, accesses, places, unit, rows, positions, scope, write)

    def cluster_arrives(self, lanes: Array, phases: Array, releases: bool) -> None:
        """Lanes arrive, each for a phase, at the barrier of their cluster; ``releases``: not ``.relaxed``."""
        for phase in np.unique(phases).tolist():
            rows, passed = self.order.rows_of(lanes[phases == phase]), None
            if not releases:
                self._lifetimes.cluster_arrives(rows, phase)
                rows, passed = self.fences.passed_on(rows)
            if rows.size:
                self.order.cluster_arrives(rows, phase, passed)

    def cluster_passes(self, lanes: Array, phases: Array) -> None:
        """Lanes that have waited for a phase of their cluster's barrier go on."""
        for phase in np.unique(phases).tolist():
            rows = self.order.rows_of(lanes[phases == phase])
            self.order.cluster_passes(rows, phase)
            self._lifetimes.cluster_passes(rows, phase)

    def lanes_exit(self, group: Lanes[object]) -> None:
        """Lanes have exited."""
        self._lifetimes.lanes_exit(group)

    def batch_ended(self) -> None:
        """All lanes have exited."""
        if self._neighbours is not None:
            self._neighbours.batch_ended()

    # -- cp.async ---------------------------------------------------------------------------------------------------
    def copy_issued(self, group: Lanes[object], copy: PendingCopy, source: Array, kept: Array | None) -> None:
        """Copies are issued from ``source`` (word numbers in the arena); each lane reads ``kept`` bytes (None: all)."""
        whole = np.arange(source.size) if kept is None else np.flatnonzero(kept == 1 << copy.unit)
        self._copy_reads(copy, whole, source[whole], copy.unit)
        if kept is not None and whole.size < source.size:
            unit = self.history.accesses.shift
            granules = np.where(kept < 1 << copy.unit, (kept.astype(np.int64) + (1 << unit) - 1) >> unit, 0)
            lanes = np.repeat(np.arange(source.size), granules)
            first = (source << copy.unit - unit) - np.cumsum(granules) + granules
            places = first[lanes] + np.arange(lanes.size)
            self._copy_reads(copy, lanes, places, unit)
        visit = self._visit(group, "shared", copy.places, copy.unit, WEAK, write=True)
        self._visits.check(visit)
        site = self.history.site()
        made = self.order.column_of_row[visit.rows] + stamp(NEVER, site, asynchronous=True)
        visit.accesses.write(visit.places, visit.unit, made)
        self._visits.check_together(visit, made)
        self._copies.add(replace(copy, site=site))

    def _copy_reads(self, copy: PendingCopy, positions: Array, places: Array, unit: int) -> None:
        if positions.size:
            rows = self.order.row_of_lane[copy.lanes[positions]]
            memory, accesses = self._visits.memory(in_global=True)
            visit = Visit(memory, accesses, places, unit, rows, positions, WEAK, write=False)
            self._visits.check(visit)
            self._visits.note(visit)

    def copies_waited(self, lanes: Array, limit: Array) -> None:
        """Copies of ``lanes`` in groups below ``limit`` [lanes of the batch] have landed for their warps."""
        self._landed(self._copies.waited(lanes, limit))

    def copies_arrive(self, lanes: Array, serial: int) -> None:
        """Copies that ``lanes`` issued before number ``serial`` have landed for their warps."""
        self._landed(self._copies.issued_before(lanes, serial))

    def _landed(self, copies: list[PendingCopy]) -> None:
        """Notes that copies have landed: from now on they are writes of their warps."""
        for copy in copies:
            rows = self.order.row_of_lane[copy.lanes]
            made = self.order.column_of_row[rows] + stamp(self.history.time, copy.site)
            self._visits.shared.write(copy.places, copy.unit, made)


def _one_of_each_warp(group: Lanes[object]) -> Array:
    """Positions in the group of one lane for each of its warps."""
    if group.whole:
        return np.arange(0, group.count, _WARP)
    return np.unique(group.lanes // _WARP, return_index=True)[1]
