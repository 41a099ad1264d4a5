"""Asynchronous copies to shared memory (``cp.async``). PTX ISA manual, "Non-bulk copy".

The bytes land at the wait (``late``), so that a missing wait reads bytes that nothing has written; or at once
(``early``), which shows a stage that is overwritten while it is still read. Bounds and alignment are checked at
issue. Groups are counted per lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowdnn.driver.emulated.copying.batch import CopyingBatch
from lowdnn.driver.emulated.copying.pending import PendingCopy
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.access import unwritten_fault
from lowdnn.driver.emulated.memory.address import Address, check, resolve
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array, Bytes

_WORDS = {4: "u4", 8: "u8", 16: "w16"}


@dataclass(frozen=True)
class _Copy:
    """Copies under way of the lanes ``lanes``, issued as number ``serial``; ``index`` selects the lanes from an array
    over the batch. ``stage`` numbers their group, ``target`` and ``source`` count words of ``size`` bytes. ``kept`` is
    how many bytes come from the source."""

    index: slice | Array
    lanes: Array
    stage: Array
    target: Array
    source: Array
    kept: Array | None
    size: int
    serial: int


class AsyncCopies:
    """All copies under way in a batch."""

    def __init__(self, lane_count: int, shared: Bytes, arena: Bytes, lands_at_once: Callable[[], bool]) -> None:
        self._committed = np.zeros(lane_count, dtype=np.int32)
        self._shared = shared
        self._arena = arena
        self._lands_at_once = lands_at_once
        self._under_way: list[_Copy] = []
        self.issued = 0

    def issue(
        self,
        group: Lanes[CopyingBatch],
        to: Address,
        to_offset: int,
        of: Address,
        of_offset: int,
        size: int,
        kept: Any | None,
    ) -> None:
        """``size`` bytes for each lane; beyond ``kept`` bytes the target is filled with zeros."""
        shift = size.bit_length() - 1
        space, origin = resolve(group, "shared", to, to_offset)
        check(group, space, origin, to, to_offset, size, write=True)
        target = np.broadcast_to(to.places(group, space, origin, to_offset, shift), group.count)
        limits = self._limits(group, size, kept)
        source = self._source(group, of, of_offset, size, limits)
        index = slice(None) if group.index is None else group.index
        copy = _Copy(index, group.lanes, self._committed[index].copy(), target, source, limits, size, self.issued)
        self.issued += 1
        group.batch.stores += 1
        if group.batch.races is not None:
            pending = PendingCopy(copy.lanes, copy.stage, copy.serial, target, shift, 0)
            group.batch.races.copy_issued(group, pending, source, limits)
        if self._lands_at_once():
            self._land(copy)
            return
        self._under_way.append(copy)
        self._shared.shadows[size][target] = self._shared.shadows[size].dtype.type(0)

    def commit(self, group: Lanes[CopyingBatch]) -> None:
        """``cp.async.commit_group``."""
        self._committed[slice(None) if group.index is None else group.index] += 1

    def wait(self, group: Lanes[CopyingBatch], pending: int) -> None:
        """``cp.async.wait_group``: all but the last ``pending`` groups of each lane land. -1: uncommitted ones too."""
        limit = np.full(self._committed.size, -1, dtype=np.int32)
        index = slice(None) if group.index is None else group.index
        limit[index] = self._committed[index] - pending
        self._land_due(group.lanes, lambda copy: copy.stage < limit[copy.index])
        if group.batch.races is not None:
            group.batch.races.copies_waited(group.lanes, limit)

    @property
    def under_way(self) -> int:
        """The number of pending copies."""
        return len(self._under_way)

    def land(self, number: int) -> None:
        """Lands one of the pending copies (0: the oldest) before any lane waits for it."""
        self._land(self._under_way.pop(number))

    def land_before(self, lanes: Array, serial: int) -> None:
        """The copies that ``lanes`` issued before number ``serial`` land, committed or not."""
        chosen = np.zeros(self._committed.size, dtype=np.bool_)
        chosen[lanes] = True
        self._land_due(lanes, lambda copy: chosen[copy.index] & (copy.serial < serial))

    def _land_due(self, lanes: Array, find: Callable[[_Copy], Array]) -> None:
        """Lands the copies of ``lanes``, which ascend, that ``find`` selects."""
        first, last = int(lanes[0]), int(lanes[-1])
        left = []
        for copy in self._under_way:
            if copy.lanes[0] > last or copy.lanes[-1] < first:
                left.append(copy)
                continue
            due = find(copy)
            if due.all():
                self._land(copy)
                continue
            if due.any():
                self._land(_part(copy, due))
                copy = _part(copy, ~due)
            left.append(copy)
        self._under_way = left

    def _limits(self, group: Lanes[CopyingBatch], size: int, kept: Any | None) -> Array | None:
        """Bytes that each lane keeps; None where all keep all."""
        if kept is None or (np.atleast_1d(kept) == size).all():
            return None
        wrong = np.atleast_1d(kept > size)
        if wrong.any():
            raise LaneFault(FaultKind.OUT_OF_BOUNDS, f"src-size is above cp-size {size}", int(np.argmax(wrong)))
        return np.broadcast_to(kept, group.count)

    def _source(self, group: Lanes[CopyingBatch], of: Address, offset: int, size: int, limits: Array | None) -> Array:
        """Word number of each lane's source in the arena; lanes that keep nothing do not touch theirs."""
        if limits is None:
            return np.broadcast_to(self._checked(group, of, offset, size, size), group.count)
        source = np.zeros(group.count, dtype=np.int64)
        for length in np.unique(limits):
            mask = limits == length
            if length:
                source[mask] = self._checked(group.subset(mask), of.subset(mask), offset, size, int(length))
        return source

    def _checked(self, group: Lanes[CopyingBatch], of: Address, offset: int, size: int, length: int) -> Any:
        """Checks a source: aligned to ``size``, with ``length`` written bytes inside one allocation."""
        space, origin = resolve(group, "generic", of, offset)
        if space != "global":
            raise LaneFault(
                FaultKind.OUT_OF_BOUNDS, "the source of cp.async is not in global memory", 0, of.lane(0, offset)
            )
        _, unwritten = check(group, space, origin, of, offset, length, align=size)
        index = of.places(group, space, origin, offset, size.bit_length() - 1)
        if unwritten and group.batch.checks:
            good = (self._arena.shadow.reshape(-1, size)[np.atleast_1d(index), :length] == 1).all(axis=1)
            if not good.all():
                position = int(np.argmin(good))
                raise unwritten_fault(self._arena, of.lane(position, offset), length, position)
        return index

    def _land(self, copy: _Copy) -> None:
        size = copy.size
        word = _WORDS[size]
        data = self._arena.views[word].take(copy.source)
        if copy.kept is not None:
            data.view(np.uint8).reshape(-1, size)[np.arange(size) >= copy.kept[:, None]] = 0
        self._shared.views[word][copy.target] = data
        self._shared.shadows[size][copy.target] = WRITTEN[size]


def _part(copy: _Copy, mask: Array) -> _Copy:
    kept = None if copy.kept is None else copy.kept[mask]
    lanes, stage = copy.lanes[mask], copy.stage[mask]
    return _Copy(lanes, lanes, stage, copy.target[mask], copy.source[mask], kept, copy.size, copy.serial)
