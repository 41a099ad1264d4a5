"""What an architecture gives products of wgmma."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.gemm.instructions import WgmmaType
from lowdnn.engines.gemm.wgmma_tiles import WgmmaTile

#: Shared memory that the device keeps for itself, for each block.
_RESERVED_SHARED_BYTES = 1024


@dataclass(frozen=True)
class Machine:
    """What the architecture gives products of one type.

    flops: of one multiprocessor, operations per second.  copy_bytes_per_s: of the device.  launch_s: of a launch.
    """

    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    flops: float
    copy_bytes_per_s: float
    launch_s: float

    @classmethod
    def of(cls, kind: WgmmaType, arch: ArchSpec) -> Machine:
        return cls(
            arch.sm_count,
            arch.shared_bytes_per_block,
            arch.shared_bytes_per_sm,
            arch.attained_rate(kind.unit) / arch.sm_count,
            arch.copy_bytes_per_s,
            arch.timings.launch_s,
        )

    def shared_budget(self, tile: WgmmaTile) -> int:
        """Bytes that a block may have."""
        return min(self.shared_bytes_per_block, self.shared_bytes_per_sm // tile.blocks_per_sm - _RESERVED_SHARED_BYTES)

    def clusters(self, tile: WgmmaTile) -> int:
        """That are resident at once."""
        return tile.resident_clusters(self.sm_count)
