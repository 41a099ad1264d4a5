"""The order of launches and copies: through streams, events, and what the host has waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class TaskOrder:
    """The place of a task: number ``number`` of ``queue``, a stream. ``known``: by queue, up to which number its tasks
    come before this one, itself included."""

    queue: object
    number: int
    known: Mapping[object, int]

    def follows(self, other: TaskOrder) -> bool:
        """Whether the other one comes before this one, or is this one."""
        return self.known.get(other.queue, 0) >= other.number

    def comes_after(self, other: TaskOrder) -> bool:
        return self is not other and self.follows(other)
