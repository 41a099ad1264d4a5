"""The Python types of arguments, which a compiler checks in C."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lowdnn.status import AttributeTypeError

Types = type | tuple[type, ...]

NONE = type(None)
REAL = (float, int)

_NAMES = {int: "an integer", float: "a number", bool: "a bool", tuple: "a tuple", NONE: "None"}
#: Characters of a value in a message.
_LONGEST = 60


def check_types(where: str, values: Mapping[str, Any], wanted: Mapping[str, Types]) -> None:
    """Raises AttributeTypeError for a value of another type than its name's."""
    for name, types in wanted.items():
        check_type(where, values[name], types, name)


def check_integers(where: str, values: Iterable[object]) -> None:
    for index, value in enumerate(values):
        check_type(where, value, int, index)


def check_type(where: str, value: object, types: Types, name: str | int) -> None:
    """Raises AttributeTypeError for a value of none of the types; a bool is no number."""
    if isinstance(value, types) and (value.__class__ is not bool or types is bool):
        return
    choices = types if isinstance(types, tuple) else (types,)
    expected = " or ".join(_NAMES.get(choice, f"a value of type {choice.__name__}") for choice in choices)
    place = f"{where}[{name}]" if isinstance(name, int) else f"{where}.{name}"
    raise AttributeTypeError.at(place, expected=expected, got=repr(value)[:_LONGEST])
