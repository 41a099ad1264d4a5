"""The accesses of launches and copies beside which others may run: on several devices, or in streams of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from lowdnn.driver.emulated.checking import epochs
from lowdnn.driver.emulated.checking.accesses import READER_ROWS
from lowdnn.driver.emulated.checking.launch import LaunchHistory
from lowdnn.driver.emulated.checking.reports import EarlierElsewhere
from lowdnn.driver.emulated.checking.task_order import TaskOrder
from lowdnn.driver.emulated.faults import FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.space import ARENA_BASE

#: The knowledge that a release hands on: by launch, up to which time each column's accesses are known.
Passed = Mapping[LaunchHistory, Array]
_UNIT = 4


@dataclass(frozen=True)
class CopyRecord:
    """A copy or a fill of bytes ``first`` to ``end`` of global memory by ``device``; ``what``: read or write."""

    order: TaskOrder
    device: int
    first: int
    end: int
    what: str

    def __str__(self) -> str:
        return f"the {self.what} by a copy or fill on device {self.device}"


@dataclass
class Records:
    """``launches`` and ``copies`` so far, as long as something may run beside them.

    ``locations``: by the device within which threads synchronise, or None for all, and the byte of global memory by
    which they do: what a reader acquires.
    """

    launches: list[LaunchHistory] = field(default_factory=list)
    copies: list[CopyRecord] = field(default_factory=list)
    locations: dict[tuple[int | None, int], Passed] = field(default_factory=dict)

    def forget(self, is_over: Callable[[TaskOrder], bool]) -> None:
        """Forgets what nothing can run beside any more, and what knows of nothing else."""
        running = {one for one in self.launches if not is_over(one.order)}
        self.launches = [one for one in self.launches if one in running or not running.isdisjoint(one.learned)]
        self.copies = [one for one in self.copies if not is_over(one.order)]
        if not self.launches:
            self.locations.clear()

    def queues(self) -> set[object]:
        """The streams of what has been noted."""
        return {one.order.queue for one in self.launches} | {one.order.queue for one in self.copies}

    def inherited(self, order: TaskOrder) -> dict[LaunchHistory, Array]:
        """The knowledge of other launches that a task has from the launches before it."""
        known: dict[LaunchHistory, Array] = {}
        for launch in self.launches:
            if order.comes_after(launch.order):
                known = latest(known, launch.learned)
        return {launch: clock for launch, clock in known.items() if not order.follows(launch.order)}

    def add_copy(self, order: TaskOrder, device: int, first: int, size_bytes: int, *, write: bool) -> None:
        """Notes a side of a copy. Raises LaneFault where it is not ordered after an access that it conflicts with."""
        made = CopyRecord(order, device, first, first + size_bytes, "write" if write else "read")
        known = self.inherited(order)
        for other in self.copies:
            conflicts = (write or other.what == "write") and other.first < made.end and made.first < other.end
            if conflicts and not _is_after(order, known, other.order):
                raise _race(made, max(other.first, made.first), other)
        for launch in self.launches:
            if not _is_after(order, known, launch.order):
                _check_launch(made, launch, known.get(launch))
        self.copies.append(made)


def latest(one: Passed, other: Passed) -> dict[LaunchHistory, Array]:
    """The knowledge of both."""
    merged = dict(one)
    for launch, clock in other.items():
        merged[launch] = np.maximum(merged[launch], clock) if launch in merged else clock
    return merged


def _is_after(order: TaskOrder, known: Passed, other: TaskOrder) -> bool:
    """Whether a task comes after another one, or after something in a launch that does."""
    return order.follows(other) or any(one.order.comes_after(other) and clock.any() for one, clock in known.items())


def _check_launch(made: CopyRecord, launch: LaunchHistory, known: Array | None) -> None:
    """Raises LaneFault where a copy is not ordered after an access of a launch, of which ``known`` is known."""
    held = launch.accesses
    first, end = (made.first - ARENA_BASE) >> _UNIT, -(-(made.end - ARENA_BASE) >> _UNIT)
    places = np.arange(first, max(end, first + 1))
    sides = [("write", held.written(places, _UNIT))]
    if made.what == "write":
        sides += [("read", held.read_by(row, places, _UNIT)) for row in range(READER_ROWS)]
    for what, found in sides:
        starts = ((places[:, None] << _UNIT) + (np.arange(found.shape[1]) << held.shift)) + ARENA_BASE
        found = found if known is None else np.where(known[epochs.column_of(found)] > epochs.time_of(found), 0, found)
        touched = (found != 0) & (starts + (1 << held.shift) > made.first) & (starts < made.end)
        if touched.any():
            entry, granule = (int(i) for i in np.argwhere(touched)[0])
            raise _race(made, int(starts[entry, granule]), earlier_elsewhere(launch, what, int(found[entry, granule])))


def earlier_elsewhere(launch: LaunchHistory, what: str, epoch: int) -> EarlierElsewhere:
    """The access of another launch that has an epoch."""
    block, actor = launch.who(epoch)
    return EarlierElsewhere(
        what, launch.kernel_name, launch.device, block, actor, launch.text_of(epochs.site_of(epoch))
    )


def _race(made: CopyRecord, address: int, earlier: object) -> LaneFault:
    message = f"nothing orders {made} after {earlier}"
    return LaneFault(FaultKind.DATA_RACE, message, address=address)
