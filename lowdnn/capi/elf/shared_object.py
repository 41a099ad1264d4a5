"""A shared object of code, constants and zeroed data, with exported names of which some have a version."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowdnn.capi.elf import layout as elf
from lowdnn.capi.elf.layout import Layout, Section
from lowdnn.capi.elf.tables import (
    FUNCTION,
    NO_SYMBOL,
    UNVERSIONED,
    StringTable,
    Symbol,
    hash_table,
    symbol_entry,
    version_definitions,
)

_NULL, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 0, 4, 5, 6, 10, 11, 14
_VERSYM, _VERDEF, _VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_NEEDED, _RELA, _RELASZ, _RELAENT = 1, 7, 8, 9
#: The entries of every library.
_DYNAMIC_ENTRIES = 10
_RELOCATION_BYTES = 24


@dataclass(frozen=True)
class Parts:
    """machine: the ELF number of the processor.  library: the SONAME.  version_node: names with a version.

    code: the .text at given addresses of .text, .rodata and .bss; its length is the same at all addresses.
    constants: the .rodata.  zeroed_bytes: the size of .bss, which is writable.
    needed: the libraries in which the loader looks for imports.  imports: where in .bss it writes the address of which
    function.  relocation: the processor's number for that.
    """

    machine: int
    library: str
    version_node: str
    symbols: Sequence[Symbol]
    code: Callable[[int, int, int], bytes]
    constants: bytes
    zeroed_bytes: int
    needed: Sequence[str] = ()
    imports: Mapping[str, int] = field(default_factory=dict)
    relocation: int = 0


def shared_object(parts: Parts) -> bytes:
    """The file. Nothing but imports is relocated: all code refers to places relative to itself."""
    names = [*(symbol.name for symbol in parts.symbols), *parts.imports]
    texts = StringTable([parts.library, parts.version_node, *names, *parts.needed])
    hashes = hash_table(names)
    numbers = [0, *(symbol.version for symbol in parts.symbols), *(UNVERSIONED for _ in parts.imports)]
    versions = struct.pack(f"<{len(numbers)}H", *numbers)
    definitions = version_definitions(parts.library, parts.version_node, texts)
    placed = Layout.of(
        (
            Section(".hash", elf.HASH, len(hashes), link=".dynsym", entry_size=4),
            Section(
                ".dynsym", elf.DYNSYM, 24 * (len(names) + 1), link=".dynstr", info=1, entry_size=24
            ),
            Section(".dynstr", elf.STRTAB, len(texts.content), align=1),
            Section(".gnu.version", elf.VERSYM, len(versions), align=2, link=".dynsym", entry_size=2),
            Section(".gnu.version_d", elf.VERDEF, len(definitions), link=".dynstr", info=2),
            *_relocation_section(parts),
            Section(".rodata", elf.PROGBITS, len(parts.constants), align=16),
            Section(".text", elf.PROGBITS, len(parts.code(0, 0, 0)), elf.ALLOCATED | elf.EXECUTABLE, align=16),
            Section(
                ".dynamic", elf.DYNAMIC, 16 * _dynamic_count(parts), elf.ALLOCATED | elf.WRITABLE, link=".dynstr",
                entry_size=16,
            ),
            Section(".bss", elf.NOBITS, parts.zeroed_bytes, elf.ALLOCATED | elf.WRITABLE, align=16),
        )
    )  # fmt: skip
    contents = {
        ".hash": hashes,
        ".dynsym": b"".join(
            [
                NO_SYMBOL,
                *(_entry(symbol, placed, texts) for symbol in parts.symbols),
                *(symbol_entry(texts[name], FUNCTION, 0, 0, 0) for name in parts.imports),
            ]
        ),
        ".dynstr": texts.content,
        ".gnu.version": versions,
        ".gnu.version_d": definitions,
        ".rodata": parts.constants,
        ".text": parts.code(placed.address(".text"), placed.address(".rodata"), placed.address(".bss")),
        ".dynamic": _dynamic(placed, texts, parts),
    }
    if parts.imports:
        contents[".rela.dyn"] = _relocations(placed, parts)
    return placed.file(parts.machine, contents)


def _entry(symbol: Symbol, placed: Layout, texts: StringTable) -> bytes:
    return symbol_entry(
        texts[symbol.name],
        symbol.kind,
        placed.index(symbol.section),
        placed.address(symbol.section) + symbol.offset,
        symbol.size,
    )


def _relocation_section(parts: Parts) -> Iterator[Section]:
    if parts.imports:
        size = _RELOCATION_BYTES * len(parts.imports)
        yield Section(".rela.dyn", elf.RELA, size, link=".dynsym", entry_size=_RELOCATION_BYTES)


def _relocations(placed: Layout, parts: Parts) -> bytes:
    first = 1 + len(parts.symbols)
    return b"".join(
        struct.pack("<QQq", placed.address(".bss") + offset, index << 32 | parts.relocation, 0)
        for index, offset in enumerate(parts.imports.values(), first)
    )


def _dynamic_count(parts: Parts) -> int:
    return _DYNAMIC_ENTRIES + len(parts.needed) + (3 if parts.imports else 0)


def _dynamic(placed: Layout, texts: StringTable, parts: Parts) -> bytes:
    relocations = (
        (
            (_RELA, placed.address(".rela.dyn")),
            (_RELASZ, _RELOCATION_BYTES * len(parts.imports)),
            (_RELAENT, _RELOCATION_BYTES),
        )
        if parts.imports
        else ()
    )
    entries = (
        *((_NEEDED, texts[name]) for name in parts.needed),
        *relocations,
        (_SONAME, texts[parts.library]),
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
