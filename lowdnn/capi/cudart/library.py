"""The stand-in in this process: loaded at most once, its table emptied at the end."""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import TemporaryDirectory

from lowdnn.capi.cudart.catalogue import RUNTIME_NAME, callbacks, cudart, runtime_library
from lowdnn.capi.cudart.state import RuntimeState
from lowdnn.capi.state import State
from lowdnn.capi.stubs.connection import Connection


class RuntimeLibrary:
    """``state``: the state of cuDNN's functions, with whose driver the stand-in works."""

    def __init__(self, state: State) -> None:
        self._state = RuntimeState(state)
        self._connection = Connection(cudart(), callbacks(self._state))
        self._library: ctypes.CDLL | None = None

    def load(self) -> ctypes.CDLL:
        """The library, ready to be called. Raises NotSupportedError where the device is not the emulated one."""
        if self._library is None:
            self._state.check_device()
            with TemporaryDirectory() as folder:
                path = Path(folder) / RUNTIME_NAME
                path.write_bytes(runtime_library())
                self._library = ctypes.CDLL(str(path))
            self._connection.connect(self._library)
        return self._library

    def end(self) -> None:
        """Empties the table, so that later calls reach the stubs alone, and gives the context back."""
        self._connection.end()
        self._state.close()
