"""A shared object of code, constants and zeroed data, with exported names of which some have a version."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowdnn.capi.elf import layout as elf
from lowdnn.capi.elf.layout import Layout, Section
from lowdnn.capi.elf.tables import (
    NO_SYMBOL,
    StringTable,
    Symbol,
    hash_table,
    symbol_entry,
    version_definitions,
)

_NULL, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 0, 4, 5, 6, 10, 11, 14
_VERSYM, _VERDEF, _VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_DYNAMIC_ENTRIES = 10


@dataclass(frozen=True)
class Parts:
    """machine: the ELF number of the processor.  library: the SONAME.  version_node: of names with a version.

    code: the .text at given addresses of .text, .rodata and .bss; its length is the same at all addresses.
    constants: the .rodata.  zeroed_bytes: the size of .bss, which is writable.
    """

    machine: int
    library: str
    version_node: str
    symbols: Sequence[Symbol]
    code: Callable[[int, int, int], bytes]
    constants: bytes
    zeroed_bytes: int


def shared_object(parts: Parts) -> bytes:
    """The file. Nothing in it is relocated: all code refers to places relative to itself."""
    texts = StringTable([parts.library, parts.version_node, *(symbol.name for symbol in parts.symbols)])
    hashes = hash_table([symbol.name for symbol in parts.symbols])
    versions = struct.pack(f"<{len(parts.symbols) + 1}H", 0, *(symbol.version for symbol in parts.symbols))
    definitions = version_definitions(parts.library, parts.version_node, texts)
    placed = Layout.of(
        (
            Section(".hash", elf.HASH, len(hashes), link=".dynsym", entry_size=4),
            Section(
                ".dynsym", elf.DYNSYM, 24 * (len(parts.symbols) + 1), link=".dynstr", info=1, entry_size=24
            ),
            Section(".dynstr", elf.STRTAB, len(texts.content), align=1),
            Section(".gnu.version", elf.VERSYM, len(versions), align=2, link=".dynsym", entry_size=2),
            Section(".gnu.version_d", elf.VERDEF, len(definitions), link=".dynstr", info=2),
            Section(".rodata", elf.PROGBITS, len(parts.constants), align=16),
            Section(".text", elf.PROGBITS, len(parts.code(0, 0, 0)), elf.ALLOCATED | elf.EXECUTABLE, align=16),
            Section(
                ".dynamic", elf.DYNAMIC, 16 * _DYNAMIC_ENTRIES, elf.ALLOCATED | elf.WRITABLE, link=".dynstr",
                entry_size=16,
            ),
            Section(".bss", elf.NOBITS, parts.zeroed_bytes, elf.ALLOCATED | elf.WRITABLE, align=16),
        )
    )  # fmt: skip
    contents = {
        ".hash": hashes,
        ".dynsym": NO_SYMBOL + b"".join(_entry(symbol, placed, texts) for symbol in parts.symbols),
        ".dynstr": texts.content,
        ".gnu.version": versions,
        ".gnu.version_d": definitions,
        ".rodata": parts.constants,
        ".text": parts.code(placed.address(".text"), placed.address(".rodata"), placed.address(".bss")),
        ".dynamic": _dynamic(placed, texts, parts.library),
    }
    return placed.file(parts.machine, contents)


def _entry(symbol: Symbol, placed: Layout, texts: StringTable) -> bytes:
    return symbol_entry(
        texts[symbol.name],
        symbol.kind,
        placed.index(symbol.section),
        placed.address(symbol.section) + symbol.offset,
        symbol.size,
    )


def _dynamic(placed: Layout, texts: StringTable, library: str) -> bytes:
    entries = (
        (_SONAME, texts[library]),
        (_HASH, placed.address(".hash")),
        (_STRTAB, placed.address(".dynstr")),
        (_SYMTAB, placed.address(".dynsym")),
        (_STRSZ, len(texts.content)),
        (_SYMENT, 24),
        (_VERSYM, placed.address(".gnu.version")),
        (_VERDEF, placed.address(".gnu.version_d")),
        (_VERDEFNUM, 2),
        (_NULL, 0),
    )
    return b"".join(struct.pack("<QQ", *entry) for entry in entries)
