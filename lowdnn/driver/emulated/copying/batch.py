"""The interface of a batch that asynchronous copies use: barriers, times of landing, and watchers of the copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lowdnn.driver.emulated.copying.pending import PendingCopy
from lowdnn.driver.emulated.faults import Dim3
from lowdnn.driver.emulated.lanes import Lanes
from lowdnn.driver.emulated.memory.arena import Array
from lowdnn.driver.emulated.memory.batch import AccessWatcher, MemoryBatch

if TYPE_CHECKING:
    from lowdnn.driver.emulated.copying.async_work import AsyncWork, BulkCopy
    from lowdnn.driver.emulated.copying.copies import AsyncCopies


class Completion(Protocol):
    """The mbarriers that copies complete at, by their byte numbers in shared memory."""

    def check(self, place: Array) -> None: ...

    def promise(self, place: Array) -> None: ...

    def complete_tx(self, place: Array, tx: Any) -> None: ...

    def landed_arrival(self, lanes: Array, place: Array) -> None: ...


class Landing(Protocol):
    """The policy's choices of when asynchronous work lands."""

    def lands_at_once(self) -> bool: ...

    def lands_now(self, under_way: int) -> int | None: ...

    def lands_next(self, under_way: int) -> int: ...


class WorkWatcher(Protocol):
    """Hooks that bulk copies call."""

    def bulk_issued(self, group: Lanes[object], copy: BulkCopy) -> None: ...

    def bulk_waited(self, lanes: Array, limit: Array, read: bool) -> None: ...


class MapWatcher(Protocol):
    """Hooks for changes, uses and fences of tensor maps; ``first`` are the maps' byte numbers."""

    def changed(self, group: Lanes[object], first: Array, in_global: bool) -> None: ...

    def copied(self, group: Lanes[object], first: Array) -> None: ...

    def used(self, group: Lanes[object], first: Array) -> None: ...

    def release(self, group: Lanes[object]) -> None: ...

    def acquire(self, group: Lanes[object], first: Array) -> None: ...


class CopyWatcher(AccessWatcher, Protocol):
    """Hooks that all copies call."""

    @property
    def work(self) -> WorkWatcher: ...

    @property
    def maps(self) -> MapWatcher: ...

    def copy_issued(self, group: Lanes[object], copy: PendingCopy, source: Array, kept: Array | None) -> None: ...

    def copies_waited(self, lanes: Array, limit: Array) -> None: ...

    def copies_arrive(self, lanes: Array, serial: int) -> None: ...


class CopyingBatch(MemoryBatch, Protocol):
    """The pending copies of a batch, and what they depend on."""

    lane_count: int
    copies: AsyncCopies

    @property
    def async_work(self) -> AsyncWork: ...

    @property
    def mbarriers(self) -> Completion: ...

    @property
    def picker(self) -> Landing: ...

    @property
    def races(self) -> CopyWatcher | None: ...

    def place(self, lane: int) -> tuple[Dim3, Dim3, int, int]:
        """(block, thread, warp, lane in the warp) of a lane."""
