"""Asynchronous work of a batch: bulk copies and what else lands after it was issued. PTX ISA manual, "Data Movement and
Conversion Instructions: Asynchronous copy".

An operation lands at once (``early``), or as late as it may: at the wait for its bulk group, or when no lane can go on
without it. Until then the bytes that it will write count as never written, so that a missing wait shows. Its source is
read when it lands, or at ``wait_group.read``, so that a source that is replaced too soon shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.copying.transfer import UNITS, Places, Transfer, forget, put
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes, Storage
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.arena import DTYPES, Array, Bytes
from lowdnn.driver.emulated.memory.space import ARENA_BASE

#: ``update(view, element numbers, operands)``: a reduction in memory, as ``values.atomic.updater`` makes it.
Update = Callable[..., Any]


class Operation(Protocol):
    """A pending asynchronous operation; row r was issued by lane ``lanes[r]`` at PTX line ``line``."""

    @property
    def line(self) -> int: ...

    @property
    def lanes(self) -> Array: ...

    def slots(self, batch: CopyingBatch) -> Array:
        """Slots of the CTAs whose shared memory the operation still needs, for each row one or several."""

    def land(self, batch: CopyingBatch) -> None:
        """Completes the operation."""


@dataclass(frozen=True)
class Reduction:
    """The reduction by which a copy is combined with its target: ``update`` on elements of value code ``code``."""

    update: Update
    code: str


@dataclass(frozen=True)
class BulkCopy:
    """The rows of a transfer under way. ``inbound``: into shared memory; ``outer``: the memory on the other side.

    It completes at the mbarriers at ``place`` [L] (byte numbers in shared memory), or with the bulk group that
    ``stage`` [L] numbers for each row's lane. ``content``: the units to write, once they have been read.
    """

    transfer: Transfer
    line: int
    inbound: bool
    outer: Bytes
    place: Array | None = None
    stage: Array | None = None
    reduction: Reduction | None = None
    content: Array | None = None

    @property
    def lanes(self) -> Array:
        return self.transfer.lanes

    def part(self, rows: Any) -> BulkCopy:
        """The rows that a mask or a slice selects."""
        picked = (None if full is None else full[rows] for full in (self.place, self.stage, self.content))
        place, stage, content = picked
        return replace(self, transfer=self.transfer.part(rows), place=place, stage=stage, content=content)

    def source(self, batch: Storage) -> tuple[Bytes, Places]:
        """(memory, units) of the source."""
        return (self.outer, self.transfer.outside) if self.inbound else (batch.shared, self.transfer.shared)

    def target(self, batch: Storage) -> tuple[Bytes, Places]:
        """(memory, units) of the target."""
        return (batch.shared, self.transfer.shared) if self.inbound else (self.outer, self.transfer.outside)

    def fetched(self, batch: CopyingBatch) -> BulkCopy:
        """This copy with its content read."""
        return replace(self, content=self._content(batch, slice(None)))

    def slots(self, batch: CopyingBatch) -> Array:
        sides = [self.target(batch)] if self.content is not None else [self.target(batch), self.source(batch)]
        rows = [places.starts for memory, places in sides if memory is batch.shared and places.count]
        return np.concatenate([np.zeros(0, np.int64), *rows]) * self.transfer.unit // batch.shared_stride

    def land(self, batch: CopyingBatch) -> None:
        for rows in self.transfer.pieces():
            self._write(batch, rows)
        batch.stores += 1
        if self.place is not None:
            batch.mbarriers.complete_tx(self.place, self.transfer.nbytes)

    def _write(self, batch: CopyingBatch, rows: slice) -> None:
        transfer = self.transfer
        memory, target = self.target(batch)
        places, content = target.part(rows), self._content(batch, rows)
        inside = None if self.inbound or transfer.inside is None else transfer.inside[rows]
        if self.reduction is not None:
            _reduce(memory, transfer.unit, places.units, content, inside, self.reduction)
        else:
            put(memory, transfer.unit, places, content, inside)

    def _content(self, batch: CopyingBatch, rows: slice) -> Array:
        """The units to write of some rows."""
        if self.content is not None:
            return self.content[rows]
        if self.inbound:
            return self.transfer.fetched(self.outer, rows)
        return np.asarray(batch.shared.views[UNITS[self.transfer.unit]][self.transfer.shared.part(rows).units])


@dataclass(frozen=True)
class CopiesArrival:
    """``cp.async.mbarrier.arrive``: lands the ``cp.async`` copies that ``lanes`` issued before number ``serial``, and
    arrives at the barriers at ``place``."""

    lanes: Array
    line: int
    serial: int
    place: Array

    def slots(self, batch: CopyingBatch) -> Array:
        return batch.slot[self.lanes]

    def land(self, batch: CopyingBatch) -> None:
        batch.copies.land_before(self.lanes, self.serial)
        if batch.races is not None:
            batch.races.copies_arrive(self.lanes, self.serial)
        batch.mbarriers.landed_arrival(self.lanes, self.place)


class AsyncWork:
    """All pending operations of a batch, oldest first, and the bulk groups of its lanes."""

    def __init__(self, batch: CopyingBatch) -> None:
        self.batch = batch
        self.pending: list[Operation] = []
        self._committed = np.zeros(batch.lane_count, dtype=np.int32)

    # -- issue ------------------------------------------------------------------------------------------------------
    def load(self, group: Lanes[CopyingBatch], transfer: Transfer, place: Array, line: int) -> None:
        """A copy from global to shared memory; row r completes at the mbarrier at byte ``place[r]``."""
        self._issue(group, BulkCopy(transfer, line, True, self.batch.arena, place))

    def exchange(
        self,
        group: Lanes[CopyingBatch],
        transfer: Transfer,
        place: Array,
        line: int,
        reduction: Reduction | None = None,
    ) -> None:
        """A copy within shared memory; ``outside`` counts units of ``batch.shared``, too."""
        self._issue(group, BulkCopy(transfer, line, True, self.batch.shared, place, reduction=reduction))

    def send(
        self,
        group: Lanes[CopyingBatch],
        transfer: Transfer,
        content: Array,
        place: Array,
        line: int,
        reduction: Reduction | None = None,
    ) -> None:
        """Registers (``content`` [L, n]) into shared memory: ``st.async``, ``red.async``."""
        self._issue(
            group, BulkCopy(transfer, line, True, self.batch.shared, place, reduction=reduction, content=content)
        )

    def store(
        self, group: Lanes[CopyingBatch], transfer: Transfer, line: int, reduction: Reduction | None = None
    ) -> None:
        """A copy from shared to global memory, in the current bulk group of each row's lane."""
        stage = self._committed[transfer.lanes]
        self._issue(group, BulkCopy(transfer, line, False, self.batch.arena, stage=stage, reduction=reduction))

    def arrive_after_copies(self, group: Lanes[CopyingBatch], place: Array, counted: bool, line: int) -> None:
        """``cp.async.mbarrier.arrive``: each lane arrives at the barrier at ``place`` when its copies have landed.
        ``counted`` (``.noinc``): the barrier's count holds this arrival; otherwise the phase waits for one more."""
        self.batch.mbarriers.check(place)
        if not counted:
            self.batch.mbarriers.promise(place)
        self.submit(CopiesArrival(group.lanes, line, self.batch.copies.issued, place))

    def submit(self, operation: Operation) -> bool:
        """Lands an operation now, or queues it, as the batch's policy decides. Returns whether it is pending."""
        if self.batch.picker.lands_at_once():
            self._land(operation)
            return False
        self.pending.append(operation)
        return True

    # -- bulk groups ------------------------------------------------------------------------------------------------
    def commit(self, group: Lanes[CopyingBatch]) -> None:
        """``cp.async.bulk.commit_group``."""
        self._committed[slice(None) if group.index is None else group.index] += 1

    def wait(self, group: Lanes[CopyingBatch], newest: int, read: bool) -> None:
        """``cp.async.bulk.wait_group``: all but the ``newest`` groups of each lane land; with ``read`` their sources
        are read only."""
        if self.batch.races is not None:
            limits = group.pick(self._committed) - newest
            self.batch.races.work.bulk_waited(group.lanes, limits, read)
        if not self.pending:
            return
        limit = np.full(self._committed.size, -1, dtype=np.int32)
        index = slice(None) if group.index is None else group.index
        limit[index] = self._committed[index] - newest
        pending, self.pending = self.pending, []
        for operation in pending:
            if isinstance(operation, BulkCopy) and operation.stage is not None:
                self._pass(operation, operation.stage < limit[operation.transfer.lanes], read)
            else:
                self.pending.append(operation)

    # -- landing ----------------------------------------------------------------------------------------------------
    def land_next(self) -> bool:
        """Lands one operation, the oldest unless the policy picks another; False if there is none."""
        if not self.pending:
            return False
        self._land(self.pending.pop(self.batch.picker.lands_next(len(self.pending))))
        return True

    def land_between(self) -> None:
        """Between two blocks: lands an operation or a ``cp.async`` that nobody waits for, if the policy wants it."""
        batch = self.batch
        if self.pending:
            number = batch.picker.lands_now(len(self.pending))
            if number is not None:
                self._land(self.pending.pop(number))
        if batch.copies.under_way:
            number = batch.picker.lands_now(batch.copies.under_way)
            if number is not None:
                batch.copies.land(number)

    def land_all(self) -> None:
        """Lands all pending operations at the end of a kernel."""
        while self.land_next():
            pass

    def check_exit(self, gone: Array) -> None:
        """Raises LaneFault where shared memory of the CTAs ``gone`` (slots) is still needed."""
        for operation in self.pending:
            needed = operation.slots(self.batch)
            late = np.isin(needed, gone)
            if late.any():
                row = int(np.argmax(late))
                block = self.batch.place(int(np.argmax(self.batch.slot == needed[row])))[0]
                message = f"block {block} exits while this asynchronous work still uses its shared memory"
                lane = int(operation.lanes[row % operation.lanes.size])
                raise LaneFault(FaultKind.ASYNC_MISUSE, message, line=operation.line, lane=lane)

    def _issue(self, group: Lanes[CopyingBatch], copy: BulkCopy) -> None:
        transfer, batch = copy.transfer, self.batch
        try:
            if copy.place is not None:
                batch.mbarriers.check(copy.place)
            if copy.content is None and batch.checks:
                self._check_source(copy)
        except LaneFault as fault:
            if fault.position is not None:
                fault.position = int(np.argmax(group.lanes == transfer.lanes[fault.position]))
            raise
        if batch.races is not None:
            batch.races.work.bulk_issued(group, copy)
        under_way = self.submit(copy)
        if under_way and copy.inbound and copy.reduction is None:
            forget(batch.shared, transfer.unit, transfer.shared)

    def _check_source(self, copy: BulkCopy) -> None:
        memory, units = copy.source(self.batch)
        found = copy.transfer.first_unwritten(memory, units)
        if found is not None:
            row, byte = found
            where = byte % self.batch.shared_stride if memory is self.batch.shared else byte + ARENA_BASE
            raise unwritten_fault(memory, where, copy.transfer.unit, row)

    def _pass(self, copy: BulkCopy, due: Array, read: bool) -> None:
        """Lands or reads the rows that are ``due``; the rest stays pending."""
        if due.any():
            ready = copy if due.all() else copy.part(due)
            if read:
                self.pending.append(ready.fetched(self.batch))
            else:
                self._land(ready)
        if not due.all():
            self.pending.append(copy if not due.any() else copy.part(~due))

    def _land(self, operation: Operation) -> None:
        try:
            operation.land(self.batch)
        except LaneFault as fault:
            fault.message += " (found when this asynchronous work lands)"
            fault.line, fault.lane = operation.line, int(operation.lanes[fault.position or 0])
            raise


def _reduce(memory: Bytes, unit: int, units: Array, content: Array, inside: Array | None, reduction: Reduction) -> None:
    """Reduces row after row, so that copies to the same address add up."""
    dtype = np.dtype(DTYPES[reduction.code])
    view = memory.views[reduction.code]
    per_unit = unit // dtype.itemsize
    for row in range(units.shape[0]):
        taken, values = units[row], content[row]
        if inside is not None:
            taken, values = taken[inside[row]], values[inside[row]]
        elements = (taken[:, None] * per_unit + np.arange(per_unit)).reshape(-1)
        reduction.update(view, elements, np.ascontiguousarray(values).view(dtype).reshape(-1))
