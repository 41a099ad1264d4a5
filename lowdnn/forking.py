"""Callbacks after ``fork``, by which objects replace their locks and mark their contexts as ended in the child.

Only the thread that forked lives on in the child, so a lock that another one held stays locked for ever. Python never
forgets a callback of ``os.register_at_fork``; so the process has a single one, which refers weakly to the listeners.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class ForkListener(Protocol):
    """An object whose state belongs to one process."""

    def after_fork(self) -> None:
        """Makes the object fit for the child. Runs there before any other Python code, and must take no lock."""


def tell_after_fork(listener: ForkListener) -> None:
    """Calls ``listener.after_fork`` in every child that is forked while the listener lives."""
    _listeners().add(listener)


@cache
def _listeners() -> WeakSet[ForkListener]:
    listeners: WeakSet[ForkListener] = WeakSet()

    def tell() -> None:
        for listener in list(listeners):
            listener.after_fork()

    os.register_at_fork(after_in_child=tell)
    return listeners
