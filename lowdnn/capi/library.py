"""The library libcudnn.so.9: each function jumps through a table, or does little where its entry is empty.

``loading`` fills the table with the addresses of functions in Python. A program that links to the library, or loads it,
finds the names, versions and the SONAME that cuDNN's own library has.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from lowdnn.capi import stubs_aarch64, stubs_x86_64
from lowdnn.capi.elf.shared_object import Parts, shared_object
from lowdnn.capi.elf.tables import FIRST_VERSION, FUNCTION, OBJECT, UNVERSIONED, Symbol
from lowdnn.capi.fallbacks import CONSTANTS, fallback_of
from lowdnn.capi.signatures import exported_names
from lowdnn.status import BadParamError

#: The SONAME, and the version of the names.
LIBRARY_NAME: Final = "libcudnn.so.9"
#: The exported table: an address of 8 bytes for each of ``exported_names``, in their order.
TABLE_NAME: Final = "lowdnn_capi_table"

_MACHINES: Mapping[str, ModuleType] = {"x86_64": stubs_x86_64, "aarch64": stubs_aarch64}
_ENTRY_BYTES = 8
_STUB_ALIGN = 16


def write_library(path: str | os.PathLike[str], machine: str | None = None) -> None:
    """Writes the library to ``path``. ``machine``: ``x86_64`` or ``aarch64``, this computer's if left out.

    Raises BadParamError for another machine, OSError where the file cannot be written.
    """
    content = library(machine)
    with open(path, "wb") as file:
        file.write(content)


def library(machine: str | None = None) -> bytes:
    """The library as ``write_library`` writes it."""
    chosen = platform.machine() if machine is None else machine
    stubs = _MACHINES.get(chosen)
    if stubs is None:
        raise BadParamError.at("write_library.machine", expected=" or ".join(_MACHINES), got=repr(chosen))
    sizes = [len(stubs.stub(fallback_of(name), 0, 0, 0)) for name in exported_names()]
    offsets = [0]
    for size in sizes:
        offsets.append(-(-(offsets[-1] + size) // _STUB_ALIGN) * _STUB_ALIGN)
    symbols = [
        Symbol(name, ".text", offset, size, FUNCTION, FIRST_VERSION)
        for name, offset, size in zip(exported_names(), offsets, sizes, strict=False)
    ]
    table = Symbol(TABLE_NAME, ".bss", 0, _ENTRY_BYTES * len(symbols), OBJECT, UNVERSIONED)
    return shared_object(
        Parts(
            machine=stubs.MACHINE,
            library=LIBRARY_NAME,
            version_node=LIBRARY_NAME,
            symbols=[*symbols, table],
            code=_code(stubs, offsets),
            constants=CONSTANTS,
            zeroed_bytes=table.size,
        )
    )


def _code(stubs: ModuleType, offsets: list[int]) -> Callable[[int, int, int], bytes]:
    """The text of all stubs, each at its offset, for given addresses of text, constants and table."""

    def code(text: int, constants: int, table: int) -> bytes:
        content = bytearray(offsets[-1])
        for index, (name, offset) in enumerate(zip(exported_names(), offsets, strict=False)):
            stub = stubs.stub(fallback_of(name), text + offset, table + _ENTRY_BYTES * index, constants)
            content[offset : offset + len(stub)] = stub
        return bytes(content)

    return code
