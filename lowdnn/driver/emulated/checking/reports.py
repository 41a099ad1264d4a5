"""What a data race looks like to who reads the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowdnn.driver.emulated.faults import Dim3, FaultKind, LaneFault
from lowdnn.driver.emulated.memory.arena import ARENA_BASE, Bytes

if TYPE_CHECKING:
    from lowdnn.driver.emulated.running.batch import Batch


@dataclass(frozen=True)
class Earlier:
    """The access that came first: ``what`` is read or write, ``place`` its line in the PTX."""

    what: str
    block: Dim3
    warp: int
    place: str

    def __str__(self) -> str:
        return f"the {self.what} by warp {self.warp} of block {self.block} at {self.place}"


def data_race(batch: Batch, memory: Bytes, byte: int, position: int, write: bool, earlier: Earlier) -> LaneFault:
    """A fault for byte number ``byte`` of a memory of the batch."""
    address = byte + ARENA_BASE if memory is batch.arena else byte % batch.shared_stride
    label, offset = memory.name_of(address)
    message = f"nothing orders this {'write' if write else 'read'} after {earlier}"
    return LaneFault(FaultKind.DATA_RACE, message, position, address, label, offset)
