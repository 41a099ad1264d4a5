"""Streams: made here, or borrowed from their owner, another library or the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowdnn.driver.base import CaptureMode, StreamFlags
from lowdnn.runtime.context import Context
from lowdnn.runtime.owned import Owned
from lowdnn.status import AttributeTypeError, StreamMismatchError

if TYPE_CHECKING:
    from lowdnn.runtime.event import Event

#: Version of the ``__cuda_stream__`` protocol that lowdnn speaks.
_STREAM_PROTOCOL = 0

#: Handles that name a stream of the calling context or thread: null, legacy default, per-thread default.
_SPECIAL_HANDLES = (0, 1, 2)


class Stream(Owned):
    """A CUstream. ``handle`` is its integer; ``__cuda_stream__`` offers it to other libraries."""

    @classmethod
    def create(cls, context: Context, *, is_blocking: bool = False, priority: int = 0) -> Stream:
        """A new stream. ``is_blocking``: ordered with the legacy default stream; a lower ``priority`` runs first."""
        flags = StreamFlags.DEFAULT if is_blocking else StreamFlags.NON_BLOCKING
        with context.activated():
            return cls(context, context.driver.stream_create(flags, priority), is_borrowed=False)

    @classmethod
    def borrow(cls, context: Context, stream: object) -> Stream:
        """A view of a stream that someone else owns: anything that ``stream_handle`` takes.

        Raises StreamMismatchError where it belongs to another context.
        """
        handle = stream_handle(stream)
        if handle not in _SPECIAL_HANDLES:
            with context.activated():
                owner = context.driver.stream_context(handle)
            if owner != context.handle:
                raise StreamMismatchError.at(
                    "Stream.context", expected=f"the primary context of device {context.device}", got=f"{owner:#x}"
                )
        return cls(context, handle, is_borrowed=True)

    @property
    def handle(self) -> int:
        return self._open_handle()

    def __cuda_stream__(self) -> tuple[int, int]:
        return _STREAM_PROTOCOL, self.handle

    def synchronize(self) -> None:
        """Waits for all work in the stream."""
        with self.context.activated():
            self.context.driver.stream_synchronize(self.handle)

    def is_done(self) -> bool:
        """True when all work in the stream is done; never waits."""
        with self.context.activated():
            return self.context.driver.stream_query(self.handle)

    def wait(self, event: Event) -> None:
        """Work given to the stream from now on starts after ``event``."""
        with self.context.activated():
            self.context.driver.stream_wait_event(self.handle, event.handle)

    def begin_capture(self, mode: CaptureMode = CaptureMode.THREAD_LOCAL) -> None:
        """From now on work given to the stream is recorded instead of run."""
        with self.context.activated():
            self.context.driver.stream_begin_capture(self.handle, mode)

    def end_capture(self) -> int:
        """Ends the capture; the CUgraph, which the caller owns."""
        with self.context.activated():
            return self.context.driver.stream_end_capture(self.handle)

    @property
    def is_capturing(self) -> bool:
        with self.context.activated():
            return self.context.driver.stream_is_capturing(self.handle)

    def _destroy(self, handle: int) -> None:
        self.context.driver.stream_destroy(handle)


def stream_handle(stream: object) -> int:
    """The CUstream of an integer, an object with ``__cuda_stream__``, or one with ``cuda_stream`` (torch).

    Raises AttributeTypeError for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != _STREAM_PROTOCOL:
            raise AttributeTypeError.at("stream.__cuda_stream__", expected=f"version {_STREAM_PROTOCOL}", got=version)
        return int(handle)
    handle = getattr(stream, "cuda_stream", None)
    if isinstance(handle, int):
        return handle
    raise AttributeTypeError.at(
        "stream", expected="an integer or an object with __cuda_stream__", got=f"{type(stream).__name__} {stream!r}"
    )
