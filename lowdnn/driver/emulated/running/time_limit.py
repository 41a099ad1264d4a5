"""The time limit that ends launches which would run for ever."""

from __future__ import annotations

import time

#: A launch may take this many times the limit in all, however much it stores.
_WHOLE_LAUNCH = 15


class TimeLimit:
    """Allows ``timeout_s`` seconds without progress, and 15 times that in all, from now on; once it has been a ``with``
    block, only such blocks count.

    Seconds are of the thread's processor time: a process that is suspended, or shares the processor, loses none.
    Progress is a change that other threads may see, or the end of a thread.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._used_s, self._began_s = 0.0, time.thread_time()
        self._whole_end_s = _WHOLE_LAUNCH * timeout_s
        self._quiet_end_s = 0.0
        self._seen: object = None

    def __enter__(self) -> None:
        self._began_s = time.thread_time() - self._used_s

    def __exit__(self, *_: object) -> None:
        self._used_s = time.thread_time() - self._began_s

    def problem(self, progress: object) -> str:
        """Why the launch has to stop, or an empty string; ``progress`` is a value that changes with progress."""
        now_s = time.thread_time() - self._began_s
        if progress != self._seen:
            self._seen, self._quiet_end_s = progress, now_s + self._timeout_s
        if now_s > self._quiet_end_s:
            return _problem(f"no thread stored, passed a barrier or ended for {self._timeout_s:g} s")
        if now_s > self._whole_end_s:
            return _problem(f"it took {_WHOLE_LAUNCH * self._timeout_s:g} s")
        return ""


def _problem(what: str) -> str:
    return f"the launch ran out of time: {what}; the policy's timeout=SECONDS sets the limit"
