"""Questions of other threads about a launch under way: where its blocks are."""

from __future__ import annotations

import threading


class Inquiry:
    """Carries a question to the thread that runs a kernel, and its answer back. Any thread may ask, one at a time.

    is_running: whether there is such a thread.  is_asked: whether it is to ``reply``.
    """

    def __init__(self) -> None:
        self.is_running = self.is_asked = False
        self._asking = threading.Lock()
        self._answered = threading.Event()
        self._answer = ""

    def ask(self, timeout_s: float) -> str:
        """The places of the blocks that run now; "" where no kernel runs, or none has answered in time."""
        with self._asking:
            if not self.is_running:
                return ""
            self._answer = ""
            self._answered.clear()
            self.is_asked = True
            self._answered.wait(timeout_s)
            self.is_asked = False
            return self._answer

    def reply(self, answer: str) -> None:
        self.is_asked, self._answer = False, answer
        self._answered.set()
