"""The functions in Python behind the libraries of an interface."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from lowdnn.capi.stubs.interface import Interface
from lowdnn.capi.stubs.starter import forbid_start
from lowdnn.forking import tell_after_fork


class Connection:
    """The tables of libraries that lead to the same functions.

    callbacks: C function pointers by name; names that are missing answer by themselves.

    In a child that C has forked, Python may be unusable: another thread was inside of it, which is not there any more
    to leave it. So the C library's ``fork`` empties the tables in each child, and Python's own fork fills them again.
    """

    def __init__(self, interface: Interface, callbacks: Mapping[str, Any]) -> None:
        self._interface = interface
        self._callbacks = callbacks
        self._tables: dict[int, ctypes.Array[Any]] = {}
        self._filled: dict[int, bytes] = {}
        tell_after_fork(self)

    def connect(self, library: ctypes.CDLL) -> bool:
        """Fills the library's table, which then starts no Python; False for a library that has none."""
        table = self._interface.table_in(library)
        if table is None:
            return False
        for index, name in enumerate(self._interface.names):
            callback = self._callbacks.get(name)
            if callback is not None:
                table[index] = ctypes.cast(callback, ctypes.c_void_p)
        place = ctypes.addressof(table)
        if place not in self._tables:
            _call_in_children(library[self._interface.emptying])
        self._tables[place], self._filled[place] = table, bytes(table)
        forbid_start(library)
        return True

    def after_fork(self) -> None:
        for place, content in self._filled.items():
            ctypes.memmove(place, content, len(content))

    def end(self) -> None:
        """Empties the tables, so that later calls reach the stubs alone."""
        self._filled.clear()
        for table in self._tables.values():
            ctypes.memset(table, 0, ctypes.sizeof(table))


def _call_in_children(function: Any) -> None:
    """Calls a C function in every child of the C library's ``fork``, before it returns there."""
    register = ctypes.CDLL(None).__register_atfork
    register.argtypes = (ctypes.c_void_p,) * 4
    register(None, None, ctypes.cast(function, ctypes.c_void_p), None)
