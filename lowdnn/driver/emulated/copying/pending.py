"""``cp.async`` copies under way, as the race detector sees them: written by nobody until their warp has waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lowdnn.driver.emulated.memory.arena import Array


@dataclass(frozen=True)
class PendingCopy:
    """Copies of ``lanes`` to ``places`` (units of ``1 << unit`` bytes of shared memory), issued at ``site`` as number
    ``serial``, in each lane's group ``stage``."""

    lanes: Array
    stage: Array
    serial: int
    places: Array
    unit: int
    site: int

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first and the last of its lanes."""
        return int(self.lanes[0]), int(self.lanes[-1])

    def part(self, mask: Array) -> PendingCopy:
        return replace(self, lanes=self.lanes[mask], stage=self.stage[mask], places=self.places[mask])


class PendingCopies:
    """The copies under way, oldest first."""

    def __init__(self) -> None:
        self._copies: list[PendingCopy] = []

    def add(self, copy: PendingCopy) -> None:
        self._copies.append(copy)

    def waited(self, lanes: Array, limit: Array) -> list[PendingCopy]:
        """Takes out what ``lanes``, which ascend, have issued in groups below ``limit`` [lanes of the batch]; the limit
        of other lanes lets nothing pass."""
        return self._take(lanes, lambda copy: copy.stage < limit[copy.lanes])

    def issued_before(self, lanes: Array, serial: int) -> list[PendingCopy]:
        """Takes out what ``lanes``, which ascend, issued before number ``serial``."""
        return self._take(lanes, lambda copy: np.isin(copy.lanes, lanes) & (copy.serial < serial))

    def _take(self, lanes: Array, find: Callable[[PendingCopy], Array]) -> list[PendingCopy]:
        first, last = int(lanes[0]), int(lanes[-1])
        taken, left = [], []
        for copy in self._copies:
            if copy.span[0] > last or copy.span[1] < first:
                left.append(copy)
                continue
            due = find(copy)
            if due.all():
                taken.append(copy)
                continue
            if due.any():
                taken.append(copy.part(due))
                copy = copy.part(~due)
            left.append(copy)
        self._copies = left
        return taken
