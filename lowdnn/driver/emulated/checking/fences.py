"""Fences, and strong accesses by which threads synchronise through memory.

A release pattern is a fence followed by a strong write, an acquire pattern a strong read followed by a fence; where
the read sees the write, what came before the one fence comes before what follows the other. A read-modify-write hands
on what it finds. PTX ISA manual, "Release and Acquire Patterns", "Synchronizes-With".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lowdnn.driver.emulated.checking.epochs import CTA
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array

if TYPE_CHECKING:
    from lowdnn.driver.emulated.checking.neighbours import Neighbours
    from lowdnn.driver.emulated.checking.visit import Visit


class Fences:
    """For each warp, the accesses that it knew of at its last fence, and the releases that it has read since. A fence
    of CTA scope orders accesses to shared memory only."""

    def __init__(self, order: Order, history: LaunchHistory, neighbours: Neighbours | None) -> None:
        self._order = order
        self._neighbours = neighbours
        self._history = history
        self._locations: dict[tuple[bool, int], Array] = {}
        self._fenced: dict[tuple[bool, int], Array] = {}
        self._seen: dict[tuple[bool, int], Array] = {}

    def fence(self, group: Lanes[object], scope: int) -> None:
        """``fence``, ``membar``, or that of a ``.release`` or ``.acquire``."""
        clocks = self._order.clocks
        rows = self._order.rows_of(group.lanes)
        for in_global in (False, True) if scope != CTA else (False,):
            for row in rows.tolist():
                seen = self._seen.pop((in_global, row), None)
                if seen is not None:
                    clocks.learn(np.array([row]), seen)
        if self._neighbours is not None:
            self._neighbours.acquire(rows, scope)
        now = self._history.tick()
        self._order.last_fence[rows] = now
        passed = clocks.released(rows, now)
        if self._neighbours is not None:
            self._neighbours.release(rows, scope, passed)
        for in_global in (False, True) if scope != CTA else (False,):
            self._fenced.update({(in_global, row): clock for row, clock in zip(rows.tolist(), passed, strict=True)})

    def release_only(self, group: Lanes[object]) -> None:
        """``fence.mbarrier_init``: the knowledge that later arrivals without an order pass on."""
        rows = self._order.rows_of(group.lanes)
        passed = self._order.clocks.released(rows, self._history.tick())
        self._fenced.update({(False, row): clock for row, clock in zip(rows.tolist(), passed, strict=True)})

    def passed_on(self, rows: Array) -> tuple[Array, Array]:
        """(those of some warps that have executed a fence, [rows, ...] what they knew then): what an arrival without an
        order releases."""
        fenced = [row for row in rows.tolist() if (False, row) in self._fenced]
        clocks = np.zeros((len(fenced), self._order.clocks.table.shape[1]), dtype=np.int64)
        for place, row in enumerate(fenced):
            clocks[place] = self._order.clocks.widened(self._fenced[False, row])
        return np.array(fenced, dtype=np.int64), clocks

    def strong_access(self, visit: Visit, reads: bool) -> None:
        """A strong load (``write`` False), store, or (``reads``) read-modify-write."""
        in_global = visit.memory is self._order.batch.arena
        if in_global and (visit.scope == CTA or not self._order.spans_launch):
            return
        if in_global and self._neighbours is not None:
            self._neighbours.strong_access(visit, reads)
        locations = self._history.locations if in_global else self._locations
        for row, place in dict.fromkeys(zip(visit.rows.tolist(), (visit.places << visit.unit).tolist(), strict=True)):
            key, location = (in_global, row), (in_global, place)
            held = locations.get(location)
            if held is not None and (reads or not visit.write):
                seen = self._seen.get(key)
                self._seen[key] = held if seen is None else self._latest(seen, held)
            if visit.write:
                passed = self._fenced.get(key)
                if passed is not None:
                    locations[location] = passed if held is None or not reads else self._latest(passed, held)
                elif not reads:
                    locations.pop(location, None)

    def _latest(self, one: Array, other: Array) -> Array:
        """The clock that knows what both know."""
        widened = self._order.clocks.widened
        return np.asarray(np.maximum(widened(one), widened(other)))
