"""The checks that every kind of access goes through."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lowdnn.driver.emulated.checking import accesses, epochs, reports
from lowdnn.driver.emulated.checking.accesses import READER_ROWS, Accesses
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.clocks import starts_of_runs
from lowdnn.driver.emulated.checking.epochs import GPU, WEAK, stamp
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.lifetimes import Lifetimes
from lowdnn.driver.emulated.checking.neighbours import Neighbours
from lowdnn.driver.emulated.checking.order import Order
from lowdnn.driver.emulated.checking.visit import Visit
from lowdnn.driver.emulated.memory.arena import Array, Bytes


class Visits:
    """Checks visits against what has been noted, and notes them."""

    def __init__(
        self, batch: CheckedBatch, history: LaunchHistory, order: Order, neighbours: Neighbours | None
    ) -> None:
        self.batch = batch
        self.history = history
        self.order = order
        self._neighbours = neighbours
        self.lifetimes = Lifetimes(batch, history, order)
        self.shared = accesses.of_shared(batch.shared.data.size, history.traits.shared_shift)

    def memory(self, in_global: bool) -> tuple[Bytes, Accesses]:
        return (self.batch.arena, self.history.accesses) if in_global else (self.batch.shared, self.shared)

    # -- checks -----------------------------------------------------------------------------------------------------
    def check(self, visit: Visit) -> None:
        """Raises LaneFault where the visit does not come after an access that it conflicts with."""
        if self.history.previous is not None and visit.memory is self.batch.arena:
            self._check_previous(visit, self.history.previous)
        if self._neighbours is not None and visit.memory is self.batch.arena:
            self._neighbours.check(visit)
        is_written, readers = visit.accesses.touched(visit.places, visit.unit)
        if is_written:
            self._check(visit, visit.accesses.written(visit.places, visit.unit), "write")
        if visit.write:
            for row in readers:
                self._check(visit, visit.accesses.read_by(row, visit.places, visit.unit), "read")

    def check_fenced(self, visit: Visit) -> None:
        """Raises LaneFault if the async proxy reads bytes that were written through the generic proxy, without a fence
        between."""
        is_written, _ = visit.accesses.touched(visit.places, visit.unit)
        if not is_written:
            return
        found = visit.accesses.written(visit.places, visit.unit)
        self._require(visit, found, 1, self.order.is_fenced, "write", reports.missing_fence)

    def check_changes(self, visit: Visit, fine: Callable[[Array, Array, Array], Array], make: reports.Maker) -> None:
        """Raises the fault of ``make`` if ``fine(epochs, rows, places)`` is false for some write that the visit
        finds."""
        found = visit.accesses.written(visit.places, visit.unit)
        entry, granule = np.nonzero(found)
        wrong = ~fine(found[entry, granule], visit.rows[entry], visit.places[entry]) if entry.size else entry
        if wrong.any():
            first = int(np.argmax(wrong))
            raise self._fault(visit, found, (int(entry[first]), int(granule[first])), "write", make)

    def check_together(self, visit: Visit, made: Array) -> None:
        """Raises LaneFault where warps write one granule in the same step; ``made``: the epochs that were noted."""
        if visit.scope >= GPU or (visit.rows[0] == visit.rows[-1] and (visit.rows == visit.rows[0]).all()):
            return
        left = visit.accesses.written(visit.places, visit.unit)
        lost = left != made[:, None]
        if not lost.any():
            return
        if visit.scope != WEAK:
            entry, granule = np.nonzero(lost)
            lost[entry, granule] = ~self.order.is_ordered(left[entry, granule], visit.rows[entry], visit.scope)
        if lost.any():
            first = divmod(int(np.argmax(lost)), lost.shape[1])
            raise self._fault(visit, left, first, "write", reports.data_race)

    def _check(self, visit: Visit, found: Array, what: str) -> None:
        order, shared = self.order, visit.accesses is self.shared
        if np.maximum.reduce(found, axis=None, initial=0) < (order.floor if shared else 1):
            return
        floors = order.floors[order.slot_of_row[visit.rows]] if shared else 1
        self._require(visit, found, floors, partial(order.is_ordered, scope=visit.scope), what, reports.data_race)

    def _require(
        self,
        visit: Visit,
        found: Array,
        floors: Any,
        fine: Callable[[Array, Array], Array],
        what: str,
        make: reports.Maker,
    ) -> None:
        """Raises LaneFault if ``fine(epochs, rows)`` is false for some epoch that is not below its floor. Runs of equal
        epochs and rows are tested once."""
        size = found.shape[1]
        flat = found.reshape(-1)
        rows = visit.rows if size == 1 else visit.rows.repeat(size)
        starts = starts_of_runs(flat, rows)
        earlier = flat[starts]
        starts = starts[earlier >= (floors if isinstance(floors, int) else floors[starts // size])]
        is_fine = fine(flat[starts], rows[starts])
        if not is_fine.all():
            raise self._fault(visit, found, divmod(int(starts[is_fine.argmin()]), size), what, make)

    def _check_previous(self, visit: Visit, previous: LaunchHistory) -> None:
        """Raises LaneFault where the visit conflicts with the launch before, which may still be running."""
        early = ~self.order.follows_previous(visit.rows)
        if not early.any():
            return
        held = previous.accesses
        sides = [("write", held.written(visit.places, visit.unit))]
        if visit.write:
            sides += [("read", held.read_by(row, visit.places, visit.unit)) for row in range(READER_ROWS)]
        for what, found in sides:
            wrong = (found != 0) & early[:, None]
            if wrong.any():
                entry, granule = (int(i) for i in np.argwhere(wrong)[0])
                line = previous.text_of(int(epochs.site_of(found[entry, granule])))
                earlier = reports.EarlierLaunch(what, previous.kernel_name, line)
                raise self._made(visit, entry, granule, held.shift, earlier, reports.data_race)

    # -- notes ------------------------------------------------------------------------------------------------------
    def note(self, visit: Visit) -> None:
        """Notes a visit of the warps themselves."""
        made = self.order.column_of_row[visit.rows] + stamp(self.history.time, self.history.site(), visit.scope)
        if visit.write:
            visit.accesses.write(visit.places, visit.unit, made)
            self.check_together(visit, made)
        else:
            visit.accesses.read(self.order.reader_of_row[visit.rows], visit.places, visit.unit, made)
        self.note_use(visit, made)

    def note_use(self, visit: Visit, made: Array) -> None:
        """Notes the warps that access shared memory of another CTA."""
        if visit.memory is self.batch.shared and self.lifetimes.shared:
            slots = (visit.places << visit.unit) // self.batch.shared_stride
            self.lifetimes.use(slots, visit.rows, made, visit.scope != WEAK)

    def note_seen(self, visit: Visit) -> None:
        """Notes the writes that strong loads of shared memory have read."""
        if self.lifetimes.shared:
            written = visit.accesses.written(visit.places, visit.unit)
            self.lifetimes.see(np.repeat(visit.rows, written.shape[1]), written.reshape(-1))

    def _fault(self, visit: Visit, found: Array, where: tuple[int, int], what: str, make: reports.Maker) -> Any:
        entry, granule = where
        cta, actor = self.order.who(found[entry, granule])
        line = self.history.text_of(int(epochs.site_of(found[entry, granule])))
        earlier = reports.Earlier(what, self.batch.block_of(cta), actor, line)
        return self._made(visit, entry, granule, visit.accesses.shift, earlier, make)

    def _made(self, visit: Visit, entry: int, granule: int, shift: int, earlier: object, make: reports.Maker) -> Any:
        where = (int(visit.places[entry]) << visit.unit >> shift) + granule << shift
        position = entry if visit.positions is None else int(visit.positions[entry])
        return make(self.batch, visit.memory, where, position, visit.write, earlier)
