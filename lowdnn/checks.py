"""Checks of the arguments of lowdnn's own functions: each returns the value in its Python type, or raises.

A bool is no number, and text is no sequence. Functions that mirror cudnn-frontend's convert what pybind11 converts for
it (``frontend.arguments``). All raise AttributeTypeError (a BadParamError and a TypeError) for a value of another type,
and OutOfBoundError for one out of range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

import numpy as np

from lowdnn.status import AttributeTypeError, OutOfBoundError

T = TypeVar("T")

#: Extents, strides, sizes and uids are signed 64-bit integers.
INT64_MAX = 2**63 - 1
#: The most characters of a value that messages show.
_LONGEST = 200


def integer(value: object, where: str, least: int = -(2**63), most: int = INT64_MAX) -> int:
    """An integer from ``least`` to ``most``: Python's, NumPy's, or what has ``__index__``."""
    number = None if isinstance(value, (bool, np.bool_)) else index(value)
    if number is None:
        raise AttributeTypeError.at(where, expected="an integer", got=shown(value))
    if not least <= number <= most:
        raise OutOfBoundError.at(where, expected=f"{least} to {most}", got=number)
    return number


def integers(values: object, where: str, least: int = -(2**63)) -> tuple[int, ...]:
    """A sequence of integers, none below ``least``."""
    found = sequence(values, where, "integers")
    return tuple(integer(value, f"{where}[{place}]", least) for place, value in enumerate(found))


def positive(value: object, where: str) -> float:
    """A number above 0, which may be infinite."""
    number = None if isinstance(value, (bool, np.bool_)) else real(value)
    if number is None:
        raise AttributeTypeError.at(where, expected="a number", got=shown(value))
    if not number > 0:
        raise OutOfBoundError.at(where, expected="more than 0", got=number)
    return number


def boolean(value: object, where: str) -> bool:
    """True or False."""
    return instance(value, bool, where, "True or False")


def sequence(values: object, where: str, elements: str) -> tuple[Any, ...]:
    """The elements of a list, an array or any other iterable; ``elements`` names them in messages."""
    if not isinstance(values, (str, bytes)) and isinstance(values, Iterable):
        try:
            return tuple(values)
        except TypeError:  # an array of no dimensions
            pass
    raise AttributeTypeError.at(where, expected=f"a sequence of {elements}", got=shown(values))


def mapping(values: object, where: str, entries: str) -> Mapping[Any, Any]:
    """A dict, or what is read like one; ``entries`` names its items in messages."""
    if not isinstance(values, Mapping):
        raise AttributeTypeError.at(where, expected=f"a dict of {entries}", got=shown(values))
    return values


def instance(value: object, kind: type[T], where: str, expected: str = "") -> T:
    """An object of ``kind``; ``expected`` says how it is made, or what it stands for."""
    if not isinstance(value, kind):
        raise AttributeTypeError.at(where, expected=expected or f"a {kind.__name__}", got=shown(value))
    return value


def optional(value: object, kind: type[T], where: str, expected: str = "") -> T | None:
    """An object of ``kind``, or None."""
    return None if value is None else instance(value, kind, where, expected or f"a {kind.__name__} or None")


def shown(value: object) -> str:
    """``value`` in a message: short, whatever its ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # the caller's own code
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def index(value: object) -> int | None:
    """The result of ``__index__`` as a plain integer, a bool's too; None where there is none."""
    if type(value) is int:  # the question below takes some microseconds
        return value
    if not isinstance(value, SupportsIndex):
        return None
    try:
        return int(value.__index__())
    except (TypeError, ValueError, RuntimeError):  # an array that is no integer
        return None


def real(value: object) -> float | None:
    """The result of ``__float__``, unless an imaginary part would be lost; None where there is none."""
    if not isinstance(value, SupportsFloat) or isinstance(value, (complex, np.complexfloating)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several elements
        return None
