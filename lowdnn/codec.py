"""Frozen dataclasses to JSON values and back, checked against their type hints.

A dataclass becomes ``{"class": name, field: value...}``, an enum member ``{"enum": class, "name": member}``, a tuple a
list, a float that JSON has no number for ``{"float": "inf"}``, a fraction ``{"fraction": [1, 2]}``. Reading builds only
classes that the codec was given and only with every field present and of its declared type: nothing in the text is
trusted. A field that was added later on (``LEFT_OUT``) is left out where it has its default, as in documents from
before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property, reduce
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from lowdnn.documents import NAME_RULE, is_name, place, shown
from lowdnn.status import BadParamError

DataclassT = TypeVar("DataclassT")

#: The metadata of fields that documents leave out where they have their default: those that were added later on.
LEFT_OUT: Final = "lowdnn.left_out"

#: Types of values that JSON holds as they are; floats apart, of which it has no inf and nan.
_PLAIN = frozenset((int, str, bool, type(None)))

_INT64 = range(-(2**63), 2**63)


def encode(value: object) -> Any:
    """``value`` as lists, dicts, strings, numbers and None."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Enum):
        return {"enum": kind.__name__, "name": value.name}
    if is_dataclass(kind):
        found = {name: encode(getattr(value, name)) for name in _names(kind)}
        for name, default in _left_out(kind).items():
            if getattr(value, name) == default:
                del found[name]
        return {"class": kind.__name__} | found
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, Fraction):
        return {"fraction": [value.numerator, value.denominator]}
    return value


class Codec:
    """Reads the JSON form of a set of dataclasses and enums."""

    def __init__(self, classes: Iterable[type], enums: Iterable[type[Enum]]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._enums = {cls.__name__: cls for cls in enums}

    def decode(self, value: Any, expected: type[DataclassT], where: str) -> DataclassT:
        """The ``expected`` object that ``encode`` gave ``value`` for; raises BadParamError naming the place.

        Errors of the class's own checks pass through.
        """
        try:
            decoded = self._decode(value)
        except _Misfit as misfit:
            steps = reversed(misfit.steps)
            raise BadParamError.at(
                reduce(place, steps, where), expected=misfit.expected, got=shown(misfit.got)
            ) from None
        if not isinstance(decoded, expected):
            raise BadParamError.at(where, expected=expected.__name__, got=type(decoded).__name__)
        return decoded

    def _decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple([self._decode_at(index, item) for index, item in enumerate(value)])
        if not isinstance(value, dict):
            return value
        if value.keys() == {"enum", "name"}:
            return self._decode_enum(value)
        if value.keys() == {"float"}:
            return _decode_float(value["float"])
        if value.keys() == {"fraction"}:
            return _decode_fraction(value["fraction"])
        return self._decode_dataclass(value)

    def _decode_at(self, step: str | int, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        try:
            return self._decode(value)
        except _Misfit as misfit:
            misfit.steps.append(step)
            raise

    def _decode_enum(self, value: dict[str, Any]) -> Enum:
        enum, name = value["enum"], value["name"]
        found = self._enums.get(enum) if isinstance(enum, str) else None
        if found is None or not isinstance(name, str) or name not in found.__members__:
            raise _Misfit("a known enum member", value)
        return found[name]

    def _decode_dataclass(self, value: dict[str, Any]) -> Any:
        name = value.get("class")
        cls = self._classes.get(name) if isinstance(name, str) else None
        if cls is None:
            raise _Misfit(f"one of {sorted(self._classes)}", name)
        rules = self._rules[cls]
        absent = _left_out(cls).keys() - value.keys()
        if value.keys() != {"class", *rules} - absent:
            raise _Misfit(f"the fields of {name}", sorted(value))
        values = {field: self._decode_at(field, value[field]) for field in rules if field not in absent}
        for field, item in values.items():
            hint, fits = rules[field]
            if not fits(item):
                raise _Misfit(_rule(hint), value[field], field)
        return cls(**values)

    @cached_property
    def _rules(self) -> dict[type, dict[str, tuple[Any, Callable[[Any], bool]]]]:
        """The declared type of each field of each class, and the predicate of its values."""
        hints = {cls: get_type_hints(cls) for cls in self._classes.values()}
        return {cls: {f.name: (hints[cls][f.name], _fits(hints[cls][f.name])) for f in fields(cls)} for cls in hints}


class _Misfit(Exception):
    """A value that does not fit; ``steps`` lead to it, from the last one to the first."""

    def __init__(self, expected: str, got: object, *steps: str | int) -> None:
        super().__init__(expected)
        self.expected = expected
        self.got = got
        self.steps = list(steps)


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


@cache
def _left_out(cls: type) -> dict[str, Any]:
    """The fields that are left out where they have their default, with that default."""
    return {f.name: f.default for f in fields(cls) if f.metadata.get(LEFT_OUT)}


def _decode_float(name: Any) -> float:
    if name not in ("inf", "-inf", "nan"):
        raise _Misfit("inf, -inf or nan", name)
    return float(name)


def _decode_fraction(parts: Any) -> Fraction:
    if not isinstance(parts, list) or len(parts) != 2 or not all(map(_is_int64, parts)) or parts[1] < 1:
        raise _Misfit("[numerator, denominator] with a denominator >= 1", parts)
    return Fraction(*parts)


def _fits(hint: Any) -> Callable[[Any], bool]:
    """The predicate of the values of ``hint``, a plain type, union or tuple; an int counts as a float, too."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        parts = [_fits(part) for part in arguments]
        return lambda value: any(fits(value) for fits in parts)
    if origin is tuple:
        return _fits_tuple(arguments)
    if hint is float:
        return lambda value: type(value) is float or _is_int64(value)
    if hint is int:
        return _is_int64
    if hint is str:
        return lambda value: isinstance(value, str) and is_name(value)
    wanted = NoneType if hint is None else hint
    return lambda value: isinstance(value, wanted)


def _fits_tuple(hints: tuple[Any, ...]) -> Callable[[Any], bool]:
    if len(hints) == 2 and hints[1] is Ellipsis:
        each = _fits(hints[0])
        return lambda values: isinstance(values, tuple) and all(map(each, values))
    items = [_fits(hint) for hint in hints]
    return lambda values: (
        isinstance(values, tuple)
        and len(values) == len(items)
        and all(fits(value) for fits, value in zip(items, values, strict=True))
    )


def _is_int64(value: Any) -> bool:
    return type(value) is int and value in _INT64


def _rule(hint: Any) -> str:
    if hint is int:
        return "int, of 64 bits with its sign"
    name = hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
    return f"{name}, {NAME_RULE}" if str in (hint, *get_args(hint)) else name
