"""Stubs that start Python at the first call whose table entry is empty, for programs that have no Python."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import lowdnn
from lowdnn.capi.stubs import starter_aarch64, starter_x86_64
from lowdnn.capi.stubs.fallbacks import ANSWERED_BY_STUBS, CUDNN
from lowdnn.capi.stubs.plain import MODULES
from lowdnn.capi.stubs.starter import IMPORTS, PYTHON, SLOT_BYTES, SLOTS_BYTES, Code, slot_addresses, starter

#: The interpreter runs this program. lowdnn's own folder comes last, so that an installed lowdnn is taken first.
_CODE: Final = """
import sys
sys.path.append({root!r})
from lowdnn import capi
capi.load()
"""
_WIDE_ALIGN: Final = 4
_CODES: Final[Mapping[str, Callable[[int, Mapping[str, int], Mapping[str, int]], Code]]] = {
    "x86_64": starter_x86_64.Code,
    "aarch64": starter_aarch64.Code,
}


def libpython() -> str:
    """The file of this Python's shared library; its bare name where there is none, as in a Python without one."""
    name = str(sysconfig.get_config_var("INSTSONAME"))
    file = Path(str(sysconfig.get_config_var("LIBDIR")), name)
    return str(file) if file.is_file() else name


class StartingStubs:
    """Stubs that start Python, with the methods of ``PlainStubs``.

    The data that their code refers to lie behind the constants of the stubs' own answers.
    """

    slots_bytes = SLOTS_BYTES
    #: Older C libraries have dlopen in a file of its own, which newer ones keep.
    needed = ("libdl.so.2", "libc.so.6")

    def __init__(self, machine: str, python: str) -> None:
        """``machine``: one of ``MODULES``.  python: the file of libpython."""
        self._module, self._new_code = MODULES[machine], _CODES[machine]
        self.machine: int = self._module.MACHINE
        self.relocation: int = self._module.IMPORTED
        self.imports: Mapping[str, int] = {name: SLOT_BYTES * index for index, name in enumerate(IMPORTS)}
        root = str(Path(lowdnn.__file__).resolve().parents[1])
        texts = {"library": python, "code": _CODE.format(root=root), **{name: name for name in PYTHON}}
        content = CUDNN.constants + bytes(-len(CUDNN.constants) % _WIDE_ALIGN)
        self._offsets = {"program": len(content)}
        content += (sys.executable + "\0").encode("utf-32-le")
        for name, text in texts.items():
            self._offsets[name] = len(content)
            content += text.encode(errors="surrogateescape") + b"\0"
        self.constants = content

    def common(self, at: int, slots: int, constants: int) -> bytes:
        addresses = {name: constants + offset for name, offset in self._offsets.items()}
        return starter(self._new_code(at, slot_addresses(slots), addresses))

    def emptying(self, table: int, count: int, at: int) -> bytes:
        """The code of a function that empties the table."""
        content: bytes = self._module.emptying(table, count, at)
        return content

    def stub(self, name: str, at: int, entry: int, constants: int, common: int) -> bytes:
        content: bytes = b""
        if name not in ANSWERED_BY_STUBS:
            content += self._module.jump(entry, at)
            content += self._module.call(common, at + len(content))
        content += self._module.stub(CUDNN.of(name), at + len(content), entry, constants)
        return content
