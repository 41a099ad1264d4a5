"""Checks of what a caller hands to pygraph's methods: each gives the value in its Python type, or raises.

NumPy's integers, floats and bools count as Python's, since shapes and scalars of arrays come as them; a bool is never
a number. All raise AttributeTypeError (a BadParamError and a TypeError), or OutOfBoundError for a value out of range.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from fractions import Fraction
from typing import SupportsIndex, TypeVar

import numpy as np

from lowdnn.status import AttributeTypeError, OutOfBoundError

#: Extents, strides and uids are signed 64-bit integers.
INT64_MAX = 2**63 - 1

E = TypeVar("E", bound=IntEnum)


def integer(value: object, where: str, least: int = -(2**63), most: int = INT64_MAX) -> int:
    """An integer from ``least`` to ``most``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, SupportsIndex):
        raise AttributeTypeError.at(where, expected="an integer", got=repr(value))
    try:
        number = value.__index__()
    except TypeError:
        raise AttributeTypeError.at(where, expected="an integer", got=repr(value)) from None
    if not least <= number <= most:
        raise OutOfBoundError.at(where, expected=f"{least} to {most}", got=number)
    return number


def integers(values: object, where: str, least: int = -(2**63)) -> tuple[int, ...]:
    """A sequence of integers, none below ``least``."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise AttributeTypeError.at(where, expected="a sequence of integers", got=repr(values))
    found = tuple(values)
    try:
        return tuple(integer(value, where, least) for value in found)
    except AttributeTypeError:
        raise AttributeTypeError.at(where, expected="integers", got=list(found)) from None
    except OutOfBoundError:
        limits = f"integers from {least} to {INT64_MAX}"
        raise OutOfBoundError.at(where, expected=limits, got=list(found)) from None


def rationals(values: object, where: str) -> tuple[int | Fraction, ...]:
    """A sequence of integers and fractions; whole fractions become integers."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise AttributeTypeError.at(where, expected="a sequence of integers and fractions", got=repr(values))
    return tuple(
        value if isinstance(value, Fraction) and value.denominator > 1 else integer(_whole(value), where)
        for value in values
    )


def _whole(value: object) -> object:
    return value.numerator if isinstance(value, Fraction) else value


def number(value: object, where: str, expected: str = "a number") -> float | int:
    """A number; NaN and infinities are numbers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise AttributeTypeError.at(where, expected=expected, got=repr(value))
    return value if type(value) is int else int(value) if isinstance(value, (int, np.integer)) else float(value)


def optional_number(value: object, where: str) -> float | int | None:
    """A number, or None."""
    return None if value is None else number(value, where)


def boolean(value: object, where: str) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise AttributeTypeError.at(where, expected="True or False", got=repr(value))
    return bool(value)


def text(value: object, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise AttributeTypeError.at(where, expected="a string", got=repr(value))
    return value


def member(wanted: type[E], value: object, where: str) -> E:
    """A member of the enum ``wanted``. A number is none: the frontend's and the backend's enums number differently."""
    if not isinstance(value, wanted):
        raise AttributeTypeError.at(where, expected=f"a member of {wanted.__name__}", got=repr(value))
    return value


def members(wanted: type[E], values: object, where: str) -> tuple[E, ...]:
    """A sequence of members of the enum ``wanted``."""
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise AttributeTypeError.at(where, expected=f"a list of {wanted.__name__}", got=repr(values))
    return tuple(member(wanted, value, where) for value in values)
