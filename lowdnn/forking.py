"""What a child of ``fork`` finds: locks that nobody holds, and contexts that have ended.

Of the parent's threads only the one that forked lives on in the child, so a lock that another one held is held for
ever. Python never forgets a callback of ``os.register_at_fork``; so there is one for the process, and it refers weakly
to the objects that want to hear of it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Protocol
from weakref import WeakSet


class ForkListener(Protocol):
    """Something with state of its process."""

    def after_fork(self) -> None:
        """Makes the object fit for the child. Runs in the child, before anything else of Python's; takes no lock."""


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
