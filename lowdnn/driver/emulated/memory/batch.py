"""The interface of a batch that loads, stores and atomics use."""

from __future__ import annotations

from typing import Any, Protocol

from lowdnn.driver.emulated.lanes import Ctas, Lanes, Storage
from lowdnn.driver.emulated.memory.arena import Bytes


class AccessWatcher(Protocol):
    """Hooks for each access, to ``words`` units of ``1 << unit`` bytes at each lane's place."""

    def load(
        self, group: Lanes[object], space: str, places: Any, unit: int, words: int = ..., scope: int = ...
    ) -> None: ...

    def store(
        self, group: Lanes[object], space: str, places: Any, unit: int, words: int = ..., scope: int = ...
    ) -> None: ...

    def update(self, group: Lanes[object], space: str, places: Any, unit: int, scope: int) -> None: ...


class MemoryBatch(Storage, Ctas, Protocol):
    """The bounds of shared and local memory of a batch, and the checks and counts of its accesses."""

    shared_start: int
    shared_end: int
    shared_single: bool
    local: Bytes
    local_start: int
    local_end: int
    checks: bool
    stores: int

    @property
    def races(self) -> AccessWatcher | None: ...

    def note_polled(self, group: Lanes[object], addresses: Any) -> None:
        """Notes where the group has read global memory by a strong load or an atomic."""
