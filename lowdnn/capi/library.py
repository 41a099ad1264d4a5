"""The library libcudnn.so.9: each function jumps through a table, or does little where its entry is empty.

``loading`` fills the table with the addresses of functions in Python. A program that links to the library, or loads it,
finds the names, versions and the SONAME that cuDNN's own library has.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from typing import Final

from lowdnn.capi.signatures import exported_names
from lowdnn.capi.stubs.fallbacks import CUDNN
from lowdnn.capi.stubs.interface import Interface, Stubs
from lowdnn.capi.stubs.plain import MODULES, PlainStubs
from lowdnn.capi.stubs.starting import StartingStubs
from lowdnn.status import BadParamError

#: The SONAME, and the version of the names.
LIBRARY_NAME: Final = "libcudnn.so.9"
#: The exported table: an address of 8 bytes for each of ``exported_names``, in their order.
TABLE_NAME: Final = "lowdnn_capi_table"


def write_library(
    path: str | os.PathLike[str], machine: str | None = None, python: str | os.PathLike[str] | None = None
) -> None:
    """Writes the library to ``path``. ``machine``: ``x86_64`` or ``aarch64``, this computer's if left out.

    python: the file of this Python's libpython (``libpython()``), for a library that serves programs without Python.
    The first call of a function opens that file, starts an interpreter with this Python's packages and connects it to
    lowdnn.

    Raises BadParamError for another machine, OSError where the file cannot be written.
    """
    content = library(machine, python)
    with open(path, "wb") as file:
        file.write(content)


def library(machine: str | None = None, python: str | os.PathLike[str] | None = None) -> bytes:
    """The library as ``write_library`` writes it."""
    chosen = platform.machine() if machine is None else machine
    if chosen not in MODULES:
        raise BadParamError.at("write_library.machine", expected=" or ".join(MODULES), got=repr(chosen))
    stubs: Stubs = PlainStubs(MODULES[chosen], CUDNN) if python is None else StartingStubs(chosen, os.fspath(python))
    return cudnn().written(stubs)


@cache
def cudnn() -> Interface:
    """The interface of libcudnn.so.9."""
    return Interface(LIBRARY_NAME, exported_names(), TABLE_NAME, CUDNN, has_packs=True)
