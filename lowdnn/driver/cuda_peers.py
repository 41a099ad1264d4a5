"""The real driver's calls that reach another device or process."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from lowdnn.driver.base import IPC_HANDLE_BYTES


class CudaPeerCalls(ABC):
    """A part of ``CudaDriver``, which makes the calls themselves."""

    _cu: Any

    def device_can_access_peer(self, device: int, peer: int) -> bool:
        return bool(self._call("cuDeviceCanAccessPeer", device, peer))

    def context_enable_peer_access(self, peer_context: int) -> None:
        self._call("cuCtxEnablePeerAccess", peer_context, 0)

    def context_disable_peer_access(self, peer_context: int) -> None:
        self._call("cuCtxDisablePeerAccess", peer_context)

    def memcpy_peer_async(
        self,
        destination: int,
        destination_context: int,
        source: int,
        source_context: int,
        size_bytes: int,
        stream: int,
    ) -> None:
        pair = (destination, destination_context, source, source_context)
        self._call("cuMemcpyPeerAsync", *pair, size_bytes, stream)

    # -- interprocess communication -------------------------------------------------------------------------
    def ipc_get_mem_handle(self, address: int) -> bytes:
        return ctypes.string_at(self._call("cuIpcGetMemHandle", address).getPtr(), IPC_HANDLE_BYTES)

    def ipc_open_mem_handle(self, handle: bytes) -> int:
        call = "cuIpcOpenMemHandle"
        opaque = self._ipc_handle(call, self._cu.CUipcMemHandle, handle)
        return int(self._call(call, opaque, self._cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))

    def ipc_close_mem_handle(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def ipc_get_event_handle(self, event: int) -> bytes:
        return ctypes.string_at(self._call("cuIpcGetEventHandle", event).getPtr(), IPC_HANDLE_BYTES)

    def ipc_open_event_handle(self, handle: bytes) -> int:
        call = "cuIpcOpenEventHandle"
        return int(self._call(call, self._ipc_handle(call, self._cu.CUipcEventHandle, handle)))

    def _ipc_handle(self, call: str, make: Callable[[], Any], handle: bytes) -> Any:
        if len(handle) != IPC_HANDLE_BYTES:
            self._refuse(call, len(handle), f"handle: expected {IPC_HANDLE_BYTES} bytes, got {len(handle)}")
        opaque = make()
        ctypes.memmove(opaque.getPtr(), handle, IPC_HANDLE_BYTES)
        return opaque

    @abstractmethod
    def _call(self, name: str, *arguments: Any) -> Any: ...

    @abstractmethod
    def _refuse(self, call: str, argument: Any, problem: str) -> None: ...
