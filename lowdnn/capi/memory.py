"""C memory of callers: pointers that are checked for NULL, arrays of fixed element types, texts."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lowdnn.status import NullPointerError, OutOfBoundError

#: An address as ctypes hands it over: None for NULL.
Address = int | None

#: Most bytes of an array that is read or written; a larger count is an error of the caller.
_MAX_ARRAY_BYTES = 1 << 31


def checked(address: Address, where: str) -> int:
    """The address; raises NullPointerError for NULL."""
    if not address:
        raise NullPointerError.at(where, expected="a pointer", got="NULL")
    return address


def read_array(address: Address, element: str, count: int, where: str) -> tuple[Any, ...]:
    """``count`` elements of a ``struct`` format (one letter); no pointer is needed for 0 elements.

    Raises NullPointerError, and OutOfBoundError for a count below 0 or beyond any array.
    """
    form, buffer = _array(element, count, where)
    if count == 0:
        return ()
    return form.unpack(buffer.from_address(checked(address, where)))


def write_array(address: Address, element: str, values: Sequence[Any], where: str) -> None:
    """Writes the elements; raises as ``read_array`` does."""
    form, buffer = _array(element, len(values), where)
    if values:
        buffer.from_address(checked(address, where)).raw = form.pack(*values)


def write_pointer(address: Address, pointer: int, where: str) -> None:
    """Raises NullPointerError for NULL."""
    variable_at(ctypes.c_uint64, checked(address, where)).value = pointer


def write_bytes(address: Address, content: bytes, where: str) -> None:
    """Raises NullPointerError for NULL, unless there is nothing to write."""
    if content:
        ctypes.memmove(checked(address, where), content, len(content))


def write_outputs(*outputs: tuple[Address, str, int | float, str]) -> None:
    """Writes one value through each pointer, given as (address, format, value, name), or nothing where one is NULL."""
    for address, _, _, where in outputs:
        checked(address, where)
    for address, element, value, where in outputs:
        write_array(address, element, (value,), where)


def write_wanted(*outputs: tuple[Address, str, int | float, str]) -> None:
    """Writes outputs as ``write_outputs`` does, but for those that are NULL."""
    write_outputs(*[output for output in outputs if output[0]])


@lru_cache(maxsize=64)
def variable_at(kind: Any, address: int) -> Any:
    """The variable of a ctypes type at an address, which is not read yet.

    To make one costs more than to read it, and callers give the same few addresses again and again.
    """
    return kind.from_address(address)


def write_text(address: Address, text: bytes, size_bytes: int) -> None:
    """Writes the text with a zero byte behind it, cut off at ``size_bytes`` in all; nothing at NULL or size 0."""
    if address and size_bytes > 0:
        content = text[: size_bytes - 1] + b"\0"
        ctypes.memmove(address, content, len(content))


@lru_cache(maxsize=1024)
def _array(element: str, count: int, where: str) -> tuple[struct.Struct, Any]:
    """The form of an array, and the type of its bytes; raises OutOfBoundError."""
    size_bytes = struct.calcsize(f"={element}") * count
    if not 0 <= size_bytes <= _MAX_ARRAY_BYTES:
        raise OutOfBoundError.at(f"{where}.count", expected="0 or more, of at most 2 GiB", got=count)
    return struct.Struct(f"={count}{element}"), ctypes.c_char * size_bytes
