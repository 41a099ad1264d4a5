"""Copies and fills of the emulated device's memory, as work for streams and graphs."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from lowdnn.driver.emulated.graphs import OtherWork
from lowdnn.driver.emulated.memory.arena import Arena


def to_device(memory: Arena, destination: int, source_host: int, size_bytes: int) -> OtherWork:
    return OtherWork(lambda: memory.host_write(destination, _host_bytes(source_host, size_bytes)), size_bytes)


def to_host(memory: Arena, destination_host: int, source: int, size_bytes: int) -> OtherWork:
    def copy() -> None:
        _host_bytes(destination_host, size_bytes)[:] = memory.host_read(source, size_bytes)

    return OtherWork(copy, size_bytes)


def on_device(memory: Arena, destination: int, source: int, size_bytes: int) -> OtherWork:
    return OtherWork(lambda: memory.copy(destination, source, size_bytes), size_bytes)


def fill(memory: Arena, destination: int, value: int, count: int, width_bytes: int) -> OtherWork:
    """``count`` times ``value`` in ``width_bytes`` bytes."""
    return OtherWork(lambda: memory.fill(destination, value, count, width_bytes), count * width_bytes)


def _host_bytes(address: int, size_bytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))
