"""Copies and fills of the emulated device's memory, as work for streams and graphs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from lowdnn.driver.emulated.graphs import OtherWork
from lowdnn.driver.emulated.memory.arena import Arena


def to_device(memory: Arena, destination: int, source_host: int, size_bytes: int, *, keeps: bool = False) -> OtherWork:
    """``keeps``: the source is read now, as that of pageable memory is, and not when the copy runs."""
    memory.require(destination, size_bytes)
    source = _host_bytes(source_host, size_bytes)
    source = source.copy() if keeps else source
    return OtherWork(lambda: memory.host_write(destination, source), size_bytes, writes=destination)


def to_host(memory: Arena, destination_host: int, source: int, size_bytes: int) -> OtherWork:
    memory.require(source, size_bytes)

    def copy() -> None:
        _host_bytes(destination_host, size_bytes)[:] = memory.host_read(source, size_bytes)

    return OtherWork(copy, size_bytes, reads=source)


def on_device(memory: Arena, destination: int, source: int, size_bytes: int) -> OtherWork:
    memory.require(destination, size_bytes)
    memory.require(source, size_bytes)
    return OtherWork(lambda: memory.copy(destination, source, size_bytes), size_bytes, source, destination)


def fill(memory: Arena, destination: int, value: int, count: int, width_bytes: int) -> OtherWork:
    """``count`` times ``value`` in ``width_bytes`` bytes."""
    size_bytes = count * width_bytes
    memory.require_reach(destination, size_bytes)
    return OtherWork(lambda: memory.fill(destination, value, count, width_bytes), size_bytes, writes=destination)


def _host_bytes(address: int, size_bytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
