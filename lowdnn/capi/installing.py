"""Makes lowdnn's library the ``libcudnn.so.9`` of the process, and its stand-in of the CUDA runtime the
``libcudart.so.13``.

It also says which ``libcudnn.so.9`` is loaded, and how often its functions were called.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from lowdnn.capi.cudart.catalogue import RUNTIME_NAME, cudart
from lowdnn.capi.library import LIBRARY_NAME, cudnn, write_library
from lowdnn.capi.loading import LOADING, load, load_runtime, process_state
from lowdnn.config import Config, put_first
from lowdnn.status import SublibraryLoadingFailedError

_RTLD_DI_LINKMAP = 2


@dataclass(frozen=True)
class LoadedLibrary:
    """file: where it was loaded from.  is_own: it is lowdnn's.  is_answered: its calls reach lowdnn."""

    file: str
    is_own: bool
    is_answered: bool


def install(*, compiles_gradients: bool = False) -> ctypes.CDLL:
    """Makes lowdnn's library the ``libcudnn.so.9`` of the process; called before a framework is imported.

    Whoever asks the loader for that SONAME from then on gets this library, as a dependency or by ``dlopen``. Its folder
    is put first in LD_LIBRARY_PATH, in which some programs look by themselves. Returns what ``load`` returns.

    compiles_gradients: the plan of a convolution begins to compile its gradients, too, for programs that train: in the
    first step of a network their kernels compile side by side while it goes forward.

    Where LOWDNN_DEVICE says ``emulated`` and no CUDA runtime has been loaded, ``install_runtime`` is part of it.

    Raises SublibraryLoadingFailedError where another library of the SONAME has been loaded.
    """
    with LOADING:
        process_state().compiles_gradients = compiles_gradients
        if Config.from_environment().device == "emulated" and _in_process(RUNTIME_NAME) is None:
            install_runtime()
        found = loaded_library()
        if found is None:
            return _install_new()
        if not found.is_own:
            expected, hint = f"no {LIBRARY_NAME} yet", "call it before a framework is imported"
            raise SublibraryLoadingFailedError.at("install", expected=expected, got=found.file, hint=hint)
        _search_first(Path(found.file))
        return load()


def install_runtime() -> ctypes.CDLL:
    """Makes lowdnn's stand-in the ``libcudart.so.13`` of the process: a CUDA runtime over the emulated device.

    It is for programs that call the CUDA runtime beside cuDNN, such as cudnn-frontend. A library that links to that
    SONAME and needs more of it than the stand-in has, such as a PyTorch for GPUs, cannot be loaded any more.

    Returns the library. Raises SublibraryLoadingFailedError where another library of the SONAME has been loaded, and
    NotSupportedError where lowdnn's device is not the emulated one.
    """
    found = _in_process(RUNTIME_NAME)
    if found is not None and cudart().table_in(found) is None:
        hint = "call it before a library that needs it is loaded"
        raise SublibraryLoadingFailedError.at(
            "install_runtime", expected=f"no {RUNTIME_NAME} yet", got=_file_of(found), hint=hint
        )
    return load_runtime()


def loaded_library() -> LoadedLibrary | None:
    """The library that the SONAME stands for in this process; None where none is loaded."""
    library = _in_process(LIBRARY_NAME)
    if library is None:
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


def _in_process(soname: str) -> ctypes.CDLL | None:
    """The library that a SONAME stands for, if it has been loaded."""
    try:
        return ctypes.CDLL(soname, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


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
