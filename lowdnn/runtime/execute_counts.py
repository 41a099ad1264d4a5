"""How often a loaded plan is executed, counted for some 25 ns an execute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock


class ExecuteCount:
    """A count that any thread adds to, and that several readers share out among them."""

    def __init__(self) -> None:
        self._numbers = count()
        #: Called with the stream of an execute, which ``next`` takes for a default that it never needs. Returns larger
        #: and larger numbers.
        self.tick: Callable[[int], int] = partial(next, self._numbers)
        self._lock = Lock()
        self._next = 0

    def take(self) -> int:
        """The executes that nobody has taken yet."""
        with self._lock:
            number = next(self._numbers)
            found, self._next = number - self._next, number + 1
            return found
