"""Checks of the arguments of pygraph's methods: each returns the value in its Python type, or raises.

Values that pybind11 converts for cudnn-frontend are converted here: None to False, whatever has a truth value to a
bool, what has ``__index__`` (bools and NumPy's integers too) to an integer, what has ``__float__`` to a float, bytes to
text. All raise AttributeTypeError (a BadParamError and a TypeError), or OutOfBoundError for a value out of range.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from fractions import Fraction
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

import numpy as np

from lowdnn.status import AttributeTypeError, OutOfBoundError

#: Extents, strides and uids are signed 64-bit integers.
INT64_MAX = 2**63 - 1

#: The most characters of a value that messages show.
_LONGEST = 200


class NumberedEnum(Enum):
    """An enum of the frontend, as pybind11 makes them: ``int()`` gives a member's number, but it equals no number, and
    no member of another enum such as the backend's, which numbers differently."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        """False for NOT_SET alone."""
        return self.name != "NOT_SET"


E = TypeVar("E", bound=NumberedEnum)


def integer(value: object, where: str, least: int = -(2**63), most: int = INT64_MAX) -> int:
    """An integer from ``least`` to ``most``."""
    number = _index(value)
    if number is None:
        raise AttributeTypeError.at(where, expected="an integer", got=shown(value))
    if not least <= number <= most:
        raise OutOfBoundError.at(where, expected=f"{least} to {most}", got=number)
    return number


def integers(values: object, where: str, least: int = -(2**63)) -> tuple[int, ...]:
    """A sequence of integers, none below ``least``."""
    found = sequence(values, where, "integers")
    try:
        return tuple(integer(value, where, least) for value in found)
    except AttributeTypeError:
        raise AttributeTypeError.at(where, expected="integers", got=shown(list(found))) from None
    except OutOfBoundError:
        limits = f"integers from {least} to {INT64_MAX}"
        raise OutOfBoundError.at(where, expected=limits, got=list(found)) from None


def sequence(values: object, where: str, elements: str) -> tuple[Any, ...]:
    """The elements of a list, an array or any other iterable; ``elements`` names them in messages."""
    if not isinstance(values, (str, bytes)) and isinstance(values, Iterable):
        try:
            return tuple(values)
        except TypeError:  # an array of no dimensions
            pass
    raise AttributeTypeError.at(where, expected=f"a sequence of {elements}", got=shown(values))


def rationals(values: object, where: str) -> tuple[int | Fraction, ...]:
    """A sequence of integers and fractions; whole fractions become integers."""
    return tuple(
        value if isinstance(value, Fraction) and value.denominator > 1 else integer(_whole(value), where)
        for value in sequence(values, where, "integers and fractions")
    )


def number(value: object, where: str, expected: str = "a number") -> float | int:
    """A number; NaN and infinities are numbers."""
    whole = _index(value)
    found = _real(value) if whole is None else whole
    if found is None:
        raise AttributeTypeError.at(where, expected=expected, got=shown(value))
    return found


def real(value: object, where: str, expected: str = "a number") -> float:
    """``value``, a number, as a float."""
    try:
        return float(number(value, where, expected))
    except OverflowError:
        raise OutOfBoundError.at(where, expected="a number of 64 bits", got=shown(value)) from None


def optional_real(value: object, where: str) -> float | None:
    """``value``, a number or None, as a float or None."""
    return None if value is None else real(value, where)


def boolean(value: object, where: str) -> bool:
    """True or False."""
    if value is None or hasattr(type(value), "__bool__"):
        try:
            return bool(value)
        except (TypeError, ValueError, RuntimeError):  # an array of several elements
            pass
    raise AttributeTypeError.at(where, expected="True or False", got=shown(value))


def text(value: object, where: str) -> str:
    """A string."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        raise AttributeTypeError.at(where, expected="a string", got=shown(value))
    return value


def member(wanted: type[E], value: object, where: str) -> E:
    """A member of the enum ``wanted``. A number is none: the frontend's and the backend's enums number differently."""
    if not isinstance(value, wanted):
        raise AttributeTypeError.at(where, expected=f"a member of {wanted.__name__}", got=shown(value))
    return value


def members(wanted: type[E], values: object, where: str) -> tuple[E, ...]:
    """A sequence of members of the enum ``wanted``."""
    return tuple(member(wanted, value, where) for value in sequence(values, where, f"members of {wanted.__name__}"))


def shown(value: object) -> str:
    """``value`` in a message: short, whatever its ``__repr__`` does."""
    try:
        text = repr(value)
    except Exception:  # the caller's own code
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _index(value: object) -> int | None:
    """The result of ``__index__`` as a plain integer."""
    if type(value) is int:  # the question below takes some microseconds
        return value
    if not isinstance(value, SupportsIndex):
        return None
    try:
        return int(value.__index__())
    except (TypeError, ValueError, RuntimeError):  # an array that is no integer
        return None


def _real(value: object) -> float | None:
    """The result of ``__float__``, unless an imaginary part would be lost."""
    if not isinstance(value, SupportsFloat) or isinstance(value, (complex, np.complexfloating)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several elements
        return None


def _whole(value: object) -> object:
    return value.numerator if isinstance(value, Fraction) else value
