"""Protocols of lanes and of a batch of CTAs, in which memory, copies and the race detector declare what they need.

``running.batch`` has the classes that fulfil them; a package's own ``batch`` module adds what it alone asks of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lowdnn.driver.emulated.faults import Dim3
from lowdnn.driver.emulated.memory.arena import Arena, Array, Bytes

WARP = 32

BatchT_co = TypeVar("BatchT_co", covariant=True)


@dataclass(frozen=True)
class Geometry:
    """Shape of a launch: blocks, threads and the CTAs (linear numbers) of one batch; the device's multiprocessors.

    ``ctas`` holds whole clusters of ``cluster`` blocks each, one after the other, each in the order of its ranks.
    """

    grid: Dim3
    block: Dim3
    ctas: Array
    sm_count: int
    cluster: Dim3 = (1, 1, 1)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def cta_lanes(self) -> int:
        """Lanes of one CTA: its threads, rounded up to whole warps."""
        return -(-self.threads // WARP) * WARP

    @property
    def cluster_size(self) -> int:
        return self.cluster[0] * self.cluster[1] * self.cluster[2]


class Lanes(Protocol[BatchT_co]):
    """Lanes of a batch that execute an instruction together. ``index`` selects them from an array over the batch: None
    for all, a slice, or lane numbers; the other arrays have an element for each of them."""

    @property
    def batch(self) -> BatchT_co: ...

    @property
    def index(self) -> slice | Array | None: ...

    @property
    def count(self) -> int: ...

    @property
    def lanes(self) -> Array: ...

    @property
    def slots(self) -> Array: ...

    @property
    def shared_base(self) -> Array: ...

    @property
    def local_base(self) -> Array: ...

    @property
    def whole(self) -> bool: ...

    def pick(self, full: Array) -> Array: ...

    def spread(self, value: Any) -> Array: ...

    def subset(self, mask: Array) -> Lanes[BatchT_co]: ...


class Storage(Protocol):
    """Global memory, and the shared memory of all CTAs of a batch, each of ``shared_stride`` bytes."""

    arena: Arena
    shared: Bytes
    shared_stride: int


class Ctas(Protocol):
    """The CTA of each lane: ``slot`` and ``rank`` [lanes] are its numbers in the batch and in its cluster."""

    cluster_size: int
    slot: Array
    rank: Array

    def running_ctas(self) -> Array:
        """[CTAs] bool: which CTAs have a thread that has not exited."""
