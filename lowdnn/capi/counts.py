"""How often each C function has been called: which parts of the library a program uses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping


class CallCounts:
    """Counts that threads advance without a lock, since a step of ``itertools.count`` is one operation.

    elsewhere: the counts of calls that were answered without Python, by function.
    """

    def __init__(self, elsewhere: Callable[[], Mapping[str, int]] = dict) -> None:
        self._elsewhere = elsewhere
        self._tickets: dict[str, itertools.count[int]] = {}
        self._readings = 0
        self._reading = threading.Lock()

    def counter(self, name: str) -> Callable[[], int]:
        """A callable that counts one call of ``name``. All are asked for before the first reading."""
        return self._tickets.setdefault(name, itertools.count()).__next__

    def by_name(self) -> dict[str, int]:
        """The calls of each function that was called, in the order of names."""
        with self._reading:
            # Each reading advances every counter by one, which is subtracted.
            calls = {name: next(tickets) - self._readings for name, tickets in sorted(self._tickets.items())}
            self._readings += 1
        for name, count in self._elsewhere().items():
            calls[name] += count
        return {name: count for name, count in calls.items() if count}
