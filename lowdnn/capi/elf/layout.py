"""Where the sections of a shared object lie, in the file and in memory, and the headers that say so.

Sections follow each other in the file. In memory each change of access (read, execute, write) begins a new segment one
page further on, so that addresses and file offsets agree modulo the page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from lowdnn.capi.elf.tables import StringTable

# -- access of sections
ALLOCATED, WRITABLE, EXECUTABLE = 2, 1, 4
# -- types of sections
PROGBITS, STRTAB, RELA, HASH, DYNAMIC, NOBITS, DYNSYM = 1, 3, 4, 5, 6, 8, 11
VERDEF, VERSYM = 0x6FFFFFFD, 0x6FFFFFFF

#: The largest page of both machines' kernels.
_PAGE = 0x10000
_FILE_HEADER, _PROGRAM_HEADER, _SECTION_HEADER = 64, 56, 64
_LOAD, _DYNAMIC_SEGMENT, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_SHARED_OBJECT = 3


@dataclass(frozen=True)
class Section:
    """size: bytes in memory; NOBITS has none in the file.  link: the section that this one refers to.

    info, entry_size: numbers whose meaning depends on the section's type.
    """

    name: str
    type: int
    size: int
    access: int = ALLOCATED
    align: int = 8
    link: str = ""
    info: int = 0
    entry_size: int = 0


@dataclass(frozen=True)
class Placed:
    section: Section
    offset: int
    address: int

    @property
    def file_bytes(self) -> int:
        return 0 if self.section.type == NOBITS else self.section.size


@dataclass(frozen=True)
class Layout:
    """The sections by name, in their order, without the one of section names, which the file alone has."""

    placed: Mapping[str, Placed]

    @classmethod
    def of(cls, sections: Sequence[Section]) -> Layout:
        segment_count = len([*groupby(section.access for section in sections)])
        offset = _FILE_HEADER + (segment_count + 2) * _PROGRAM_HEADER
        shift, last = 0, sections[0].access
        placed = {}
        for section in sections:
            shift += _PAGE if section.access != last else 0
            last = section.access
            offset = _aligned(offset, section.align)
            placed[section.name] = Placed(section, offset, offset + shift)
            offset += placed[section.name].file_bytes
        return cls(placed)

    def address(self, name: str) -> int:
        return self.placed[name].address

    def index(self, name: str) -> int:
        """The section's number in the table of section headers."""
        return 1 + [*self.placed].index(name)

    def file(self, machine: int, contents: Mapping[str, bytes]) -> bytes:
        """The whole file; ``contents`` has the bytes of every section but those of NOBITS."""
        names = StringTable([*self.placed, ".shstrtab"])
        end = max(place.offset + place.file_bytes for place in self.placed.values())
        headers_at = _aligned(end + len(names.content), 8)
        image = bytearray(headers_at)
        segments = [*self._segments()]
        image[:_FILE_HEADER] = _file_header(machine, len(segments), headers_at, len(self.placed) + 2)
        image[_FILE_HEADER : _FILE_HEADER + len(segments) * _PROGRAM_HEADER] = b"".join(segments)
        for name, content in contents.items():
            image[self.placed[name].offset : self.placed[name].offset + len(content)] = content
        image[end : end + len(names.content)] = names.content
        return bytes(image) + b"".join(self._section_headers(names, end))

    def _segments(self) -> Iterator[bytes]:
        """The program headers: one for each run of sections of the same access, .dynamic, and a stack without code."""
        for access, run in groupby(self.placed.values(), lambda place: place.section.access):
            places = [*run]
            first, last = places[0], places[-1]
            # The file's own headers belong to the first segment.
            offset = 0 if first is next(iter(self.placed.values())) else first.offset
            address = first.address - first.offset + offset
            flags = _READ | (_WRITE if access & WRITABLE else 0) | (_EXECUTE if access & EXECUTABLE else 0)
            yield _program_header(
                _LOAD,
                flags,
                offset,
                address,
                last.offset + last.file_bytes - offset,
                last.address + last.section.size - address,
                _PAGE,
            )
        dynamic = self.placed[".dynamic"]
        size = dynamic.section.size
        yield _program_header(_DYNAMIC_SEGMENT, _READ | _WRITE, dynamic.offset, dynamic.address, size, size, 8)
        yield _program_header(_STACK, _READ | _WRITE, 0, 0, 0, 0, 16)

    def _section_headers(self, names: StringTable, names_at: int) -> Iterator[bytes]:
        yield bytes(_SECTION_HEADER)
        for name, place in self.placed.items():
            section = place.section
            link = self.index(section.link) if section.link else 0
            yield struct.pack(
                "<IIQQQQIIQQ",
                names[name],
                section.type,
                section.access,
                place.address,
                place.offset,
                section.size,
                link,
                section.info,
                section.align,
                section.entry_size,
            )
        yield struct.pack("<IIQQQQIIQQ", names[".shstrtab"], STRTAB, 0, 0, names_at, len(names.content), 0, 0, 1, 0)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _file_header(machine: int, segment_count: int, section_headers_at: int, section_count: int) -> bytes:
    identity = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    return identity + struct.pack(
        "<HHIQQQIHHHHHH",
        _SHARED_OBJECT,
        machine,
        1,
        0,
        _FILE_HEADER,
        section_headers_at,
        0,
        _FILE_HEADER,
        _PROGRAM_HEADER,
        segment_count,
        _SECTION_HEADER,
        section_count,
        section_count - 1,
    )


def _program_header(
    kind: int, flags: int, offset: int, address: int, file_bytes: int, memory_bytes: int, align: int
) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, file_bytes, memory_bytes, align)
