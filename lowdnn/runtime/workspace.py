"""Workspace: scratch memory that the caller owns. Nothing grows it but ``grow``."""

from __future__ import annotations

import logging

from lowdnn.events import emit, event_logger
from lowdnn.observer import introduce
from lowdnn.runtime.context import Context
from lowdnn.runtime.owned import Owned
from lowdnn.status import SizeInsufficientError

#: Kernels get a workspace that begins at a multiple of it, whatever address the caller gives.
ALIGNMENT_BYTES = 256


def size_anywhere(needed_bytes: int) -> int:
    """The bytes to ask a caller for: at any address they have ``needed_bytes`` that are aligned; none for none."""
    return needed_bytes and needed_bytes + ALIGNMENT_BYTES - 1


def tell_refusal(where: str, needed_bytes: int, got: object) -> None:
    """Tells as an event that a plan gets no workspace of the size that it needs."""
    fields = {"for": where, "bytes": needed_bytes, "reason": got}
    emit(event_logger("workspace"), logging.WARNING, "workspace_refused", fields)


class Workspace(Owned):
    """``size_bytes`` of device memory at ``address``, 256-byte aligned; size 0 has address 0."""

    def __init__(self, context: Context, size_bytes: int, *, label: str = "workspace") -> None:
        super().__init__(context, context.allocate(size_bytes, label), is_borrowed=False)
        self.size_bytes = size_bytes
        self._label = label
        introduce(self)

    @property
    def address(self) -> int:
        return self._open_handle()

    def require(self, size_bytes: int) -> None:
        """Raises SizeInsufficientError unless the workspace has ``size_bytes``."""
        if size_bytes > self.size_bytes:
            raise SizeInsufficientError.at(
                "Workspace.size_bytes",
                expected=f"at least {size_bytes}",
                got=self.size_bytes,
                hint="call grow() outside of any capture",
            )

    def grow(self, size_bytes: int) -> None:
        """Makes the workspace at least this large: a new address, contents lost.

        Waits for the device first, since work under way may use the old memory.
        """
        old = self._open_handle()
        if size_bytes <= self.size_bytes:
            return
        self.context.synchronize()
        with self.context.activated():
            self._handle, self.size_bytes = 0, 0
            self._destroy(old)
        self._handle = self.context.allocate(size_bytes, self._label)
        self.size_bytes = size_bytes

    def _destroy(self, handle: int) -> None:
        if handle:
            self.context.driver.mem_free(handle)
