"""The library libcudnn.so.9: each function jumps through a table, or does little where its entry is empty.

``loading`` fills the table with the addresses of functions in Python. A program that links to the library, or loads it,
finds the names, versions and the SONAME that cuDNN's own library has.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Final, TypeAlias

from lowdnn.capi.elf.shared_object import Parts, shared_object
from lowdnn.capi.elf.tables import FIRST_VERSION, FUNCTION, OBJECT, UNVERSIONED, Symbol
from lowdnn.capi.signatures import exported_names
from lowdnn.capi.stubs.plain import MODULES, PlainStubs
from lowdnn.capi.stubs.starting import StartingStubs
from lowdnn.status import BadParamError

#: The SONAME, and the version of the names.
LIBRARY_NAME: Final = "libcudnn.so.9"
#: The exported table: an address of 8 bytes for each of ``exported_names``, in their order.
TABLE_NAME: Final = "lowdnn_capi_table"
#: The machines whose library can start Python.
STARTING_MACHINES: Final = ("x86_64",)

_ENTRY_BYTES = 8
_TABLE_BYTES = _ENTRY_BYTES * len(exported_names())
_STUB_ALIGN = 16

Stubs: TypeAlias = PlainStubs | StartingStubs


def write_library(
    path: str | os.PathLike[str], machine: str | None = None, python: str | os.PathLike[str] | None = None
) -> None:
    """Writes the library to ``path``. ``machine``: ``x86_64`` or ``aarch64``, this computer's if left out.

    python: the file of this Python's libpython (``libpython()``), for a library that serves programs without Python, on
    x86_64. The first call of a function opens that file, starts an interpreter with this Python's packages and connects
    it to lowdnn.

    Raises BadParamError for another machine, OSError where the file cannot be written.
    """
    content = library(machine, python)
    with open(path, "wb") as file:
        file.write(content)


def library(machine: str | None = None, python: str | os.PathLike[str] | None = None) -> bytes:
    """The library as ``write_library`` writes it."""
    chosen = platform.machine() if machine is None else machine
    machines = tuple(MODULES) if python is None else STARTING_MACHINES
    if chosen not in machines:
        raise BadParamError.at("write_library.machine", expected=" or ".join(machines), got=repr(chosen))
    stubs: Stubs = PlainStubs(MODULES[chosen]) if python is None else StartingStubs(os.fspath(python))
    offsets, sizes = _placed(stubs)
    symbols = [
        Symbol(name, ".text", offset, size, FUNCTION, FIRST_VERSION)
        for name, offset, size in zip(exported_names(), offsets, sizes, strict=False)
    ]
    return shared_object(
        Parts(
            machine=stubs.machine,
            library=LIBRARY_NAME,
            version_node=LIBRARY_NAME,
            symbols=[*symbols, Symbol(TABLE_NAME, ".bss", 0, _TABLE_BYTES, OBJECT, UNVERSIONED)],
            code=_code(stubs, offsets),
            constants=stubs.constants,
            zeroed_bytes=_TABLE_BYTES + stubs.slots_bytes,
            needed=stubs.needed,
            imports={name: _TABLE_BYTES + offset for name, offset in stubs.imports.items()},
            relocation=stubs.relocation,
        )
    )


def _placed(stubs: Stubs) -> tuple[list[int], list[int]]:
    """(offsets, sizes) of the stubs in .text, behind the common code; one more offset is the end."""
    sizes = [len(stubs.stub(name, 0, 0, 0, 0)) for name in exported_names()]
    offsets = [_aligned(len(stubs.common(0, 0, 0)))]
    for size in sizes:
        offsets.append(_aligned(offsets[-1] + size))
    return offsets, sizes


def _aligned(offset: int) -> int:
    return -(-offset // _STUB_ALIGN) * _STUB_ALIGN


def _code(stubs: Stubs, offsets: list[int]) -> Callable[[int, int, int], bytes]:
    """The text for given addresses of text, constants and table: the common code, and each stub at its offset."""

    def code(text: int, constants: int, table: int) -> bytes:
        content = bytearray(offsets[-1])
        common = stubs.common(text, table + _TABLE_BYTES, constants)
        content[: len(common)] = common
        for index, (name, offset) in enumerate(zip(exported_names(), offsets, strict=False)):
            stub = stubs.stub(name, text + offset, table + _ENTRY_BYTES * index, constants, text)
            content[offset : offset + len(stub)] = stub
        return bytes(content)

    return code
