"""Memory: allocations, copies, fills, and the attributes of pointers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from enum import IntEnum

from lowdnn.capi.cudart.state import DEVICE, RuntimeState
from lowdnn.capi.errors import Call
from lowdnn.capi.memory import Address, checked, write_bytes, write_pointer
from lowdnn.driver.base import Driver
from lowdnn.status import BadParamError


class CopyKind(IntEnum):
    """cudaMemcpyKind."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4


#: cudaMemoryType of host memory that the runtime does not know, and of device memory.
_UNREGISTERED = 0
#: cudaMemoryType of device memory.
_DEVICE = 2


def allocate(state: RuntimeState, pointer: Address, size_bytes: int) -> None:
    """Writes the address of new memory; NULL for 0 bytes, as in the runtime."""
    checked(pointer, "cudaMalloc.devPtr")
    write_pointer(pointer, state.entered().mem_alloc(size_bytes) if size_bytes else 0, "cudaMalloc.devPtr")


def free(state: RuntimeState, pointer: Address) -> None:
    state.entered().mem_free(pointer or 0)


def allocate_async(state: RuntimeState, pointer: Address, size_bytes: int, stream: Address) -> None:
    checked(pointer, "cudaMallocAsync.devPtr")
    write_pointer(pointer, state.entered().mem_alloc_async(size_bytes, stream or 0), "cudaMallocAsync.devPtr")


def free_async(state: RuntimeState, pointer: Address, stream: Address) -> None:
    state.entered().mem_free_async(pointer or 0, stream or 0)


def copy(state: RuntimeState, destination: Address, source: Address, count: int, kind: int) -> None:
    copy_async(state, destination, source, count, kind, 0)


def copy_async(
    state: RuntimeState, destination: Address, source: Address, count: int, kind: int, stream: Address
) -> None:
    driver = state.entered()
    to, of, on = destination or 0, source or 0, stream or 0
    match copy_kind(driver, to, of, kind):
        case CopyKind.HOST_TO_DEVICE:
            driver.memcpy_htod_async(to, of, count, on)
        case CopyKind.DEVICE_TO_HOST:
            driver.memcpy_dtoh_async(to, of, count, on)
        case CopyKind.DEVICE_TO_DEVICE:
            driver.memcpy_dtod_async(to, of, count, on)
        case _:
            ctypes.memmove(to, of, count)


def copy_kind(driver: Driver, destination: int, source: int, kind: int) -> CopyKind:
    """The kind of a copy; for DEFAULT it follows from the pointers. Raises BadParamError."""
    if kind not in (*CopyKind,):
        raise BadParamError.at("cudaMemcpy.kind", expected="0 to 4", got=kind)
    if kind != CopyKind.DEFAULT:
        return CopyKind(kind)
    is_to, is_of = (driver.pointer_info(address) is not None for address in (destination, source))
    if is_of:
        return CopyKind.DEVICE_TO_DEVICE if is_to else CopyKind.DEVICE_TO_HOST
    return CopyKind.HOST_TO_DEVICE if is_to else CopyKind.HOST_TO_HOST


def fill(state: RuntimeState, pointer: Address, value: int, count: int) -> None:
    fill_async(state, pointer, value, count, 0)


def fill_async(state: RuntimeState, pointer: Address, value: int, count: int, stream: Address) -> None:
    state.entered().memset_d8_async(pointer or 0, value & 0xFF, count, stream or 0)


def memory_info(state: RuntimeState, free_bytes: Address, total_bytes: Address) -> None:
    for address, value in zip((free_bytes, total_bytes), state.entered().mem_get_info(), strict=True):
        write_pointer(address, value, "cudaMemGetInfo")


def pointer_attributes(state: RuntimeState, attributes: Address, pointer: Address) -> None:
    """Writes the kind of memory, its device and the pointer, with which a cudaPointerAttributes begins."""
    found = state.entered().pointer_info(pointer or 0)
    if found is None:
        content = struct.pack("<iiQQ", _UNREGISTERED, -2, 0, pointer or 0)
    else:
        content = struct.pack("<iiQQ", _DEVICE, DEVICE, pointer, 0)
    write_bytes(attributes, content, "cudaPointerGetAttributes.attributes")


CALLS: Mapping[str, Call] = {
    "cudaMalloc": allocate,
    "cudaFree": free,
    "cudaMallocAsync": allocate_async,
    "cudaFreeAsync": free_async,
    "cudaMemcpy": copy,
    "cudaMemcpyAsync": copy_async,
    "cudaMemset": fill,
    "cudaMemsetAsync": fill_async,
    "cudaMemGetInfo": memory_info,
    "cudaPointerGetAttributes": pointer_attributes,
}
