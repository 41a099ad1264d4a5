"""Access of one emulated device to another's memory: by peer access, and by handles for interprocess communication.

Handles reach no other process, since all emulated devices live in one; who opens one may use its memory at the address
that the owner uses.
"""

from __future__ import annotations

import os
import struct

from lowdnn.driver.base import IPC_HANDLE_BYTES
from lowdnn.driver.emulated.context import Contexts
from lowdnn.driver.emulated.moves import on_device
from lowdnn.driver.emulated.results import driver_error
from lowdnn.driver.emulated.state import DeviceState, event_of
from lowdnn.driver.emulated.streams import submit
from lowdnn.driver.results import CuResult

#: The content of a handle: its kind, the process, and an address or an event's handle.
_HANDLE = struct.Struct("<16sQQ")
_MEMORY, _EVENT = b"lowdnn memory", b"lowdnn event"


class PeerCalls:
    """The calls of ``Driver`` that reach another device or process."""

    def __init__(self, context: Contexts) -> None:
        self._context = context

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        for one in (device, peer):
            self._context.check_device("cuDeviceCanAccessPeer", one)
        return device != peer

    def context_enable_peer_access(self, peer_context: int) -> None:
        call = "cuCtxEnablePeerAccess"
        with self._context.entered(call, peer_context) as state:
            peer = self._context.state_of(call, peer_context)
            if peer is state:
                raise driver_error(call, CuResult.INVALID_DEVICE, f"{peer_context:#x}", "a device is no peer of itself")
            if peer.number in state.memory.peers:
                raise driver_error(call, CuResult.PEER_ACCESS_ALREADY_ENABLED, f"{peer_context:#x}")
            state.memory.peers.add(peer.number)
            state.memory.reach_changed()

    def context_disable_peer_access(self, peer_context: int) -> None:
        call = "cuCtxDisablePeerAccess"
        with self._context.entered(call, peer_context) as state:
            peer = self._context.state_of(call, peer_context)
            if peer.number not in state.memory.peers:
                raise driver_error(call, CuResult.PEER_ACCESS_NOT_ENABLED, f"{peer_context:#x}")
            state.memory.peers.discard(peer.number)
            state.memory.reach_changed()

    def memcpy_peer_async(
        self,
        destination: int,
        destination_context: int,
        source: int,
        source_context: int,
        size_bytes: int,
        stream: int,
    ) -> None:
        call = "cuMemcpyPeerAsync"
        with self._context.entered(call, destination, source, size_bytes) as state:
            for address, context in ((destination, destination_context), (source, source_context)):
                _check_owner(self._context.state_of(call, context), call, address)
            if size_bytes:
                submit(state, stream, on_device(state.memory, destination, source, size_bytes))

    # -- interprocess communication -------------------------------------------------------------------------
    def ipc_get_mem_handle(self, address: int) -> bytes:
        call = "cuIpcGetMemHandle"
        with self._context.entered(call, address) as state:
            found = state.system.space.at(address)
            problem = ""
            if found is None or found.address != address:
                problem = "expected the start of an allocation"
            elif found.pooled:
                problem = "memory of a stream-ordered pool has no such handle; take cuMemAlloc"
            if problem:
                raise driver_error(call, CuResult.INVALID_VALUE, f"{address:#x}", problem)
            return _made(_MEMORY, address)

    def ipc_open_mem_handle(self, handle: bytes) -> int:
        call = "cuIpcOpenMemHandle"
        with self._context.entered(call) as state:
            address = _content(call, _MEMORY, handle)
            found = state.system.space.at(address)
            if found is None or found.address != address:
                raise driver_error(call, CuResult.INVALID_HANDLE, f"{address:#x}", "the memory has been freed")
            state.memory.opened[address] += 1
            state.memory.reach_changed()
            return address

    def ipc_close_mem_handle(self, address: int) -> None:
        call = "cuIpcCloseMemHandle"
        with self._context.entered(call, address) as state:
            if not state.memory.opened[address]:
                raise driver_error(call, CuResult.INVALID_VALUE, f"{address:#x}", "not opened by a handle")
            state.memory.opened[address] -= 1
            state.memory.reach_changed()

    def ipc_get_event_handle(self, event: int) -> bytes:
        call = "cuIpcGetEventHandle"
        with self._context.entered(call, event) as state:
            found = event_of(state, call, event)
            if not found.shared or found.timed:
                problem = "expected an event with EventFlags.INTERPROCESS and DISABLE_TIMING"
                raise driver_error(call, CuResult.INVALID_HANDLE, f"{event:#x}", problem)
            return _made(_EVENT, event)

    def ipc_open_event_handle(self, handle: bytes) -> int:
        call = "cuIpcOpenEventHandle"
        with self._context.entered(call) as state:
            return state.add(state.events, event_of(state, call, _content(call, _EVENT, handle)))


def _check_owner(state: DeviceState, call: str, address: int) -> None:
    """Raises DriverError where an address is not of memory of ``state``'s device."""
    found = state.system.space.at(address)
    if found is None or found.device != state.number:
        owner = "no device" if found is None else f"device {found.device}"
        problem = f"expected memory of device {state.number}, got memory of {owner}"
        raise driver_error(call, CuResult.INVALID_VALUE, f"{address:#x}", problem)


def _made(kind: bytes, value: int) -> bytes:
    return _HANDLE.pack(kind, os.getpid(), value).ljust(IPC_HANDLE_BYTES, b"\0")


def _content(call: str, kind: bytes, handle: bytes) -> int:
    """The address or the event in a handle."""
    if len(handle) != IPC_HANDLE_BYTES or not handle.startswith(kind):
        raise driver_error(call, CuResult.INVALID_VALUE, explanation=f"no handle of {kind.decode()}")
    _, process, value = _HANDLE.unpack(handle[: _HANDLE.size])
    if process != os.getpid():
        raise driver_error(call, CuResult.INVALID_HANDLE, explanation="a handle of another process")
    return int(value)
