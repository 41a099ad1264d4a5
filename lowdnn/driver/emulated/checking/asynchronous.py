"""Accesses of the async proxy (bulk and tensor copies, ``wgmma``), and mbarriers, as the race detector follows them.

Accesses of asynchronous work are checked at issue against what the issuing warp knows. They are noted under the column
of the mbarrier or commit group that completes them, with the number of its phase or group. Warps that have waited for
it know them, and so do the warps that have learned from these. PTX ISA manual, "Async proxy", "mbarrier", "wgmma".
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.checking.accesses import ASYNC_READER, ASYNC_READERS
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.clocks import starts_of_runs
from lowdnn.driver.emulated.checking.epochs import GPU, WEAK, stamp, timed
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.visit import Visit
from lowdnn.driver.emulated.checking.visits import Visits
from lowdnn.driver.emulated.copying.async_work import BulkCopy
from lowdnn.driver.emulated.copying.transfer import Places
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array, Bytes

_WARP = 32
_WARPGROUP = 4
#: Key in ``Order`` of the clocks that arrivals have released to an mbarrier's current phase.
_ARRIVING = "mbarriers arriving"
#: Key in ``Order`` of the clocks of an mbarrier's completed phases.
_COMPLETE = "mbarriers complete"
#: log2 of the bytes of an mbarrier.
_MBARRIER_UNIT = 3
#: log2 of the bytes of a unit of ``wgmma`` tiles.
_TILE_UNIT = 4


class AsyncRaces:
    """Hooks of mbarriers, of the queue of asynchronous work and of ``wgmma``."""

    def __init__(self, batch: CheckedBatch, history: LaunchHistory, order: Order, visits: Visits) -> None:
        self.batch = batch
        self._history = history
        self._order = order
        self._visits = visits

    def fence_proxy(self, group: Lanes[object]) -> None:
        """``fence.proxy.async``: accesses that the group's warps know are visible to the asynchronous work that they
        start."""
        self._order.clocks.fence_proxy(self._order.rows_of(group.lanes), self._history.tick())

    # -- mbarriers ----------------------------------------------------------------------------------------------------
    def mbarrier_written(self, group: Lanes[object], place: Array) -> None:
        """``mbarrier.init`` and ``inval`` of the barriers at byte numbers ``place``, one for each lane."""
        visit = self._mbarrier_visit(group, place, write=True)
        self._visits.check(visit)
        self._visits.note(visit)

    def mbarrier_used(self, group: Lanes[object], index: Array) -> None:
        """Any other operation on the barriers ``index``: checks that their initialisation comes before it."""
        self._visits.check(self._mbarrier_visit(group, self.batch.mbarriers.places(index), write=False))

    def mbarrier_arrives(self, lanes: Array, index: Array) -> None:
        """Lanes arrive, and release the accesses that they know of."""
        mbarriers = self.batch.mbarriers
        rows, numbers = _pairs(self._order.row_of_lane[lanes], index, mbarriers.count)
        made = self._order.column_of_row[rows] + stamp(self._history.time, self._history.site())
        self._visits.lifetimes.use(numbers % self.batch.cta_count, rows, made)
        self._order.release(_ARRIVING, mbarriers.count, rows, numbers)

    def mbarrier_completes(self, index: Array, phases: Array) -> None:
        """The barriers ``index`` (each once) have completed as many phases."""
        count = self.batch.mbarriers.count
        slots, numbers = index % self.batch.cta_count, index // self.batch.cta_count
        self._order.complete(_ARRIVING, _COMPLETE, count, index)
        complete = self._order.held(_COMPLETE, count)
        complete[index, self._order.mbarrier_columns(slots, numbers)] = phases

    def mbarrier_passed(self, group: Lanes[object], index: Array, complete: Array, acquires: bool) -> None:
        """Lanes have tested whether a phase of the barriers ``index`` is complete. acquires: the test was not
        ``.relaxed``."""
        self.mbarrier_used(group, index)
        if complete.any():
            count = self.batch.mbarriers.count
            rows, numbers = _pairs(group.pick(self._order.row_of_lane)[complete], index[complete], count)
            if acquires:
                self._order.acquire(_COMPLETE, count, rows, numbers)
            else:
                self._visits.lifetimes.mbarriers_passed(rows, self._order.held(_COMPLETE, count)[numbers])

    def _mbarrier_visit(self, group: Lanes[object], place: Array, write: bool) -> Visit:
        memory, accesses = self._visits.memory(in_global=False)
        rows = group.pick(self._order.row_of_lane)
        places = np.broadcast_to(place, rows.shape) >> _MBARRIER_UNIT
        return Visit(memory, accesses, places, _MBARRIER_UNIT, rows, None, WEAK, write)

    # -- bulk copies --------------------------------------------------------------------------------------------------
    def bulk_issued(self, group: Lanes[object], copy: BulkCopy) -> None:
        """A copy is issued: its source is read and its target written from now until it completes."""
        transfer = copy.transfer
        rows = self._order.row_of_lane[transfer.lanes]
        scope = WEAK if copy.reduction is None else GPU
        if copy.place is not None:
            self._check_signal(group, copy, copy.place, rows)
        if copy.content is None:
            self._follow(group, copy, copy.source(self.batch), rows, WEAK, write=False)
        self._follow(group, copy, copy.target(self.batch), rows, scope, write=True)

    def bulk_waited(self, lanes: Array, limit: Array, read: bool) -> None:
        """Lanes have waited for their bulk groups below ``limit``; with ``read`` for reads of their sources only."""
        order = self._order
        rows, first = np.unique(order.row_of_lane[lanes], return_inverse=True)
        limits = np.full(rows.size, -1, dtype=np.int64)
        np.maximum.at(limits, first, limit)
        for reads in (True,) if read else (True, False):
            order.note(rows, order.bulk_columns(rows, reads), limits)

    def _check_signal(self, group: Lanes[object], copy: BulkCopy, place: Array, rows: Array) -> None:
        """Checks that the mbarriers have been initialised and, for copies of the async proxy whose data are not
        registers, that a fence followed."""
        memory, accesses = self._visits.memory(in_global=False)
        places = place >> _MBARRIER_UNIT
        positions = _positions(group, copy.transfer.lanes)
        visit = Visit(memory, accesses, places, _MBARRIER_UNIT, rows, positions, WEAK, write=False)
        self._visits.check(visit)
        if copy.content is None:
            self._visits.check_fenced(visit)

    def _follow(
        self, group: Lanes[object], copy: BulkCopy, side: tuple[Bytes, Places], rows: Array, scope: int, write: bool
    ) -> None:
        memory, units = side[0], side[1].units
        in_global = memory is self.batch.arena
        inside = copy.transfer.inside if in_global else None
        chosen = np.ones(units.shape, dtype=np.bool_) if inside is None else inside
        entry = np.nonzero(chosen)[0]
        if not entry.size:
            return
        positions = _positions(group, copy.transfer.lanes)[entry]
        _, accesses = self._visits.memory(in_global)
        unit = copy.transfer.unit.bit_length() - 1
        visit = Visit(memory, accesses, units[chosen], unit, rows[entry], positions, scope, write)
        self._visits.check(visit)
        if not write:
            self._visits.check_fenced(visit)
        made = self._completion(copy, rows, write, scope)[entry]
        if write:
            accesses.write(visit.places, unit, made)
            self._visits.check_together(visit, made)
        else:
            accesses.read(ASYNC_READER, visit.places, unit, made)
        self._visits.note_use(visit, made)

    def _completion(self, copy: BulkCopy, rows: Array, write: bool, scope: int) -> Array:
        """[rows of the copy]: epochs of what completes each of them."""
        order, batch = self._order, self.batch
        if copy.place is None:
            numbers = np.zeros_like(rows) if copy.stage is None else copy.stage.astype(np.int64)
            slots = rows // order.warps
            columns = order.bulk_columns(rows, reads=not write)
        else:
            index = batch.mbarriers.numbers(copy.place)
            slots = index % batch.cta_count
            columns = order.mbarrier_columns(slots, index // batch.cta_count)
            numbers = batch.mbarriers.phases(index)
        return self._numbered(slots, columns, numbers, scope)

    def _numbered(self, slots: Array, columns: Array, numbers: Array, scope: int) -> Array:
        base = stamp(0, self._history.site(), scope, asynchronous=True)
        return np.asarray(self._order.marked_columns(slots, columns) + timed(numbers) + base)

    # -- wgmma --------------------------------------------------------------------------------------------------------
    def wgmma_reads(self, group: Lanes[object], warps: Array, places: Array) -> None:
        """A product reads tiles of shared memory: ``places`` [W, n] units of 16 bytes; ``warps`` [W]: the place, among
        the group's warps, of the first warp of each warpgroup."""
        lanes = group.lanes[warps * _WARP]
        rows = np.repeat(self._order.row_of_lane[lanes], places.shape[1])
        positions = np.repeat(warps * _WARP, places.shape[1])
        memory, accesses = self._visits.memory(in_global=False)
        visit = Visit(memory, accesses, places.reshape(-1), _TILE_UNIT, rows, positions, WEAK, write=False)
        self._visits.check(visit)
        self._visits.check_fenced(visit)
        numbers = self.batch.commit_groups.committed[lanes // _WARP].astype(np.int64)
        first = self._order.row_of_lane[lanes]
        columns = self._order.wgmma_columns(first)
        made = self._numbered(first // self._order.warps, columns, numbers, WEAK)
        row = ASYNC_READER + first % self._order.warps // _WARPGROUP % ASYNC_READERS
        per_tile = places.shape[1]
        accesses.read(np.repeat(row, per_tile), visit.places, _TILE_UNIT, np.repeat(made, per_tile))

    def wgmma_waited(self, group: Lanes[object]) -> None:
        """``wgmma.wait_group`` has been passed."""
        lanes = group.lanes[::_WARP]
        rows = self._order.row_of_lane[lanes]
        completed = self.batch.commit_groups.completed[lanes // _WARP]
        self._order.note(rows, self._order.wgmma_columns(rows), completed)


def _pairs(rows: Array, numbers: Array, count: int) -> tuple[Array, Array]:
    """The distinct pairs of a row and a number below ``count``."""
    keys = rows * count + numbers
    keys = keys[starts_of_runs(keys)]
    if keys.size > 1:
        keys = np.unique(keys)
    rows, numbers = np.divmod(keys, count)
    return rows, numbers


def _positions(group: Lanes[object], lanes: Array) -> Array:
    return np.searchsorted(group.lanes, lanes)
