"""Stubs that start Python at the first call whose table entry is empty, for programs that have no Python (x86-64)."""

from __future__ import annotations

import struct
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import lowdnn
from lowdnn.capi.stubs import x86_64
from lowdnn.capi.stubs.fallbacks import ANSWERED_BY_STUBS, CUDNN
from lowdnn.capi.stubs.starter_x86_64 import IMPORTS, PYTHON, SLOT_BYTES, SLOTS_BYTES, starter

#: What the interpreter runs. lowdnn's own folder comes last, so that an installed lowdnn is taken first.
_CODE: Final = """
import sys
sys.path.append({root!r})
from lowdnn import capi
capi.load()
"""
_WIDE_ALIGN = 4
_CALL_BYTES = 5
#: R_X86_64_GLOB_DAT: the address of a symbol.
_GLOB_DAT = 6


def libpython() -> str:
    """The file of this Python's shared library; its bare name where there is none, as in a Python without one."""
    name = str(sysconfig.get_config_var("INSTSONAME"))
    file = Path(str(sysconfig.get_config_var("LIBDIR")), name)
    return str(file) if file.is_file() else name


class StartingStubs:
    """As ``PlainStubs``. What the code refers to lies behind the constants of the stubs' own answers."""

    machine = x86_64.MACHINE
    relocation = _GLOB_DAT
    slots_bytes = SLOTS_BYTES
    #: Older C libraries have dlopen in a file of its own, which newer ones keep.
    needed = ("libdl.so.2", "libc.so.6")

    def __init__(self, python: str) -> None:
        """``python``: the file of libpython."""
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
        return starter(at, slots, {name: constants + offset for name, offset in self._offsets.items()})

    def stub(self, name: str, at: int, entry: int, constants: int, common: int) -> bytes:
        if name in ANSWERED_BY_STUBS:
            return x86_64.stub(CUDNN.of(name), at, entry, constants)
        jump = x86_64.jump(entry, at)
        after = at + len(jump) + _CALL_BYTES
        call = b"\xe8" + struct.pack("<i", common - after)
        return jump + call + x86_64.stub(CUDNN.of(name), after, entry, constants)
