"""Numbers for tensors that the library adds to a graph."""

from __future__ import annotations

from collections.abc import Iterable

#: Uids from here on are left to callers, since no graph needs so many below.
_FAR = 2**62


def free_uid(uids: Iterable[int]) -> int:
    """A uid from which on none is among ``uids``, up to 2^62."""
    return 1 + max((uid for uid in uids if uid < _FAR), default=0)
