"""The resources of an architecture for products of wgmma."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.gemm.instructions import WgmmaType
from lowdnn.engines.gemm.wgmma_tiles import WgmmaTile
from lowdnn.engines.model.occupancy import shared_room


@dataclass(frozen=True)
class Machine:
    """The resources of an architecture for products of one type.

    flops: operations per second of one multiprocessor; the terms of a product count once.
    """

    arch: ArchSpec
    flops: float

    @classmethod
    def of(cls, kind: WgmmaType, arch: ArchSpec) -> Machine:
        return cls(arch, arch.attained_rate(kind.unit) / (arch.sm_count * kind.terms))

    @property
    def sm_count(self) -> int:
        return self.arch.sm_count

    def shared_budget(self, tile: WgmmaTile) -> int:
        """Bytes of shared memory available to a block."""
        return shared_room(self.arch, tile.blocks_per_sm)

    def clusters(self, tile: WgmmaTile) -> int:
        """Clusters that are resident at once."""
        return tile.resident_clusters(self.sm_count)
