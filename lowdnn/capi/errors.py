"""Exceptions become statuses. Nothing that a call raises reaches C: it becomes a status, a text and a message."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from lowdnn.capi.state import State
from lowdnn.enums import Severity
from lowdnn.status import LowdnnError, Status

#: A call behind a function that returns a status, of the state and the C arguments. C does not see its result.
Call = Callable[..., object]

_SUCCESS = int(Status.SUCCESS)


def guarded(name: str, call: Call, state: State) -> Callable[..., int]:
    """The function in Python behind the C function ``name``: it returns the status of every call and never raises."""
    count, thread = state.counts.counter(name), state.threads.calling

    def returned(*arguments: Any) -> int:
        try:
            count()
            if not thread.number:
                state.threads.keep()
            call(state, *arguments)
            if state.log.mask:
                _tell_success(name, state)
        except BaseException as error:
            # An interrupt (KeyboardInterrupt) is a status, too: the caller's C frames cannot be unwound.
            return failed(name, error, state)
        return _SUCCESS

    return returned


def is_in_call(frame: FrameType | None) -> bool:
    """Whether a thread with this innermost frame is inside of a C function."""
    while frame is not None and frame.f_globals is not globals():
        frame = frame.f_back
    return frame is not None


def failed(name: str, error: BaseException, state: State) -> int:
    """Remembers the error for the thread, logs it, and returns its status."""
    try:
        status, text = status_of(error), _text_of(name, error)
        state.last_error.remember(text.encode(errors="backslashreplace"))
        log = state.log  # once, since another thread may set it
        if log.wants(Severity.ERROR):
            log.tell(Severity.ERROR, status, text, state.since_s)
    except BaseException:
        return Status.INTERNAL_ERROR
    return int(status)


def status_of(error: BaseException) -> Status:
    """The status that stands for an exception; Python's own are internal errors."""
    if isinstance(error, LowdnnError):
        return error.status
    if isinstance(error, MemoryError):
        return Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    return Status.INTERNAL_ERROR


def _text_of(name: str, error: BaseException) -> str:
    if isinstance(error, LowdnnError):
        return f"{name}: {error}"
    return f"{name}: {Status.INTERNAL_ERROR.name} {type(error).__name__}: {error}"


def _tell_success(name: str, state: State) -> None:
    log = state.log
    if log.wants(Severity.INFO):
        log.tell(Severity.INFO, Status.SUCCESS, name, state.since_s)
