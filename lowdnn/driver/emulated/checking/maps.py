"""Tensor maps that a kernel changes, as the race detector follows them.

``tensormap.replace`` is a weak access to all of a map through the generic proxy; copies read maps through the tensormap
proxy. Between them a release fence of the tensormap proxy must come after the change, and then an acquire fence for the
map in the CTA that uses it. PTX ISA manual, "tensormap.replace", "membar/fence".
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.checking import epochs, reports
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.epochs import WEAK
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.visit import Visit
from lowdnn.driver.emulated.checking.visits import Visits
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.tensor_map import TENSOR_MAP_BYTES

_RELEASED = "tensor maps released"
#: log2 of the bytes by which maps are followed.
_UNIT = 4


class MapRaces:
    """Hooks of tensor maps; ``first`` [lanes, or 1 for all] are byte numbers of maps.

    A release fence by any warp that knows of a change counts, and an acquire fence by any warp of the CTA.
    """

    def __init__(self, batch: CheckedBatch, order: Order, visits: Visits) -> None:
        self.batch = batch
        self._order = order
        self._visits = visits
        #: (CTA slot, first byte of a map) -> what was known at acquire fences for the map.
        self._acquired: dict[tuple[int, int], Array] = {}

    def changed(self, group: Lanes[object], first: Array, in_global: bool) -> None:
        """A map is written."""
        visit = self._visit(group, first, in_global, write=True)
        self._visits.check(visit)
        self._visits.note(visit)

    def copied(self, group: Lanes[object], first: Array) -> None:
        """A map in shared memory is read through the generic proxy."""
        visit = self._visit(group, first, in_global=False, write=False)
        self._visits.check(visit)
        self._visits.note(visit)

    def used(self, group: Lanes[object], first: Array) -> None:
        """A map in global memory is read through the tensormap proxy."""
        visit = self._visit(group, first, in_global=True, write=False)
        self._visits.check(visit)
        self._visits.check_changes(visit, self._is_fenced, reports.missing_map_fence)
        self._visits.note(visit)

    def release(self, group: Lanes[object]) -> None:
        """``fence.proxy.tensormap::generic.release``."""
        rows = self._order.rows_of(group.lanes)
        self._order.release(_RELEASED, self.batch.cta_count, rows, self._domains(rows))

    def acquire(self, group: Lanes[object], first: Array) -> None:
        """``fence.proxy.tensormap::generic.acquire`` for maps."""
        rows = group.pick(self._order.row_of_lane)
        clocks = self._order.clocks.released(rows, self._order.history.tick())
        slots, places = rows // self._order.warps, np.broadcast_to(first, rows.shape)
        for slot, place, clock in zip(slots.tolist(), places.tolist(), clocks, strict=True):
            before = self._acquired.get((slot, place))
            self._acquired[slot, place] = clock if before is None else np.maximum(before, clock)

    def _is_fenced(self, found: Array, rows: Array, places: Array) -> Array:
        """For each epoch of a change: whether a release fence came after it, and then an acquire fence of the CTA."""
        same, columns = self._order.own_columns(found, rows)
        times = epochs.time_of(found)
        held = self._order.held(_RELEASED, self.batch.cta_count)[self._domains(rows), columns]
        first = places << _UNIT
        acquired = [
            self._acquired_time(slot, place, column)
            for slot, place, column in zip(
                (rows // self._order.warps).tolist(), first.tolist(), columns.tolist(), strict=True
            )
        ]
        return np.asarray(~same | (np.minimum(held, acquired) > times))

    def _acquired_time(self, slot: int, place: int, column: int) -> int:
        """The time that was acquired for the map in which ``place`` lies."""
        starts = range(place, place - TENSOR_MAP_BYTES, -(1 << _UNIT))
        clocks = (self._acquired.get((slot, start)) for start in starts)
        return max((int(clock[column]) for clock in clocks if clock is not None), default=0)

    def _domains(self, rows: Array) -> Array:
        """Numbers of the warps' domains."""
        if self._order.spans_launch:
            return np.zeros_like(rows)
        return np.asarray(rows // self._order.warps // self.batch.cluster_size)

    def _visit(self, group: Lanes[object], first: Array, in_global: bool, write: bool) -> Visit:
        memory, accesses = self._visits.memory(in_global)
        rows = group.pick(self._order.row_of_lane)
        positions = np.unique(rows, return_index=True)[1] if first.size == 1 else np.arange(rows.size)
        per_map = TENSOR_MAP_BYTES >> _UNIT
        places = (np.broadcast_to(first, rows.shape)[positions, None] >> _UNIT) + np.arange(per_map)
        repeated = np.repeat(positions, per_map)
        return Visit(memory, accesses, places.reshape(-1), _UNIT, rows[repeated], repeated, WEAK, write)
