"""The libcudnn.so.9 of the process: which library it is, and how it becomes lowdnn's."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from lowdnn.capi.library import LIBRARY_NAME, cudnn, write_library
from lowdnn.capi.loading import load, process_state
from lowdnn.config import put_first
from lowdnn.status import SublibraryLoadingFailedError

_RTLD_DI_LINKMAP = 2


@dataclass(frozen=True)
class LoadedLibrary:
    """file: where it was loaded from.  is_own: it is lowdnn's.  is_answered: its calls reach lowdnn."""

    file: str
    is_own: bool
    is_answered: bool


def install() -> ctypes.CDLL:
    """Makes lowdnn's library the ``libcudnn.so.9`` of the process; called before a framework is imported.

    Whoever asks the loader for that SONAME from then on gets this library, as a dependency or by ``dlopen``. Its folder
    is put first in LD_LIBRARY_PATH, in which some programs look by themselves. Returns what ``load`` returns.

    Raises SublibraryLoadingFailedError where another library of the SONAME has been loaded.
    """
    found = loaded_library()
    if found is None:
        return _install_new()
    if not found.is_own:
        hint = "call it before a framework is imported"
        raise SublibraryLoadingFailedError.at("install", expected=f"no {LIBRARY_NAME} yet", got=found.file, hint=hint)
    _search_first(Path(found.file))
    return load()


def loaded_library() -> LoadedLibrary | None:
    """The library that the SONAME stands for in this process; None where none is loaded."""
    try:
        library = ctypes.CDLL(LIBRARY_NAME, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None
    table = cudnn().table_in(library)
    return LoadedLibrary(_file_of(library), is_own=table is not None, is_answered=table is not None and any(table))


def call_counts() -> dict[str, int]:
    """How often each C function has been called in this process, without those never called.

    The functions of versions that the library answers by itself are not counted.
    """
    return process_state().counts.by_name()


class _LinkMap(ctypes.Structure):
    """The part of glibc's ``struct link_map`` that programs may read."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


def _file_of(library: ctypes.CDLL) -> str:
    found = ctypes.POINTER(_LinkMap)()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), _RTLD_DI_LINKMAP, ctypes.byref(found))
    return os.fsdecode(found.contents.name)


def _install_new() -> ctypes.CDLL:
    folder = mkdtemp(prefix="lowdnn-")
    atexit.register(_remove, folder, os.getpid())
    file = Path(folder) / LIBRARY_NAME
    write_library(file)
    library = load(file)
    _search_first(file)
    return library


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a child of fork, whose parent may still need the file
        shutil.rmtree(folder, ignore_errors=True)


def _search_first(file: Path) -> None:
    """Puts the file's folder first in LD_LIBRARY_PATH, unless nothing is there any more."""
    if file.exists():
        put_first({"LD_LIBRARY_PATH": str(file.parent)})
