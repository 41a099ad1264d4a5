"""``cp.async`` copies under way, as the race detector sees them: written by nobody until their warp has waited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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

    def part(self, mask: Array) -> PendingCopy:
        return replace(self, lanes=self.lanes[mask], stage=self.stage[mask], places=self.places[mask])


class PendingCopies:
    """All of them, oldest first."""

    def __init__(self) -> None:
        self._copies: list[PendingCopy] = []

    def add(self, copy: PendingCopy) -> None:
        self._copies.append(copy)

    def waited(self, limit: Array) -> list[PendingCopy]:
        """Takes out the copies of groups below ``limit`` [lanes of the batch]."""
        return self._take(lambda copy: copy.stage < limit[copy.lanes])

    def issued_before(self, lanes: Array, serial: int) -> list[PendingCopy]:
        """Takes out what ``lanes`` issued before number ``serial``."""
        return self._take(lambda copy: np.isin(copy.lanes, lanes) & (copy.serial < serial))

    def _take(self, find: Callable[[PendingCopy], Array]) -> list[PendingCopy]:
        taken, left = [], []
        for copy in self._copies:
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
