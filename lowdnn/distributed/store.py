"""Stores: small values that ranks tell each other before they can communicate, each written once.

Two implementations: ``tcp_store.TcpStore``, where rank 0 or a launcher listens at an address that the others reach, and
``file_store.FileStore``, in a directory that all ranks see.
"""

from __future__ import annotations

import re
from typing import Protocol

from lowdnn import checks
from lowdnn.status import AttributeTypeError, InvalidValueError, OutOfBoundError

#: Keys are names with slashes between them.
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,100}(/[A-Za-z0-9_.-]{1,100}){0,7}")
#: The most bytes of a value: identifiers and lists of ranks are far smaller.
MAX_VALUE_BYTES = 1 << 20
#: The longest time to wait, some months, which every clock and socket takes.
_MAX_WAIT_S = 10_000_000


class Store(Protocol):
    """Values by key. Every call raises CommunicationError where the store cannot be reached any more."""

    def set_once(self, key: str, value: bytes) -> bytes:
        """Writes the value, unless the key has one; the value that the key has now, the same for all ranks."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of the key; waits until some rank writes it.

        Raises CommunicationTimeoutError where none does within ``timeout_s``.
        """

    def keys(self, prefix: str) -> tuple[str, ...]:
        """The keys that have values and begin with ``prefix``, sorted."""

    def close(self) -> None:
        """Leaves the store; closing twice does nothing."""


def seconds(value: object, where: str) -> float:
    """A time to wait, which may be 0. Raises AttributeTypeError and OutOfBoundError."""
    found = None if isinstance(value, bool) else checks.real(value)
    if found is None:
        raise AttributeTypeError.at(where, expected="seconds", got=checks.shown(value))
    if not 0 <= found <= _MAX_WAIT_S:
        raise OutOfBoundError.at(where, expected=f"0 to {_MAX_WAIT_S} seconds", got=found)
    return found


def check_entry(key: object, value: object = b"") -> None:
    """Raises AttributeTypeError and InvalidValueError for what no store takes."""
    if not isinstance(key, str) or not isinstance(value, bytes):
        raise AttributeTypeError.at("Store.set_once", expected="a string and bytes", got=f"{key!r}, {value!r}"[:200])
    if not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise InvalidValueError.at(
            "Store.key", expected="up to 8 names of letters, digits and _.- with / between", got=repr(key)
        )
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidValueError.at("Store.value", expected=f"at most {MAX_VALUE_BYTES} bytes", got=f"{len(value)}")
