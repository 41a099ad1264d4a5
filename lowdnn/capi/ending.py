"""The end of the library while other threads are inside of its functions.

At its own end Python ends a thread that wants to go on with it, without a return to the C caller. So calls under way
return first, when no new ones can begin any more.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

from lowdnn.capi.errors import is_in_call

#: Most seconds of the wait, after which it ends although calls are still running.
_MOST_S: Final = 5.0
#: Seconds between two checks of the threads.
_PAUSE_S: Final = 0.001
#: Successive checks that must find no call before the wait ends.
_QUIET_LOOKS: Final = 5


def wait_for_calls() -> None:
    """Waits until no other thread is inside of a function of the library."""
    quiet, end_s = 0, time.monotonic() + _MOST_S
    while quiet < _QUIET_LOOKS and time.monotonic() < end_s:
        # A thread that waits for the interpreter at the beginning of its call has no frame yet; it gets one meanwhile.
        time.sleep(_PAUSE_S)
        quiet = 0 if _is_one_inside() else quiet + 1


def _is_one_inside() -> bool:
    own = threading.get_ident()
    return any(is_in_call(frame) for thread, frame in sys._current_frames().items() if thread != own)
