"""The functions in Python behind the libraries of an interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from lowdnn.capi.stubs.interface import Interface
from lowdnn.capi.stubs.starter import forbid_start


class Connection:
    """The tables of libraries that lead to the same functions.

    callbacks: C function pointers by name; names that are missing answer by themselves.
    """

    def __init__(self, interface: Interface, callbacks: Mapping[str, Any]) -> None:
        self._interface = interface
        self._callbacks = callbacks
        self._tables: dict[int, ctypes.Array[Any]] = {}

    def connect(self, library: ctypes.CDLL) -> bool:
        """Fills the library's table, which then starts no Python; False for a library that has none."""
        table = self._interface.table_in(library)
        if table is None:
            return False
        for index, name in enumerate(self._interface.names):
            callback = self._callbacks.get(name)
            if callback is not None:
                table[index] = ctypes.cast(callback, ctypes.c_void_p)
        self._tables[ctypes.addressof(table)] = table
        forbid_start(library)
        return True

    def end(self) -> None:
        """Empties the tables, so that later calls reach the stubs alone."""
        for table in self._tables.values():
            ctypes.memset(table, 0, ctypes.sizeof(table))
