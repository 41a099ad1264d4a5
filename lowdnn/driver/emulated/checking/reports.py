"""Reports of data races, as their reader sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowdnn.driver.emulated.faults import Dim3, FaultKind, LaneFault
from lowdnn.driver.emulated.lanes import Storage
from lowdnn.driver.emulated.memory.arena import Bytes
from lowdnn.driver.emulated.memory.space import ARENA_BASE


@dataclass(frozen=True)
class Earlier:
    """The earlier access of a race: ``what`` is read or write, ``actor`` the warp or copy, ``place`` the PTX line."""

    what: str
    block: Dim3
    actor: str
    place: str

    def __str__(self) -> str:
        return f"the {self.what} by {self.actor} of block {self.block} at {self.place}"


@dataclass(frozen=True)
class EarlierLaunch:
    """An access by the launch before."""

    what: str
    kernel: str
    place: str

    def __str__(self) -> str:
        return f"the {self.what} by the launch of {self.kernel} before it at {self.place} (griddepcontrol.wait does)"


@dataclass(frozen=True)
class EarlierElsewhere:
    """An access by another launch, which may still be running."""

    what: str
    kernel: str
    device: int
    block: Dim3
    actor: str
    place: str

    def __str__(self) -> str:
        who = f"{self.actor} of block {self.block} of kernel {self.kernel} on device {self.device}"
        return f"the {self.what} by {who} at {self.place}"


#: (batch, memory, byte number in it, position in the group, does it write, the earlier access) -> the fault.
Maker = Callable[[Storage, Bytes, int, int, bool, object], LaneFault]


def data_race(batch: Storage, memory: Bytes, byte: int, position: int, write: bool, earlier: object) -> LaneFault:
    message = f"nothing orders this {'write' if write else 'read'} after {earlier}"
    return _at(FaultKind.DATA_RACE, message, batch, memory, byte, position)


def missing_fence(batch: Storage, memory: Bytes, byte: int, position: int, write: bool, earlier: object) -> LaneFault:
    message = f"no fence.proxy.async lies between {earlier} and its use by asynchronous work"
    return _at(FaultKind.MISSING_PROXY_FENCE, message, batch, memory, byte, position)


def missing_map_fence(
    batch: Storage, memory: Bytes, byte: int, position: int, write: bool, earlier: object
) -> LaneFault:
    message = (
        f"no release and acquire fences of the tensormap proxy lie between {earlier} and the use of the tensor map "
        "(fence.proxy.tensormap::generic)"
    )
    return _at(FaultKind.MISSING_PROXY_FENCE, message, batch, memory, byte, position)


def _at(kind: FaultKind, message: str, batch: Storage, memory: Bytes, byte: int, position: int) -> LaneFault:
    address = byte + ARENA_BASE if memory is batch.arena else byte % batch.shared_stride
    label, offset = memory.name_of(address)
    return LaneFault(kind, message, position, address, label, offset)
