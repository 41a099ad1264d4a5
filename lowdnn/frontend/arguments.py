"""Checks of the arguments of pygraph's methods: each returns the value in its Python type, or raises.

Values that pybind11 converts for cudnn-frontend are converted here: None to False, whatever has a truth value to a
bool, what has ``__index__`` (bools and NumPy's integers too) to an integer, what has ``__float__`` to a float, bytes to
text. All raise AttributeTypeError (a BadParamError and a TypeError), or OutOfBoundError for a value out of range.
"""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from typing import TypeVar

from lowdnn import checks
from lowdnn.checks import INT64_MAX, index, sequence, shown
from lowdnn.status import AttributeTypeError, OutOfBoundError


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
    """An integer from ``least`` to ``most``, or a bool."""
    return checks.integer(int(value) if isinstance(value, bool) else value, where, least, most)


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


def rationals(values: object, where: str) -> tuple[int | Fraction, ...]:
    """A sequence of integers and fractions; whole fractions become integers."""
    return tuple(
        value if isinstance(value, Fraction) and value.denominator > 1 else integer(_whole(value), where)
        for value in sequence(values, where, "integers and fractions")
    )


def number(value: object, where: str, expected: str = "a number") -> float | int:
    """A number; NaN and infinities are numbers."""
    whole = index(value)
    found = checks.real(value) if whole is None else whole
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


def _whole(value: object) -> object:
    return value.numerator if isinstance(value, Fraction) else value
