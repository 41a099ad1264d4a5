"""Which path calls took, and why: counted for each operation, and shown as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from threading import Lock


class Count:
    """A count that any thread adds to with ``tick``, for some 25 ns."""

    def __init__(self) -> None:
        self._numbers = count()
        self.tick = self._numbers.__next__
        self._lock = Lock()
        self._reads = 0

    @property
    def value(self) -> int:
        with self._lock:
            found = next(self._numbers) - self._reads
            self._reads += 1
            return found


@dataclass(frozen=True)
class PathCount:
    """The calls of one operation that took one path.

    operation: the name of the aten operation.  reason: why the native kernel ran; "" where lowdnn's did.
    """

    operation: str
    reason: str
    calls: int


class PathCounts:
    """The counts of all operations, by operation and reason."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[tuple[str, str], Count] = {}

    def of(self, operation: str, reason: str) -> Count:
        with self._lock:
            return self._counts.setdefault((operation, reason), Count())

    def after_fork(self) -> None:
        """The child begins with no calls."""
        self._lock = Lock()
        self._counts = {}

    def snapshot(self) -> tuple[PathCount, ...]:
        """The calls so far, by operation; most called paths first."""
        with self._lock:
            counts = dict(self._counts)
        found = [PathCount(*key, calls) for key, own in counts.items() if (calls := own.value)]
        return tuple(sorted(found, key=lambda path: (path.operation, -path.calls, path.reason)))


def table(paths: Iterable[PathCount]) -> str:
    """One line for each operation and path, with a heading."""
    rows = [("operation", "calls", "kernel", "reason")]
    for path in paths:
        rows.append((path.operation, str(path.calls), "native" if path.reason else "lowdnn", path.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{name:<{widths[0]}}  {calls:>{widths[1]}}  {kernel:<{widths[2]}}  {reason}".rstrip()
        for name, calls, kernel, reason in rows
    ]
    return "\n".join(lines) if len(lines) > 1 else "no call of an operation that lowdnn takes over"
