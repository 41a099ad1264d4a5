"""Frozen dataclasses to JSON values and back, checked against their type hints.

A dataclass becomes ``{"class": name, field: value...}``, an enum member ``{"enum": class, "name": member}``, a tuple a
list, a float that JSON has no number for ``{"float": "inf"}``, a fraction ``{"fraction": [1, 2]}``. Reading builds only
classes that the codec was given and only with every field present and of its declared type: nothing in the text is
trusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from lowdnn.status import BadParamError, SerializationVersionMismatchError

DataclassT = TypeVar("DataclassT")


class Codec:
    """The JSON form of a set of dataclasses and enums."""

    def __init__(self, classes: Iterable[type], enums: Iterable[type[Enum]]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        self._enums = {cls.__name__: cls for cls in enums}

    def encode(self, value: object) -> Any:
        """``value`` as lists, dicts, strings, numbers and None."""
        if isinstance(value, Enum):
            return {"enum": type(value).__name__, "name": value.name}
        if is_dataclass(value) and not isinstance(value, type):
            encoded = {f.name: self.encode(getattr(value, f.name)) for f in fields(value)}
            return {"class": type(value).__name__} | encoded
        if isinstance(value, tuple):
            return [self.encode(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": repr(value)}
        if isinstance(value, Fraction):
            return {"fraction": [value.numerator, value.denominator]}
        return value

    def decode(self, value: Any, expected: type[DataclassT], where: str) -> DataclassT:
        """The ``expected`` object that ``encode`` gave ``value`` for; raises BadParamError naming the place.

        Errors of the class's own checks pass through.
        """
        decoded = self._decode(value, where)
        if not isinstance(decoded, expected):
            raise BadParamError.at(where, expected=expected.__name__, got=type(decoded).__name__)
        return decoded

    def _decode(self, value: Any, where: str) -> Any:
        if isinstance(value, list):
            return tuple(self._decode(item, f"{where}[{index}]") for index, item in enumerate(value))
        if not isinstance(value, dict):
            return value
        if "enum" in value:
            return self._decode_enum(value, where)
        if "float" in value:
            return _decode_float(value["float"], where)
        if "fraction" in value:
            return _decode_fraction(value["fraction"], where)
        return self._decode_dataclass(value, where)

    def _decode_enum(self, value: dict[str, Any], where: str) -> Enum:
        enum, name = value["enum"], value.get("name")
        found = self._enums.get(enum) if isinstance(enum, str) else None
        if found is None or not isinstance(name, str) or name not in found.__members__:
            raise BadParamError.at(where, expected="a known enum member", got=value)
        return found[name]

    def _decode_dataclass(self, value: dict[str, Any], where: str) -> Any:
        name = value.get("class")
        cls = self._classes.get(name) if isinstance(name, str) else None
        if cls is None:
            raise BadParamError.at(where, expected=f"one of {sorted(self._classes)}", got=name)
        values = {field: self._decode(item, f"{where}.{field}") for field, item in value.items() if field != "class"}
        hints = self._hints[cls]
        if set(values) != set(hints):
            raise BadParamError.at(where, expected=f"the fields of {cls.__name__}", got=sorted(values))
        for field, item in values.items():
            if not _has_type(item, hints[field]):
                raise BadParamError.at(f"{where}.{field}", expected=_hint_name(hints[field]), got=repr(item))
        return cls(**values)

    @cached_property
    def _hints(self) -> dict[type, dict[str, Any]]:
        """The declared type of each field of each class."""
        return {
            cls: {f.name: hints[f.name] for f in fields(cls)}
            for cls, hints in ((cls, get_type_hints(cls)) for cls in self._classes.values())
        }


def write_document(kind: str, version: int, body: str, content: Any) -> str:
    """The text ``{kind: version, body: content}``."""
    return json.dumps({kind: version, body: content}, separators=(",", ":"), allow_nan=False)


def read_document(text: str, kind: str, version: int, body: str, where: str) -> Any:
    """The content that ``write_document`` wrote.

    Raises SerializationVersionMismatchError for another version, BadParamError for text that is no JSON document.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadParamError.at(where, expected="a JSON document", got=str(error)) from None
    found = document.get(kind) if isinstance(document, dict) else None
    if found != version or isinstance(found, bool):
        raise SerializationVersionMismatchError.at(f"{where}.{kind}", expected=version, got=found, hint="make it again")
    return document.get(body)


def _decode_float(name: Any, where: str) -> float:
    if name not in ("inf", "-inf", "nan"):
        raise BadParamError.at(where, expected="inf, -inf or nan", got=name)
    return float(name)


def _decode_fraction(parts: Any, where: str) -> Fraction:
    numbers = tuple(parts) if isinstance(parts, list) else ()
    if not _has_type(numbers, tuple[int, int]) or numbers[1] < 1:
        raise BadParamError.at(where, expected="[numerator, denominator] with a denominator >= 1", got=parts)
    return Fraction(*numbers)


def _has_type(value: Any, hint: Any) -> bool:
    """True where ``value`` is one of ``hint``: plain types, unions, tuples. An int stands for a float too."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_has_type(value, part) for part in get_args(hint))
    if origin is tuple:
        return isinstance(value, tuple) and _has_item_types(value, get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, (bool, Enum))
    return isinstance(value, NoneType if hint is None else hint)


def _has_item_types(values: tuple[Any, ...], hints: tuple[Any, ...]) -> bool:
    if len(hints) == 2 and hints[1] is Ellipsis:
        return all(_has_type(value, hints[0]) for value in values)
    return len(values) == len(hints) and all(map(_has_type, values, hints))


def _hint_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)
