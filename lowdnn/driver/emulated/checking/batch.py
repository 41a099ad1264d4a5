"""The interface of a batch that the race detector uses."""

from __future__ import annotations

from typing import Protocol

from lowdnn.driver.emulated.faults import Dim3
from lowdnn.driver.emulated.lanes import Ctas, Geometry, Storage
from lowdnn.driver.emulated.memory.arena import Array


class BarrierNumbers(Protocol):
    """The mbarriers of a batch: their places, numbers and phases."""

    @property
    def count(self) -> int: ...

    def numbers(self, place: Array) -> Array: ...

    def places(self, numbers: Array) -> Array: ...

    def phases(self, numbers: Array) -> Array: ...


class ProductGroups(Protocol):
    """[warps] how many ``wgmma`` groups have been committed and waited for."""

    committed: Array
    completed: Array


class CheckedBatch(Storage, Ctas, Protocol):
    """Where lanes, CTAs and barriers of a batch are."""

    geometry: Geometry
    cta_count: int
    thread: Array

    @property
    def mbarriers(self) -> BarrierNumbers: ...

    @property
    def commit_groups(self) -> ProductGroups: ...

    def block_of(self, cta: int) -> Dim3:
        """The coordinates of a CTA that is given by its linear number."""
