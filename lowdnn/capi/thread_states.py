"""Python's state of each thread of C, kept from call to call.

For a thread that Python does not know, a callback makes a state when it begins and destroys it when it ends. That takes
some 7 us, several times as long as a call. A state that is held once more lives on.

Source: the C API of Python, PyGILState_Ensure.
"""

from __future__ import annotations

import ctypes
import threading
from itertools import count

#: Threads whose states are kept. A state outlives its thread and has some 5 KiB, so that their number has a limit.
MAX_KEPT = 1024


class CallingThread(threading.local):
    """number: the calling thread's number among the kept ones, from 1 on; 0 for one that is not kept."""

    number = 0


class ThreadStates:
    """calling: the thread that asks. Safe to use from several threads."""

    def __init__(self) -> None:
        self.calling = CallingThread()
        self._numbers = count(1)

    def keep(self) -> None:
        """Keeps the state of the calling thread; called in a callback, once for each thread."""
        number = next(self._numbers)
        if number <= MAX_KEPT:
            # Without a release, the end of the callback does not destroy the state.
            ctypes.pythonapi.PyGILState_Ensure()
            self.calling.number = number
