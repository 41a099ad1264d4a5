"""Results of pure functions that can be looked up without being worked out, which ``functools.lru_cache`` cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple, Unpack

ArgumentsT = TypeVarTuple("ArgumentsT")
ResultT = TypeVar("ResultT")


class Memo(Generic[*ArgumentsT, ResultT]):
    """A function that keeps its results, at most ``most`` of them, and never returns None. Threads may share it."""

    def __init__(self, find: Callable[[Unpack[ArgumentsT]], ResultT], most: int) -> None:
        self._find = find
        self._most = most
        self._found: dict[tuple[*ArgumentsT], ResultT] = {}

    def __call__(self, *arguments: *ArgumentsT) -> ResultT:
        found = self._found.get(arguments)
        if found is None:
            if len(self._found) >= self._most:
                self._found.clear()
            found = self._found[arguments] = self._find(*arguments)
        return found

    def known(self, *arguments: *ArgumentsT) -> ResultT | None:
        """The result where it was worked out before and is kept."""
        return self._found.get(arguments)
