"""Asynchronous copies to shared memory (``cp.async``). PTX ISA manual, "Non-bulk copy".

The bytes land at the wait (``late``), so that a missing wait reads bytes that nothing has written; or at once (``early``), which shows a stage that is
overwritten while it is still read. Bounds and alignment are checked at issue. Groups are counted per lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .access import locate, shared_index
from .faults import FaultKind, LaneFault
from .memory import WRITTEN, Array, Bytes

if TYPE_CHECKING:
    from .batch import Group

_WORDS = {4: "u4", 8: "u8", 16: "w16"}


@dataclass(frozen=True)
class _Copy:
    """Copies under way of the lanes ``lanes``; ``stage`` numbers their group. ``kept`` is how many bytes come from the source."""

    lanes: Array
    stage: Array
    target: Array
    source: Array
    kept: Array | None
    size: int


class AsyncCopies:
    """All copies under way in a batch."""

    def __init__(self, lane_count: int, shared: Bytes, arena: Bytes, early: bool) -> None:
        self._committed = np.zeros(lane_count, dtype=np.int32)
        self._shared = shared
        self._arena = arena
        self._early = early
        self._under_way: list[_Copy] = []

    def issue(
        self, group: Group, to: Any, to_offset: int, of: Any, of_offset: int, size: int, kept: Any | None
    ) -> None:
        """``size`` bytes for each lane; beyond ``kept`` bytes the target is filled with zeros."""
        target = np.broadcast_to(shared_index(group, to, to_offset, size), group.count)
        source = self._source(group, of, of_offset, size, kept)
        limits = None if kept is None else np.broadcast_to(kept, group.count)
        copy = _Copy(group.lanes, group.pick(self._committed).copy(), target, source, limits, size)
        if self._early:
            self._land(copy)
            return
        self._under_way.append(copy)
        _mark(self._shared, target, size, False)

    def commit(self, group: Group) -> None:
        """``cp.async.commit_group``."""
        self._committed[slice(None) if group.index is None else group.index] += 1

    def wait(self, group: Group, pending: int) -> None:
        """``cp.async.wait_group``: all but the last ``pending`` groups of each lane land. -1: uncommitted copies too."""
        limit = np.full(self._committed.size, -1, dtype=np.int32)
        index = slice(None) if group.index is None else group.index
        limit[index] = self._committed[index] - pending
        left = []
        for copy in self._under_way:
            due = copy.stage < limit[copy.lanes]
            if due.all():
                self._land(copy)
                continue
            if due.any():
                self._land(_part(copy, due))
                copy = _part(copy, ~due)
            left.append(copy)
        self._under_way = left

    def _source(self, group: Group, of: Any, offset: int, size: int, kept: Any | None) -> Array:
        """Byte index of each lane's source in the arena; lanes that keep nothing do not touch theirs."""
        if kept is None or (kept.ndim == 0 and int(kept) == size) or (kept.ndim and (kept == size).all()):
            return np.broadcast_to(self._checked(group, of, offset, size, size), group.count)
        wrong = np.atleast_1d(kept > size)
        if wrong.any():
            raise LaneFault(FaultKind.OUT_OF_BOUNDS, f"src-size is above cp-size {size}", int(np.argmax(wrong)))
        source = np.zeros(group.count, dtype=np.int64)
        spread = np.broadcast_to(kept, group.count)
        addresses = np.broadcast_to(of, group.count)
        for length in np.unique(spread):
            mask = spread == length
            if length:
                source[mask] = self._checked(group.subset(mask), addresses[mask], offset, size, int(length))
        return source

    def _checked(self, group: Group, of: Any, offset: int, size: int, length: int) -> Any:
        """Aligned to ``size``, and ``length`` bytes inside an allocation and written."""
        _, index = locate(group, "generic", of, offset, 1, False)
        if np.any(index & (size - 1)):
            position = int(np.argmax(np.atleast_1d(index & (size - 1)) != 0))
            raise LaneFault(FaultKind.MISALIGNED, f"cp.async source: not {size}-byte aligned", position)
        locate(group, "generic", of, offset + length - 1, 1, False)
        allocation = group.batch.arena.around(int(of.min()) + offset, int(of.max()) + offset + length)
        if group.batch.checks and (allocation is None or not allocation.complete):
            place = np.atleast_1d(index)[:, None] + np.arange(length)
            good = (self._arena.shadow[place] == 1).all(axis=1)
            if not good.all():
                position = int(np.argmin(good))
                where = int(np.atleast_1d(of)[position]) + offset
                raise LaneFault(FaultKind.UNINITIALISED_READ, f"cp.async reads unwritten bytes at {where:#x}", position, where)
        return index

    def _land(self, copy: _Copy) -> None:
        size = copy.size
        word = _WORDS[size]
        shift = size.bit_length() - 1
        if copy.kept is None:
            data = self._arena.views[word][copy.source >> shift]
        else:
            places = copy.source[:, None] + np.arange(size)
            inside = np.arange(size) < copy.kept[:, None]
            data = np.where(inside, self._arena.data[np.where(inside, places, 0)], np.uint8(0))
            data = data.view(self._shared.views[word].dtype)[:, 0]
        self._shared.views[word][copy.target >> shift] = data
        _mark(self._shared, copy.target, size, True)


def _part(copy: _Copy, mask: Array) -> _Copy:
    kept = None if copy.kept is None else copy.kept[mask]
    return _Copy(copy.lanes[mask], copy.stage[mask], copy.target[mask], copy.source[mask], kept, copy.size)


def _mark(memory: Bytes, index: Array, size: int, written: bool) -> None:
    step = min(size, 8)
    shadow = memory.shadows[step]
    value = WRITTEN[step] if written else shadow.dtype.type(0)
    for place in range(0, size, step):
        shadow[(index + place) >> (step.bit_length() - 1)] = value
