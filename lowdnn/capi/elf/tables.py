"""The tables of a dynamic symbol table: names, symbols, hash buckets and version definitions, as bytes.

Source: System V ABI, chapters 4 and 5; Linux Standard Base, "Symbol Versioning". Everything is 64-bit, little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FUNCTION, OBJECT = 2, 1
#: Version index of names without a version.
UNVERSIONED = 1
#: Version index of the first version node after the library's own.
FIRST_VERSION = 2

_GLOBAL_BINDING = 1 << 4
_IS_LIBRARY = 1


class StringTable:
    """Zero-terminated texts, each stored once; ``[text]`` is a text's offset."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._offsets: dict[str, int] = {}
        self.content = b"\0"
        for text in texts:
            if text not in self._offsets:
                self._offsets[text] = len(self.content)
                self.content += text.encode("ascii") + b"\0"

    def __getitem__(self, text: str) -> int:
        return self._offsets[text]


@dataclass(frozen=True)
class Symbol:
    """A name that the object exports: ``size`` bytes at ``offset`` in ``section``.

    kind: FUNCTION or OBJECT.  version: UNVERSIONED or FIRST_VERSION.
    """

    name: str
    section: str
    offset: int
    size: int
    kind: int
    version: int


def symbol_entry(name: int, kind: int, section_index: int, address: int, size: int) -> bytes:
    """One entry of .dynsym with global binding and default visibility."""
    return struct.pack("<IBBHQQ", name, _GLOBAL_BINDING | kind, 0, section_index, address, size)


#: The first entry of .dynsym.
NO_SYMBOL = bytes(24)


def name_hash(name: str) -> int:
    """The ABI's hash of a name, of 28 bits."""
    value = 0
    for byte in name.encode("ascii"):
        value = (value << 4) + byte
        high = value & 0xF000_0000
        value = (value ^ (high >> 24)) & ~high
    return value


def hash_table(names: Sequence[str]) -> bytes:
    """.hash of symbols 1, 2, ... with these names; the chains of a bucket go from the last symbol to the first."""
    bucket_count = len(names) | 1
    buckets = [0] * bucket_count
    chains = [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = name_hash(name) % bucket_count
        chains[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<{2 + bucket_count + len(chains)}I", bucket_count, len(chains), *buckets, *chains)


def version_definitions(library: str, node: str, names: StringTable) -> bytes:
    """.gnu.version_d with two definitions: the library's own (index 1) and ``node`` (index 2)."""
    definitions = ((library, _IS_LIBRARY, UNVERSIONED), (node, 0, FIRST_VERSION))
    size = 28
    content = b""
    for text, flags, index in definitions:
        following = size if index != FIRST_VERSION else 0
        content += struct.pack("<HHHHIII", 1, flags, index, 1, name_hash(text), 20, following)
        content += struct.pack("<II", names[text], 0)
    return content
