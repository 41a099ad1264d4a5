"""A shared object whose functions jump through an exported table, or do little where an entry is empty."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from lowdnn.capi.elf.shared_object import Parts, shared_object
from lowdnn.capi.elf.tables import FIRST_VERSION, FUNCTION, OBJECT, UNVERSIONED, Symbol
from lowdnn.capi.stubs.fallbacks import Fallbacks
from lowdnn.capi.stubs.packs import CODES, POOL_BYTES, POOL_NAME
from lowdnn.capi.stubs.plain import PlainStubs
from lowdnn.capi.stubs.starter import SLOT_BYTES, STATE_NAME, STATE_OFFSET
from lowdnn.capi.stubs.starting import StartingStubs

Stubs: TypeAlias = PlainStubs | StartingStubs

_ENTRY_BYTES = 8
_STUB_ALIGN = 16


@dataclass(frozen=True)
class Interface:
    """soname: the name of the library, and the version of its functions.  names: the names of its functions, sorted.

    table: the exported table, an address of 8 bytes for each of ``names``.  fallbacks: the results of empty entries.
    has_packs: whether the library keeps variant packs by itself (``packs``), on machines that have code for it.
    """

    soname: str
    names: tuple[str, ...]
    table: str
    fallbacks: Fallbacks
    has_packs: bool = False

    @property
    def table_bytes(self) -> int:
        return _ENTRY_BYTES * len(self.names)

    @property
    def emptying(self) -> str:
        """The name of a function ``void(void)`` that empties the table."""
        return f"{self.table}_empty"

    def table_in(self, library: ctypes.CDLL) -> ctypes.Array[Any] | None:
        """The table of a library that is loaded; None where it has none."""
        try:
            return (ctypes.c_void_p * len(self.names)).in_dll(library, self.table)
        except ValueError:
            return None

    def written(self, stubs: Stubs) -> bytes:
        """The file of the library, with ``stubs`` behind the names."""
        offsets, sizes = self._placed(stubs)
        symbols = [
            Symbol(name, ".text", offset, size, FUNCTION, FIRST_VERSION)
            for name, offset, size in zip(self.names, offsets, sizes, strict=False)
        ]
        size = len(stubs.emptying(0, 0, 0))
        symbols.append(Symbol(self.emptying, ".text", offsets[-1], size, FUNCTION, UNVERSIONED))
        zeroed_bytes = self._pool_offset(stubs)
        data = [Symbol(self.table, ".bss", 0, self.table_bytes, OBJECT, UNVERSIONED)]
        if stubs.slots_bytes:
            data.append(Symbol(STATE_NAME, ".bss", self.table_bytes + STATE_OFFSET, SLOT_BYTES, OBJECT, UNVERSIONED))
        if self._keeps_packs(stubs):
            data.append(Symbol(POOL_NAME, ".bss", zeroed_bytes, POOL_BYTES, OBJECT, UNVERSIONED))
            zeroed_bytes += POOL_BYTES
        return shared_object(
            Parts(
                machine=stubs.machine,
                library=self.soname,
                version_node=self.soname,
                symbols=[*symbols, *data],
                code=self._code(stubs, offsets),
                constants=stubs.constants,
                zeroed_bytes=zeroed_bytes,
                needed=stubs.needed,
                imports={name: self.table_bytes + offset for name, offset in stubs.imports.items()},
                relocation=stubs.relocation,
            )
        )

    def _placed(self, stubs: Stubs) -> tuple[list[int], list[int]]:
        """(offsets, sizes) of the stubs in .text, behind the common code; one more offset is that of ``emptying``."""
        sizes = [len(self._stub(stubs, name, 0, 0, 0, 0, 0)) for name in self.names]
        offsets = [_aligned(len(stubs.common(0, 0, 0)))]
        for size in sizes:
            offsets.append(_aligned(offsets[-1] + size))
        return offsets, sizes

    def _code(self, stubs: Stubs, offsets: list[int]) -> Callable[[int, int, int], bytes]:
        """The text for given addresses of text, constants and table: the common code, and each stub at its offset."""

        def code(text: int, constants: int, table: int) -> bytes:
            content = bytearray(offsets[-1])
            common = stubs.common(text, table + self.table_bytes, constants)
            content[: len(common)] = common
            for index, (name, offset) in enumerate(zip(self.names, offsets, strict=False)):
                stub = self._stub(stubs, name, index, text + offset, table, constants, text)
                content[offset : offset + len(stub)] = stub
            return bytes(content) + stubs.emptying(table, len(self.names), text + offsets[-1])

        return code

    def _stub(self, stubs: Stubs, name: str, index: int, at: int, table: int, constants: int, common: int) -> bytes:
        """The code of a function at ``at``: the work on variant packs, where it has some, and the stub behind it."""
        own = b""
        if self._keeps_packs(stubs):
            own = CODES[stubs.machine](name, at, table + self._pool_offset(stubs))
        return own + stubs.stub(name, at + len(own), table + _ENTRY_BYTES * index, constants, common)

    def _keeps_packs(self, stubs: Stubs) -> bool:
        return self.has_packs and stubs.machine in CODES

    def _pool_offset(self, stubs: Stubs) -> int:
        """The offset of the pool, which lies behind the table."""
        return self.table_bytes + stubs.slots_bytes


def _aligned(offset: int) -> int:
    return -(-offset // _STUB_ALIGN) * _STUB_ALIGN
