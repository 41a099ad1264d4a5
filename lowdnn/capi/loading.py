"""The library in this process: loaded once, its table filled with functions in Python, emptied at exit."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from lowdnn.capi.calls.catalogue import CALLS
from lowdnn.capi.calls.remembering import remembering
from lowdnn.capi.cudart.library import RuntimeLibrary
from lowdnn.capi.ending import wait_for_calls
from lowdnn.capi.errors import Call, guarded
from lowdnn.capi.library import LIBRARY_NAME, TABLE_NAME, cudnn, write_library
from lowdnn.capi.prototypes import prototype
from lowdnn.capi.refusals import refused
from lowdnn.capi.signatures import UNDOCUMENTED, functions
from lowdnn.capi.state import State
from lowdnn.capi.stubs.connection import Connection
from lowdnn.capi.stubs.fallbacks import ANSWERED_BY_STUBS
from lowdnn.capi.texts import error_strings, last_error_string
from lowdnn.status import BadParamError

#: Held while a library is made and connected: threads that ask at once get the same one.
LOADING: Final = threading.RLock()


def load(path: str | os.PathLike[str] | None = None) -> ctypes.CDLL:
    """The library, ready to be called: what ``ctypes.CDLL("libcudnn.so.9")`` would return.

    path: a file from ``write_library`` that is to be loaded. Left out: the one of that SONAME that is loaded already,
    else a new one, which then is the ``libcudnn.so.9`` of the process: other libraries that ask for it get this one.

    Raises BadParamError for a file that is not such a library, OSError where it cannot be loaded.
    """
    with LOADING:
        return _process().library(path)


def load_runtime() -> ctypes.CDLL:
    """The stand-in for the CUDA runtime, ready to be called; raises NotSupportedError but on the emulated device."""
    with LOADING:
        return _process().runtime.load()


def process_state() -> State:
    """The process's handles, descriptors and graphs of C callers."""
    with LOADING:
        return _process().state


def reset() -> None:
    """Closes every handle; all pointers of C callers end. Functions stay callable."""
    process_state().close()


class Binding:
    """A state, the functions in Python that work on it, and the libraries that lead to them.

    runtime: the stand-in for the CUDA runtime on the same driver.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._connection = Connection(cudnn(), _callbacks(state))
        self._own: ctypes.CDLL | None = None
        self.runtime = RuntimeLibrary(state)

    def library(self, path: str | os.PathLike[str] | None) -> ctypes.CDLL:
        """See ``load``."""
        if path is not None:
            return self._connected(path)
        if self._own is None:
            self._own = self._in_process() or self._new()
        return self._own

    def end(self) -> None:
        """Empties the tables, so that later calls reach the stubs alone; waits for others; closes the handles."""
        self.state.packs.use(False)
        self._connection.end()
        wait_for_calls()
        self.state.close()
        self.runtime.end()

    def _connected(self, path: str | os.PathLike[str]) -> ctypes.CDLL:
        found = ctypes.CDLL(os.fspath(path))
        if not self._connection.connect(found):
            got = f"{os.fspath(path)!r} without {TABLE_NAME}"
            raise BadParamError.at("load.path", expected="a library of write_library", got=got)
        self.state.packs.connect(found)
        return found

    def _in_process(self) -> ctypes.CDLL | None:
        """The library of the SONAME that is loaded already, if it is one of ``write_library``."""
        try:
            found = ctypes.CDLL(LIBRARY_NAME, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except OSError:
            return None
        if not self._connection.connect(found):
            return None
        self.state.packs.connect(found)
        return found

    def _new(self) -> ctypes.CDLL:
        with TemporaryDirectory() as folder:
            path = Path(folder) / LIBRARY_NAME
            write_library(path)
            return self._connected(path)


def _callbacks(state: State) -> dict[str, Any]:
    """A C function pointer for each function that Python answers, not a stub of the library."""
    texts: dict[str, Callable[..., Any]] = {
        "cudnnGetErrorString": error_strings(state),
        "cudnnGetLastErrorString": last_error_string(state),
    }
    found = {}
    for name, function in functions().items():
        if name not in ANSWERED_BY_STUBS:
            behind = texts.get(name) or guarded(name, _call(name), state)
            found[name] = prototype(function)(behind)
    for name in UNDOCUMENTED:
        found[name] = ctypes.CFUNCTYPE(ctypes.c_int)(guarded(name, refused(name), state))
    return found


def _call(name: str) -> Call:
    return remembering(name, CALLS[name]) if name in CALLS else refused(name)


@cache
def _process() -> Binding:
    binding = Binding(State())
    atexit.register(binding.end)
    return binding
