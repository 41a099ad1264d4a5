"""The race detector of a batch: hooks that memory, barriers and asynchronous work call.

Two accesses to a granule, one of them a write, race unless the later warp knows the earlier access: it has learned,
through barriers and other synchronisation, of a time of the earlier warp after that access. Accesses of one warp do
not race with each other. Strong accesses do not race with each other where their scopes reach. PTX ISA manual, "Memory
Consistency Model".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lowdnn.driver.emulated.checking import accesses, epochs, reports
from lowdnn.driver.emulated.checking.accesses import READERS, Accesses
from lowdnn.driver.emulated.checking.clocks import Clocks, joined
from lowdnn.driver.emulated.checking.epochs import CLUSTER, CTA, GPU, NEVER, WEAK, stamp
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.pending import PendingCopies, PendingCopy
from lowdnn.driver.emulated.memory.arena import Array, Bytes

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Batch, Group

_WARP = 32


@dataclass(frozen=True)
class Visit:
    """One access by a group: ``places`` [n] of units of ``1 << unit`` bytes; of each the ``rows`` and ``positions`` (in
    the group; None: all) of who accesses it; ``write``: does it write."""

    memory: Bytes
    accesses: Accesses
    places: Array
    unit: int
    rows: Array
    positions: Array | None
    scope: int
    write: bool


class Races:
    """Follows the accesses of one batch."""

    def __init__(self, batch: Batch, history: LaunchHistory) -> None:
        self.batch = batch
        self.history = history
        self._warps = batch.geometry.cta_lanes // _WARP
        self.clocks = Clocks(batch.cta_count, self._warps, batch.cluster_size, 0)
        self._first_domain = len(history.ctas) // batch.cluster_size
        history.ctas += batch.geometry.ctas.tolist()
        self._shared = accesses.of_shared(batch.shared.data.size, history.traits.shared_shift)
        self._row_of_lane = batch.slot * self._warps + batch.thread // _WARP
        self._rows = rows = np.arange(self.clocks.own.size)
        domains = self._first_domain + rows // (self._warps * batch.cluster_size)
        self._column_of_row = epochs.marked(domains * self.clocks.columns + self.clocks.own)
        self._domain_of_row = domains
        #: By slot: epochs of shared memory below these are known to every warp of the domain.
        self._floors = np.ones(batch.cta_count, dtype=np.int64)
        self._floor = 1
        self._copies = PendingCopies()
        self._at_barrier: dict[int, Array] = {}
        self._passing: dict[int, Array] = {}

    # -- accesses ---------------------------------------------------------------------------------------------------
    def load(self, group: Group, space: str, places: Any, unit: int, words: int = 1, scope: int = WEAK) -> None:
        """A load of ``words`` units of ``1 << unit`` bytes at each lane's place."""
        for word in range(words if space != "local" else 0):
            visit = self._visit(group, space, places + word, unit, scope, write=False)
            self._check_writes(visit)
            self._note_read(visit)

    def store(self, group: Group, space: str, places: Any, unit: int, words: int = 1, scope: int = WEAK) -> None:
        """A store, in the same terms."""
        for word in range(words if space != "local" else 0):
            visit = self._visit(group, space, places + word, unit, scope, write=True)
            self._check_writes(visit)
            self._check_reads(visit)
            self._note_write(visit)

    def matrix_rows(self, group: Group, places: Array, write: bool) -> None:
        """``ldmatrix`` and ``stmatrix``: rows of 16 bytes at ``places`` [warps, matrices, 8]."""
        warps = group.pick(self._row_of_lane)[::_WARP]
        per_warp = places[0].size
        rows = np.repeat(warps, per_warp)
        positions = np.repeat(np.arange(warps.size) * _WARP, per_warp)
        visit = Visit(self.batch.shared, self._shared, places.reshape(-1), 4, rows, positions, WEAK, write)
        self._check_writes(visit)
        if write:
            self._check_reads(visit)
            self._note_write(visit)
        else:
            self._note_read(visit)

    def _visit(self, group: Group, space: str, places: Any, unit: int, scope: int, write: bool) -> Visit:
        rows, positions = group.pick(self._row_of_lane), None
        if not places.ndim:
            positions = _one_of_each_warp(group)
            rows = rows[positions]
            places = np.full(rows.size, places)
        in_global = space == "global"
        memory: Bytes = self.batch.arena if in_global else self.batch.shared
        held = self.history.accesses if in_global else self._shared
        return Visit(memory, held, places, unit, rows, positions, scope, write)

    def _check_writes(self, visit: Visit) -> None:
        self._check(visit, visit.accesses.written(visit.places, visit.unit), "write")

    def _check_reads(self, visit: Visit) -> None:
        if not visit.accesses.is_read:
            return
        for row in range(READERS):
            self._check(visit, visit.accesses.read_by(row, visit.places, visit.unit), "read")

    def _note_read(self, visit: Visit) -> None:
        made = self._column_of_row[visit.rows] + stamp(self.history.time, self.history.site(), visit.scope)
        visit.accesses.read(visit.rows % self._warps % READERS, visit.places, visit.unit, made)

    def _note_write(self, visit: Visit) -> None:
        made = self._column_of_row[visit.rows] + stamp(self.history.time, self.history.site(), visit.scope)
        visit.accesses.write(visit.places, visit.unit, made)
        if visit.scope != GPU:
            self._check_together(visit, made)

    def _check_together(self, visit: Visit, made: Array) -> None:
        """Warps that write one granule in the same step."""
        if visit.rows[0] == visit.rows[-1] and (visit.rows == visit.rows[0]).all():
            return
        left = visit.accesses.written(visit.places, visit.unit)
        lost = left != made[:, None]
        entry, granule = np.nonzero(lost)
        if entry.size and visit.scope != WEAK:
            others, rows = left[entry, granule], visit.rows[entry]
            same = epochs.column_of(others) // self.clocks.columns == self._domain_of_row[rows]
            lost[entry, granule] = ~self._both_strong(visit, others, rows, same)
        if lost.any():
            self._fail(visit, left, lost, "write")

    # -- cp.async ---------------------------------------------------------------------------------------------------
    def copy_issued(self, group: Group, copy: PendingCopy, source: Array, kept: Array | None) -> None:
        """Copies are issued from ``source`` (byte numbers in the arena); lanes that keep 0 bytes do not read it."""
        site = self.history.site()
        reading = np.arange(source.size) if kept is None else np.flatnonzero(kept)
        if reading.size:
            rows = self._row_of_lane[copy.lanes[reading]]
            visit = Visit(
                self.batch.arena,
                self.history.accesses,
                source[reading] >> copy.unit,
                copy.unit,
                rows,
                reading,
                WEAK,
                write=False,
            )
            self._check_writes(visit)
            self._note_read(visit)
        visit = self._visit(group, "shared", copy.places, copy.unit, WEAK, write=True)
        self._check_writes(visit)
        self._check_reads(visit)
        made = self._column_of_row[visit.rows] + stamp(NEVER, site, asynchronous=True)
        visit.accesses.write(visit.places, visit.unit, made)
        self._check_together(visit, made)
        self._copies.add(replace(copy, site=site))

    def copies_waited(self, limit: Array) -> None:
        """Copies of groups below ``limit`` [lanes of the batch] have landed for their warps."""
        self._landed(self._copies.waited(limit))

    def copies_arrive(self, lanes: Array, serial: int) -> None:
        """So have those that ``lanes`` issued before number ``serial``."""
        self._landed(self._copies.issued_before(lanes, serial))

    def _landed(self, copies: list[PendingCopy]) -> None:
        for copy in copies:
            made = self._column_of_row[self._row_of_lane[copy.lanes]] + stamp(self.history.time, copy.site)
            self._shared.write(copy.places, copy.unit, made)

    # -- barriers ---------------------------------------------------------------------------------------------------
    def barrier_of_all(self) -> None:
        """Every warp of the batch passes a barrier of its CTA."""
        now = self.history.tick()
        passed = self.clocks.released(self._rows, now).reshape(self.batch.cta_count, self._warps, -1)
        self.clocks.learn(self._rows, np.repeat(passed.max(axis=1), self._warps, axis=0))
        self._raise_floors(np.arange(self.batch.cta_count))

    def barrier_arrives(self, number: int, lanes: Array) -> None:
        """Lanes arrive at barrier ``number`` of their CTA."""
        rows = self._rows_of(lanes)
        slots, clocks = joined(self.clocks.released(rows, self.history.tick()), rows // self._warps)
        held = self._at_barrier.setdefault(number, np.zeros((self.batch.cta_count, self.clocks.columns), np.int64))
        held[slots] = np.maximum(held[slots], clocks)

    def barrier_passes(self, number: int, lanes: Array) -> None:
        """Lanes that have waited at barrier ``number`` go on."""
        rows = self._rows_of(lanes)
        slots = rows // self._warps
        self.clocks.learn(rows, self._at_barrier[number][slots])
        self._passing.setdefault(number, np.zeros(self.batch.cta_count, np.int64))
        self._passing[number] += np.bincount(slots, minlength=self.batch.cta_count)

    def barrier_ends(self, number: int, done: Array) -> None:
        """All that have waited at barrier ``number`` of the CTAs in the mask ``done`` have gone on."""
        self._at_barrier[number][done] = 0
        passing = self._passing.get(number)
        if passing is not None:
            self._raise_floors(np.flatnonzero(done & (passing == self._warps)))
            passing[done] = 0

    def _raise_floors(self, slots: Array) -> None:
        """All warps of these CTAs know all that they have done so far."""
        if self.batch.cluster_size == 1:
            self._floors[slots] = stamp(self.history.tick(), 0)
            self._floor = int(self._floors.min())

    def _rows_of(self, lanes: Array) -> Array:
        return np.unique(self._row_of_lane[lanes])

    # -- order ------------------------------------------------------------------------------------------------------
    def _check(self, visit: Visit, found: Array, what: str) -> None:
        """Raises where the visitor does not know an epoch that was found at its place."""
        shared = visit.accesses is self._shared
        if found.max(initial=0) < (self._floor if shared else 1):
            return
        suspects = found >= (self._floors[visit.rows // self._warps][:, None] if shared else 1)
        entry, granule = np.nonzero(suspects)
        if not entry.size:
            return
        unknown = ~self._ordered(visit, found[entry, granule], visit.rows[entry])
        if unknown.any():
            suspects[entry, granule] = unknown
            self._fail(visit, found, suspects, what)

    def _ordered(self, visit: Visit, found: Array, rows: Array) -> Array:
        domains, columns = np.divmod(epochs.column_of(found), self.clocks.columns)
        same = domains == self._domain_of_row[rows]
        ordered = same & self.clocks.knows(rows, np.where(same, columns, 0), epochs.time_of(found))
        if visit.scope != WEAK:
            ordered |= self._both_strong(visit, found, rows, same)
        return np.asarray(ordered)

    def _both_strong(self, visit: Visit, found: Array, rows: Array, same_domain: Array) -> Array:
        """Where both accesses are strong and each scope takes in the other thread."""
        scope = np.where(epochs.scope_of(found) == WEAK, WEAK, np.minimum(epochs.scope_of(found), visit.scope))
        column = epochs.column_of(found) % self.clocks.columns
        same_cta = same_domain & (column // self._warps == self.clocks.own[rows] // self._warps)
        return np.asarray((scope >= GPU) | ((scope == CLUSTER) & same_domain) | ((scope == CTA) & same_cta))

    def _fail(self, visit: Visit, found: Array, suspects: Array, what: str) -> None:
        entry, granule = (int(i) for i in np.argwhere(suspects)[0])
        earlier = found[entry, granule]
        column = int(epochs.column_of(earlier))
        domain, column = divmod(column, self.clocks.columns)
        rank, warp = divmod(column, self._warps)
        cta = self.history.ctas[domain * self.batch.cluster_size + rank]
        who = reports.Earlier(what, self.batch.block_of(cta), warp, self.history.text_of(int(epochs.site_of(earlier))))
        unit_bytes = 1 << visit.unit
        first = int(visit.places[entry]) * unit_bytes
        where = max(first >> visit.accesses.shift, 0) + granule << visit.accesses.shift
        position = entry if visit.positions is None else int(visit.positions[entry])
        raise reports.data_race(self.batch, visit.memory, where, position, visit.write, who)


def _one_of_each_warp(group: Group) -> Array:
    """Positions in the group of one lane for each of its warps."""
    if group.whole:
        return np.arange(0, group.count, _WARP)
    return np.unique(group.lanes // _WARP, return_index=True)[1]
