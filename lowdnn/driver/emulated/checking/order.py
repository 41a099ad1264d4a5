"""The order of a batch's accesses: which earlier accesses each warp knows of, through barriers, mbarriers, fences and
waits.

Columns of a domain: first those of its warps, CTA by CTA; then, CTA by CTA, those of asynchronous work, whose times are
phases of an mbarrier or numbers of commit groups; last, one for the launch before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowdnn.driver.emulated.checking import epochs
from lowdnn.driver.emulated.checking.accesses import READERS
from lowdnn.driver.emulated.checking.batch import CheckedBatch
from lowdnn.driver.emulated.checking.clocks import Clocks, joined
from lowdnn.driver.emulated.checking.epochs import CLUSTER, CTA, GPU, MOST_COLUMNS, WEAK, stamp
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.faults import Dim3
from lowdnn.driver.emulated.memory.arena import Array

_WARP = 32
_WARPGROUP = 4
#: Columns for the mbarriers of a CTA; if it has more, several share a column.
_MBARRIERS = 64
#: Largest table of clocks, in entries.
_LARGEST_TABLE = 1 << 24


class Order:
    """The clocks of the warps (rows) of a batch, and of the objects through which they synchronise."""

    def __init__(self, batch: CheckedBatch, history: LaunchHistory) -> None:
        self.batch = batch
        self.history = history
        traits = history.traits
        self.warps = batch.geometry.cta_lanes // _WARP
        self._extra = _MBARRIERS + 2 * self.warps + -(-self.warps // _WARPGROUP) if traits.asynchronous else 0
        self._grid = int(np.prod(batch.geometry.grid))
        self._domain = self._domain_size()
        first = len(history.ctas)
        history.ctas += batch.geometry.ctas.tolist()
        self.row_of_lane = batch.slot * self.warps + batch.thread // _WARP
        self._rows = np.arange(batch.cta_count * self.warps)
        self.slot_of_row = self._rows // self.warps
        position = first + np.arange(batch.cta_count)
        self._rank = position % self._domain
        own = self._rank[self.slot_of_row] * self.warps + self._rows % self.warps
        columns = self._domain * (self.warps + self._extra) + 1
        self._previous_column = columns - 1
        #: Domains far apart share a number where epochs have no room for more.
        self._domain_of_slot = position // self._domain % max(MOST_COLUMNS // columns, 1)
        self._first_column_of_row = self._domain_of_slot[self.slot_of_row] * columns
        self.clocks = Clocks(own, columns, traits.asynchronous)
        self.column_of_row = self._marked(self.slot_of_row, own)
        if self.spans_launch:
            history.columns = columns
        history.who = self._block_and_actor
        #: The row of the reads of its warp.
        self.reader_of_row = self._rows % self.warps % READERS
        #: By slot: epochs of shared memory below these are known to every warp that can reach it.
        self.floors = np.ones(batch.cta_count, dtype=np.int64)
        self.floor = 1
        #: By row: when the warp last executed a fence, 0 for never.
        self.last_fence = np.zeros(self._rows.size, dtype=np.int64)
        self._held: dict[Any, Array] = {}
        self._passing: dict[int, Array] = {}

    @property
    def spans_launch(self) -> bool:
        """Whether all warps of the launch can synchronise, through global memory or because the grid is one cluster."""
        return self.history.traits.orders_memory and self._domain == self._grid

    def _domain_size(self) -> int:
        """Number of CTAs of a domain: all of the launch if fences can order CTAs and the table does not become too
        large."""
        batch = self.batch
        entries = batch.cta_count * self.warps * self._grid * (self.warps + self._extra)
        if self.history.traits.orders_memory and entries <= _LARGEST_TABLE:
            return self._grid
        return batch.cluster_size

    def _marked(self, slots: Array, columns: Array) -> Array:
        """Columns of the domains of some slots, shifted to their bits in an epoch."""
        return np.asarray(epochs.marked(self._domain_of_slot[slots] * self.clocks.columns + columns))

    def rows_of(self, lanes: Array) -> Array:
        """The rows of the warps of some lanes, each once."""
        marks = np.zeros(self._rows.size, dtype=np.bool_)
        marks[self.row_of_lane[lanes]] = True
        return np.flatnonzero(marks)

    # -- questions --------------------------------------------------------------------------------------------------
    def is_ordered(self, found: Array, rows: Array, scope: int) -> Array:
        """For each epoch ``found``: whether the access of ``scope`` that the warp in ``rows`` makes is ordered after
        it."""
        same, columns = self.own_columns(found, rows)
        ordered = same & self.clocks.knows(rows, columns, epochs.time_of(found))
        if scope != WEAK:
            ordered |= self._both_strong(found, rows, scope)
        if self.history.traits.orders_memory and not self.spans_launch:
            ordered |= ~same
        return np.asarray(ordered)

    def own_columns(self, found: Array, rows: Array) -> tuple[Array, Array]:
        """For each epoch ``found``: (whether it belongs to the domain of the warp in ``rows``, its column there or
        0)."""
        columns = epochs.column_of(found) - self._first_column_of_row[rows]
        # A negative number is a large one without its sign.
        same = columns.view(np.uint64) < self.clocks.columns
        return same, np.where(same, columns, 0)

    def is_fenced(self, found: Array, rows: Array) -> Array:
        """For each epoch ``found`` of a write that the warp in ``rows`` knows of: whether the warp's asynchronous work
        sees it, after a proxy fence."""
        columns = epochs.column_of(found) - self._first_column_of_row[rows]
        by_warp = columns.view(np.uint64) < self._domain * self.warps
        fenced = self.clocks.has_fenced(rows, np.where(by_warp, columns, 0), epochs.time_of(found))
        return np.asarray(~by_warp | fenced)

    def _both_strong(self, found: Array, rows: Array, scope: int) -> Array:
        """Whether both accesses are strong and the scope of each includes the other thread."""
        scopes = np.where(epochs.scope_of(found) == WEAK, WEAK, np.minimum(epochs.scope_of(found), scope))
        ctas, slots = self._cta_of(found), rows // self.warps
        own = self._domain_of_slot[slots] * self._domain + self._rank[slots]
        size = self.batch.cluster_size
        near = (scopes == CLUSTER) & (ctas // size == own // size) | (scopes == CTA) & (ctas == own)
        return np.asarray((scopes >= GPU) | near)

    def _cta_of(self, found: Any) -> Any:
        """The CTA, by its place in the launch, of who made each epoch."""
        domains, columns = np.divmod(epochs.column_of(found), self.clocks.columns)
        generic = self._domain * self.warps
        ranks = np.where(columns < generic, columns // self.warps, (columns - generic) // max(self._extra, 1))
        return domains * self._domain + ranks

    def who(self, epoch: Any) -> tuple[int, str]:
        """The CTA (linear number) that made an epoch, and which of its warps or copies."""
        column = int(epochs.column_of(epoch)) % self.clocks.columns
        generic = self._domain * self.warps
        cta = self.history.ctas[int(self._cta_of(epoch))]
        if column < generic:
            return cta, f"warp {column % self.warps}"
        kind = (column - generic) % self._extra
        if kind < _MBARRIERS:
            return cta, "an asynchronous copy"
        if kind < _MBARRIERS + 2 * self.warps:
            return cta, f"a bulk copy of warp {(kind - _MBARRIERS) % self.warps}"
        return cta, f"a wgmma of warpgroup {kind - _MBARRIERS - 2 * self.warps}"

    def _block_and_actor(self, epoch: Any) -> tuple[Dim3, str]:
        cta, actor = self.who(epoch)
        return self.batch.block_of(cta), actor

    # -- the launch before --------------------------------------------------------------------------------------------
    def previous_launch_ended(self, lanes: Array) -> None:
        """``griddepcontrol.wait`` has been passed."""
        self.clocks.known[self.rows_of(lanes), self._previous_column] = 1

    def follows_previous(self, rows: Array) -> Array:
        """For each warp, whether it is ordered after all of the previous launch."""
        return np.asarray(self.clocks.known[rows, self._previous_column] > 0)

    # -- columns of asynchronous work -------------------------------------------------------------------------------
    def mbarrier_columns(self, slots: Array, numbers: Array) -> Array:
        """Columns of the mbarriers ``numbers`` of the CTAs ``slots``."""
        return self._extra_columns(slots, numbers % _MBARRIERS)

    def bulk_columns(self, rows: Array, reads: bool) -> Array:
        """Columns of the bulk groups of some warps, of their reads or of their writes."""
        return self._extra_columns(rows // self.warps, _MBARRIERS + rows % self.warps + (0 if reads else self.warps))

    def wgmma_columns(self, rows: Array) -> Array:
        """Columns of the wgmma groups of the warpgroups of some warps. A group belongs to the whole warpgroup, so it is
        over once one of the four warps has waited for it."""
        first = _MBARRIERS + 2 * self.warps
        return self._extra_columns(rows // self.warps, first + rows % self.warps // _WARPGROUP)

    def marked_columns(self, slots: Array, columns: Array) -> Array:
        """Columns of the domains of some slots, as they stand in an epoch."""
        return self._marked(slots, columns)

    def note(self, rows: Array, columns: Array, numbers: Any) -> None:
        """Notes that some warps know of the completion of groups below ``numbers``, in some columns."""
        self.clocks.known[rows, columns] = np.maximum(self.clocks.known[rows, columns], numbers)

    def _extra_columns(self, slots: Array, places: Array) -> Array:
        return np.asarray(self._domain * self.warps + self._rank[slots] * self._extra + places)

    # -- clocks of what warps synchronise through ---------------------------------------------------------------------
    def release(self, key: Any, count: int, rows: Array, objects: Array, passed: Array | None = None) -> None:
        """Warps ``rows`` release their clocks, or ``passed``, to ``objects``: numbers of synchronisation objects, of
        which ``key`` has ``count``."""
        held = self.held(key, count)
        passed = self.clocks.released(rows, self.history.tick()) if passed is None else self.clocks.widened(passed)
        found, clocks = joined(passed, objects)
        held[found] = np.maximum(held[found], clocks)

    def acquire(self, key: Any, count: int, rows: Array, objects: Array) -> None:
        """Warps ``rows`` acquire the clocks of ``objects``."""
        found, clocks = joined(self.held(key, count)[objects], rows)
        self.clocks.learn(found, clocks)

    def complete(self, arriving: Any, complete: Any, count: int, objects: Array) -> None:
        """Makes clocks that were released to ``objects`` of one key available from the same objects of the other
        key."""
        self.held(complete, count)[objects] = self.held(arriving, count)[objects]

    def held(self, key: Any, count: int) -> Array:
        """The clocks [count, ...] of the objects of a key."""
        held = self._held.get(key)
        if held is not None and held.shape[1] < self.clocks.table.shape[1]:
            held = self._held[key] = self.clocks.widened(held)
        if held is None or len(held) < count:
            more = np.zeros((count - (0 if held is None else len(held)), self.clocks.table.shape[1]), dtype=np.int64)
            held = self._held[key] = more if held is None else np.concatenate([held, more])
        return held

    # -- barriers of CTAs ---------------------------------------------------------------------------------------------
    def barrier_of_all(self) -> None:
        """Every warp of the batch passes a barrier of its CTA."""
        passed = self.clocks.released(self._rows, self.history.tick())
        together = passed.reshape(self.batch.cta_count, self.warps, -1).max(axis=1)
        self.clocks.learn(self._rows, np.repeat(together, self.warps, axis=0))
        self._raise_floors(np.arange(self.batch.cta_count))

    def barrier_arrives(self, number: int, lanes: Array) -> None:
        """Lanes arrive at barrier ``number`` of their CTA."""
        rows = self.rows_of(lanes)
        self.release(number, self.batch.cta_count, rows, rows // self.warps)

    def barrier_passes(self, number: int, lanes: Array) -> None:
        """Lanes that have waited at barrier ``number`` go on."""
        rows = self.rows_of(lanes)
        slots = rows // self.warps
        self.acquire(number, self.batch.cta_count, rows, slots)
        passing = self._passing.setdefault(number, np.zeros(self.batch.cta_count, np.int64))
        passing += np.bincount(slots, minlength=self.batch.cta_count)

    def barrier_ends(self, number: int, done: Array) -> None:
        """All that have waited at barrier ``number`` of the CTAs in the mask ``done`` have gone on."""
        self.held(number, self.batch.cta_count)[done] = 0
        passing = self._passing.get(number)
        if passing is not None:
            self._raise_floors(np.flatnonzero(done & (passing == self.warps)))
            passing[done] = 0

    def _raise_floors(self, slots: Array) -> None:
        """Raises the floors of these CTAs, whose warps all know of every access so far."""
        if self.batch.cluster_size == 1:
            self.floors[slots] = stamp(self.history.tick(), 0)
            self.floor = int(self.floors.min())

    # -- barriers of clusters -----------------------------------------------------------------------------------------
    def cluster_arrives(self, rows: Array, phase: int, passed: Array | None) -> None:
        """Warps arrive for a phase at the barrier of their cluster, and release what they know, or ``passed``."""
        clusters = rows // self.warps // self.batch.cluster_size
        self.release(("cluster", phase), self.batch.cta_count, rows, clusters, passed)

    def cluster_passes(self, rows: Array, phase: int) -> None:
        """Warps that have waited for a phase of their cluster's barrier go on."""
        clusters = rows // self.warps // self.batch.cluster_size
        self.acquire(("cluster", phase), self.batch.cta_count, rows, clusters)
