"""The base of streams, events, buffers and workspaces: they own one driver handle, and are closed once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Self

from lowdnn.runtime.context import Context
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.status import NotInitializedError


class Owned(ProcessBound, ABC):
    """A handle of a context. ``close`` gives it back; use after ``close`` raises NotInitializedError.

    A subclass says how in ``_destroy``. Borrowed handles are never destroyed. An object that nobody refers to any more
    is closed when Python collects it.
    """

    _is_open = False

    def __init__(self, context: Context, handle: int, *, is_borrowed: bool, size_bytes: int = 0) -> None:
        """size_bytes: the device memory of a buffer."""
        self.context = context
        self.is_borrowed = is_borrowed
        self._handle = handle
        self._is_open = True
        if not is_borrowed:
            context.hold(self, size_bytes)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def close(self) -> None:
        """Gives the handle back. Closing twice, or after the context is gone, does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        if not self.is_borrowed:
            self.context.give_back(type(self).__name__, partial(self._destroy, self._handle))
            self.context.let_go(self)

    def _open_handle(self) -> int:
        """The handle; raises NotInitializedError once closed."""
        if not self._is_open:
            raise NotInitializedError.at(type(self).__name__, expected="an open object", got="a closed one")
        return self._handle

    @abstractmethod
    def _destroy(self, handle: int) -> None:
        """Gives ``handle`` back; the context is current."""

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
