"""The common part of the tiles of the persistent recurrences on warpgroups, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.engines.model.occupancy import consumer_registers, launched_registers

#: Elements of a chunk of k.
CHUNK = 64
#: Bytes of a chunk of a row.
LINE_BYTES = 128
#: Chunks that a group can count.
MOST_CHUNKS = 32
#: Bytes of a barrier in shared memory.
BARRIER_BYTES = 8


@dataclass(frozen=True)
class WarpgroupTile:
    """columns: sequences of a product.  chunks: chunks of k that a block multiplies.  warpgroups: the warpgroups that
    multiply; one more copies.  register_chunks: chunks of a warpgroup whose weights lie in registers.

    kept_registers: registers of a thread of the copying warpgroup where it hands some over.
    """

    columns: int
    chunks: int
    warpgroups: int
    register_chunks: int

    kept_registers: ClassVar[int]

    @property
    def threads(self) -> int:
        return (self.warpgroups + 1) * 4 * WARP_SIZE

    @property
    def chunk_bytes(self) -> int:
        return self.columns * LINE_BYTES

    @property
    def taken_registers(self) -> int:
        """Registers of a consumer's thread where the copying warpgroup hands some over; 0 where all have enough."""
        if self.warpgroups == 1:
            return 0
        return consumer_registers(launched_registers(self.threads), self.warpgroups, self.kept_registers)

    @property
    def most_registers(self) -> int:
        """Registers that a consumer's thread can have."""
        return self.taken_registers or launched_registers(self.threads)

    @property
    def register_macros(self) -> tuple[tuple[str, int | str], ...]:
        return (("REGISTERS", self.taken_registers), ("KEPT_REGISTERS", self.kept_registers))
