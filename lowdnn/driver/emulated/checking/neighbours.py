"""Races with other launches, and the synchronisation with them through global memory.

The clocks of a launch have blocks of columns for the other launches that its warps have heard of, behind their own. A
release hands on all blocks. It reaches launches of the same device by scope ``gpu`` and those of all devices by ``sys``
alone. PTX ISA manual, "Scope", "Morally Strong Relations".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lowdnn.driver.emulated.checking import epochs, reports
from lowdnn.driver.emulated.checking.accesses import Accesses
from lowdnn.driver.emulated.checking.epochs import GPU, SYS, WEAK
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.records import Passed, Records, earlier_elsewhere, latest
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.checking.visit import Visit
from lowdnn.driver.emulated.lanes import Storage
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.space import ARENA_BASE


class Neighbours:
    """The other launches and copies, as the warps (rows) of one batch know them."""

    def __init__(self, records: Records, history: LaunchHistory, order: Order) -> None:
        self._records = records
        self._history = history
        self._order = order
        #: By level and row: the knowledge of a warp at its last fence, and what it has read since.
        self._fenced: dict[tuple[int | None, int], Passed] = {}
        self._seen: dict[tuple[int | None, int], Passed] = {}
        for launch, clock in records.inherited(history.order).items():
            known = order.clocks.block(history.block_of(launch))
            known[:] = np.maximum(known, clock)

    # -- synchronisation ----------------------------------------------------------------------------------------------
    def acquire(self, rows: Array, scope: int) -> None:
        """A fence orders what follows after what strong reads before it have seen."""
        for level in self._levels(scope):
            for row in rows.tolist():
                self._learn(row, self._seen.pop((level, row), {}))

    def release(self, rows: Array, scope: int, passed: Array) -> None:
        """A fence lets strong writes after it hand on ``passed`` [rows, ...], what the warps know."""
        for level in self._levels(scope):
            self._fenced.update(
                {(level, row): self._parts(clock) for row, clock in zip(rows.tolist(), passed, strict=True)}
            )

    def strong_access(self, visit: Visit, reads: bool) -> None:
        """A strong load (``write`` False), store, or (``reads``) read-modify-write of global memory."""
        locations = self._records.locations
        levels = self._levels(visit.scope)
        for row, place in dict.fromkeys(zip(visit.rows.tolist(), (visit.places << visit.unit).tolist(), strict=True)):
            if visit.write and not reads and None not in levels:
                locations.pop((None, place), None)
            for level in levels:
                held, passed = locations.get((level, place)), self._fenced.get((level, row))
                if held is not None and (reads or not visit.write):
                    self._seen[level, row] = latest(self._seen.get((level, row), {}), held)
                if visit.write and passed is not None:
                    locations[level, place] = latest(passed, held) if held is not None and reads else passed
                elif visit.write and not reads:
                    locations.pop((level, place), None)

    def batch_ended(self) -> None:
        """The batch's warps have ended: what they know is known to all that comes after the launch."""
        learned = {
            launch: self._order.clocks.block(block).max(axis=0) for launch, block in self._history.blocks.items()
        }
        self._history.learned = latest(self._history.learned, learned)

    def _levels(self, scope: int) -> tuple[int | None, ...]:
        """The reach of a scope: the launch's device, and None for all devices."""
        if scope < GPU:
            return ()
        return (self._history.device, None) if scope == SYS else (self._history.device,)

    def _parts(self, clock: Array) -> Passed:
        """A warp's clock, by launch."""
        parts = {self._history: clock[: self._history.columns]}
        for launch, block in self._history.blocks.items():
            if block.stop <= clock.size:
                parts[launch] = clock[block]
        return parts

    def _learn(self, row: int, passed: Passed) -> None:
        for launch, clock in passed.items():
            if launch is self._history:
                self._order.clocks.learn(np.array([row]), clock)
            elif launch.columns:
                self._order.clocks.learn_block(row, self._history.block_of(launch), clock)

    # -- checks -------------------------------------------------------------------------------------------------------
    def check(self, visit: Visit) -> None:
        """Raises LaneFault where the visit does not come after an access of another launch that it conflicts with."""
        order = self._history.order
        for launch in self._records.launches:
            if launch is not self._history and not order.follows(launch.order):
                self._check_launch(visit, launch)
        for copy in self._records.copies:
            if (visit.write or copy.what == "write") and not order.follows(copy.order):
                first = (visit.places << visit.unit) + ARENA_BASE
                wrong = (first < copy.end) & (first + (1 << visit.unit) > copy.first)
                wrong &= ~self._knows_after(visit.rows, copy.order)
                if wrong.any():
                    raise self._race(visit, int(np.argmax(wrong)), 0, visit.unit, copy)

    def _check_launch(self, visit: Visit, launch: LaunchHistory) -> None:
        for what, found in _found(launch.accesses, visit):
            entry, granule = np.nonzero(found)
            if not entry.size:
                continue
            earlier, rows = found[entry, granule], visit.rows[entry]
            fine = self._knows_after(rows, launch.order)
            fine |= self._knows(rows, launch, earlier) | self._both_strong(visit, launch, earlier)
            if not fine.all():
                first = int(np.argmin(fine))
                text = earlier_elsewhere(launch, what, int(earlier[first]))
                raise self._race(visit, int(entry[first]), int(granule[first]), launch.accesses.shift, text)

    def _knows(self, rows: Array, launch: LaunchHistory, earlier: Array) -> Array:
        """For each epoch of another launch, whether the warp in ``rows`` comes after it. One that has too many warps to
        follow counts as ordered."""
        if not launch.columns:
            return np.full(rows.shape, launch.traits.orders_memory)
        block = self._history.blocks.get(launch)
        if block is None:
            return np.zeros(rows.shape, dtype=np.bool_)
        known = self._order.clocks.block(block)
        return np.asarray(known[rows, epochs.column_of(earlier)] > epochs.time_of(earlier))

    def _knows_after(self, rows: Array, task: TaskOrder) -> Array:
        """For each warp, whether it knows of something in a launch that begins after ``task``."""
        knows = np.zeros(rows.shape, dtype=np.bool_)
        for launch, block in self._history.blocks.items():
            if launch.order.comes_after(task):
                knows |= self._order.clocks.block(block)[rows].any(axis=1)
        return knows

    def _both_strong(self, visit: Visit, launch: LaunchHistory, earlier: Array) -> Array:
        """Whether both accesses are strong, and each scope includes the other thread."""
        needed = GPU if launch.device == self._history.device else SYS
        if visit.scope == WEAK or visit.scope < needed:
            return np.zeros(earlier.shape, dtype=np.bool_)
        return np.asarray(epochs.scope_of(earlier) >= needed)

    def _race(self, visit: Visit, entry: int, granule: int, shift: int, earlier: object) -> Exception:
        batch: Storage = self._order.batch
        where = (int(visit.places[entry]) << visit.unit >> shift) + granule << shift
        position = entry if visit.positions is None else int(visit.positions[entry])
        return reports.data_race(batch, visit.memory, where, position, visit.write, earlier)


def _found(held: Accesses, visit: Visit) -> Iterator[tuple[str, Array]]:
    """The accesses that a visit conflicts with: (what they are, [entries, granules] their epochs)."""
    is_written, readers = held.touched(visit.places, visit.unit)
    if is_written:
        yield "write", held.written(visit.places, visit.unit)
    if visit.write:
        for row in readers:
            yield "read", held.read_by(row, visit.places, visit.unit)
