"""The contents of one asynchronous bulk copy, for all lanes that issue it together.

A row of a ``Transfer`` is one copy: between the shared memory of one CTA and memory outside of it. Both sides are
given unit by unit, as element numbers of a view of units (``UNITS``), so that swizzles, boxes and bounds cost nothing
here. Alignment and bounds have been checked by who made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Storage
from lowdnn.driver.emulated.memory.arena import WRITTEN, Array, Bytes
from lowdnn.driver.emulated.memory.batch import MemoryBatch

#: Bytes of a unit -> value code of the view that its numbers count in.
UNITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "w16"}


#: Units of a piece of work, small enough for the host's caches.
_PIECE_UNITS = 4096


@dataclass(frozen=True)
class Places:
    """Unit numbers [L, n] of L rows: ``first`` [L] plus ``pattern``, [n] where all rows look alike, else [L, n]."""

    first: Array
    pattern: Array

    @property
    def units(self) -> Array:
        return np.asarray(self.first[:, None] + self.pattern)

    @property
    def count(self) -> int:
        """The number of units in a row."""
        return int(self.pattern.shape[-1])

    @property
    def starts(self) -> Array:
        """[L] number of each row's first unit."""
        return np.asarray(self.first + self.pattern[..., 0])

    def part(self, rows: Any) -> Places:
        """The rows that a mask, an index or a slice selects."""
        return Places(self.first[rows], self.pattern if self.pattern.ndim == 1 else self.pattern[rows])

    def fill(self, view: Array, value: Any) -> None:
        """Sets all units of a view to one value."""
        count = self.count
        if self.pattern.ndim == 1 and count and int(self.pattern.max()) == count - 1:
            for first in self.first.tolist():
                view[first : first + count] = value
        else:
            view[self.units] = value


def run_of_units(first: Array, count: int) -> Places:
    """``count`` units from each ``first`` on."""
    return Places(first, np.arange(count, dtype=np.int64))


@dataclass(frozen=True)
class Transfer:
    """``lanes`` [L]: the lane of the batch that issued each row. ``shared``: units in ``batch.shared``; ``outside``:
    units in the arena (any number where ``inside`` is False). ``inside`` [L, n] bool: which units exist outside; None
    where all do. ``fill``: the bytes of a unit that does not exist, zeros where empty. ``nbytes`` [L]: what each row
    completes at an mbarrier. ``written``: the source is known to hold no never-written byte. ``converted`` changes the
    bytes (uint8) that come from outside on their way.
    """

    lanes: Array
    shared: Places
    outside: Places
    unit: int
    nbytes: Array
    inside: Array | None = None
    fill: bytes = b""
    written: bool = False
    converted: Callable[[Array], Array] | None = None

    def part(self, rows: Any) -> Transfer:
        """The rows that a mask, an index or a slice selects."""
        return replace(
            self,
            lanes=self.lanes[rows],
            shared=self.shared.part(rows),
            outside=self.outside.part(rows),
            nbytes=self.nbytes[rows],
            inside=None if self.inside is None else self.inside[rows],
        )

    def pieces(self) -> Iterator[slice]:
        """Slices of rows that are processed together."""
        step = max(1, _PIECE_UNITS // max(self.shared.count, 1))
        for start in range(0, len(self.lanes), step):
            yield slice(start, start + step)

    def fetched(self, memory: Bytes, rows: slice) -> Array:
        """The content of the outside units of some rows, read from ``memory``; ``fill`` for units that do not exist."""
        view = memory.views[UNITS[self.unit]]
        places = self.outside.part(rows).units
        if self.inside is None:
            return self._on_the_way(np.asarray(view[places]))
        inside = self.inside[rows]
        content = self._on_the_way(np.asarray(view[np.where(inside, places, 0)]))
        content[~inside] = np.frombuffer(self.fill or bytes(self.unit), dtype=view.dtype)[0]
        return content

    def _on_the_way(self, content: Array) -> Array:
        if self.converted is None:
            return content
        return self.converted(content.view(np.uint8)).view(content.dtype)

    def first_unwritten(self, memory: Bytes, source: Places) -> tuple[int, int] | None:
        """(row, byte number in the memory) of the first source unit with a never-written byte."""
        if self.written:
            return None
        for rows in self.pieces():
            places = source.part(rows).units
            inside = None if self.inside is None else self.inside[rows]
            good = memory.shadows[self.unit][places if inside is None else np.where(inside, places, 0)]
            good = good == WRITTEN[self.unit]
            if inside is not None:
                good |= ~inside
            if not good.all():
                row, column = (int(i) for i in np.unravel_index(np.argmin(good), good.shape))
                return rows.start + row, int(places[row, column]) * self.unit
        return None


def multicast(batch: MemoryBatch, transfer: Transfer, place: Array, masks: Array) -> tuple[Transfer, Array]:
    """A row for each CTA in the mask of each row (bit r: rank r of the cluster), and the barrier's place for each.

    Data and completion go to the same offsets in every CTA. Raises LaneFault (position: row) for a mask that is empty
    or names a CTA that is not in the cluster or has exited.
    """
    size = batch.cluster_size
    wrong = (masks >> size != 0) | (masks == 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"multicast: CTA mask {int(masks[row]):#x} in a cluster of {size} CTAs"
        raise LaneFault(FaultKind.SHARED_OUT_OF_BOUNDS, message, row)
    rows, ranks = np.nonzero(masks[:, None] >> np.arange(size) & 1)
    spread = transfer.part(rows)
    slots = batch.slot[spread.lanes] - batch.rank[spread.lanes] + ranks
    gone = ~batch.running_ctas()[slots]
    if gone.any():
        message = f"multicast into the CTA of rank {int(ranks[np.argmax(gone)])}, which has exited"
        raise LaneFault(FaultKind.USE_AFTER_FREE, message, int(rows[np.argmax(gone)]))
    units = batch.shared_stride // transfer.unit
    shared = replace(spread.shared, first=spread.shared.first % units + slots * units)
    return replace(spread, shared=shared), place[rows] % batch.shared_stride + slots * batch.shared_stride


def check_signal(batch: Storage, signal: Array, first: Array) -> None:
    """Raises LaneFault (position: row) where a barrier lies in another CTA than the bytes at ``first``; both are byte
    numbers in ``batch.shared``."""
    apart = signal // batch.shared_stride != first // batch.shared_stride
    if apart.any():
        message = "the mbarrier lies in another CTA than the bytes whose arrival it shall tell"
        raise LaneFault(FaultKind.ASYNC_MISUSE, message, int(np.argmax(apart)))


def put(memory: Bytes, unit: int, places: Places, content: Array, inside: Array | None) -> None:
    """Writes units, all or those ``inside``, and marks them as written. If rows overlap, the last one wins."""
    view, shadow = memory.views[UNITS[unit]], memory.shadows[unit]
    units = places.units
    if inside is None:
        view[units] = content
        places.fill(shadow, WRITTEN[unit])
    else:
        view[units[inside]] = content[inside]
        shadow[units[inside]] = WRITTEN[unit]


def forget(memory: Bytes, unit: int, places: Places) -> None:
    """Marks units as never written, since their content is about to be replaced."""
    places.fill(memory.shadows[unit], memory.shadows[unit].dtype.type(0))
