"""Streams and events of a handle's device, for programs that have no other library to make them."""

from __future__ import annotations

from lowdnn.backend.handle import Handle
from lowdnn.checks import boolean, instance, integer
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream


def create_stream(handle: Handle, *, priority: int = 0) -> Stream:
    """A new stream of the handle's device; ``handle.set_stream`` has work go into it.

    It is not ordered with the legacy default stream. priority: a lower number runs first. Close with ``close`` or
    ``with``; a handle that still has it then needs another one before its next call.
    """
    _check(handle, "create_stream")
    return Stream.create(handle.runtime.context, priority=integer(priority, "create_stream.priority"))


def create_event(handle: Handle, *, is_timed: bool = True) -> Event:
    """A new event of the handle's device: ``record`` it in a stream, and let others ``wait`` for it.

    is_timed: whether ``elapsed_ms`` measures it; one that is not timed costs less. Close with ``close`` or ``with``.
    """
    _check(handle, "create_event")
    return Event.create(handle.runtime.context, is_timed=boolean(is_timed, "create_event.is_timed"))


def _check(handle: object, call: str) -> None:
    instance(handle, Handle, f"{call}.handle").check_open(call)
