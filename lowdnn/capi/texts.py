"""The two functions of texts, which return no status."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress

from lowdnn.capi.memory import Address, write_text
from lowdnn.capi.state import State
from lowdnn.status import Status

_UNKNOWN = "CUDNN_STATUS_UNKNOWN"


def error_strings(state: State) -> Callable[[int], int]:
    """cudnnGetErrorString: the address of a status's name. The names outlive the interpreter, as C callers expect."""
    keep = ctypes.CDLL(None).strdup
    keep.restype, keep.argtypes = ctypes.c_void_p, (ctypes.c_char_p,)
    addresses: dict[int, int] = {int(status): keep(status.c_name.encode()) for status in Status}
    unknown: int = keep(_UNKNOWN.encode())
    count = state.counts.counter("cudnnGetErrorString")

    def error_string(status: int) -> int:
        count()
        return addresses.get(status, unknown)

    return error_string


def last_error_string(state: State) -> Callable[[Address, int], None]:
    """cudnnGetLastErrorString: the message of the thread's last call that failed, cut off at the buffer's size."""
    count = state.counts.counter("cudnnGetLastErrorString")

    def last_error(message: Address, size_bytes: int) -> None:
        with suppress(BaseException):
            count()
            write_text(message, state.last_error.message, size_bytes)

    return last_error
