"""Stubs that jump through the table, and answer by themselves where an entry is empty."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from lowdnn.capi.stubs import aarch64, x86_64
from lowdnn.capi.stubs.fallbacks import Fallbacks

#: The modules of stubs by machine.
MODULES: Final[Mapping[str, ModuleType]] = {"x86_64": x86_64, "aarch64": aarch64}


class PlainStubs:
    """The code behind the names.

    machine, needed, imports, relocation: see ``Parts``; imports are placed from the first slot on.  constants: the
    .rodata.  slots_bytes: zeroed memory behind the table.
    """

    relocation = 0
    slots_bytes = 0
    needed: tuple[str, ...] = ()
    imports: Mapping[str, int] = {}

    def __init__(self, module: ModuleType, fallbacks: Fallbacks) -> None:
        self.machine: int = module.MACHINE
        self.constants = fallbacks.constants
        self._module = module
        self._fallbacks = fallbacks

    def common(self, at: int, slots: int, constants: int) -> bytes:
        """Code at address ``at`` that all stubs share."""
        return b""

    def emptying(self, table: int, count: int, at: int) -> bytes:
        """The code of a function that empties the table."""
        content: bytes = self._module.emptying(table, count, at)
        return content

    def stub(self, name: str, at: int, entry: int, constants: int, common: int) -> bytes:
        """The code of the function ``name`` at ``at``, whose table entry is at ``entry``."""
        content: bytes = self._module.stub(self._fallbacks.of(name), at, entry, constants)
        return content
