"""Text of cases: ``key=value`` words to the fields of a frozen dataclass and back.

A field made with ``key`` says by its codec how its text is read and written; errors name the key, the rule and the
value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from fractions import Fraction
from typing import Any, Final, TypeVar

from lowdnn import dtypes
from lowdnn.documents import shown
from lowdnn.enums import DataType
from lowdnn.status import BadParamError, LowdnnError

_KEY: Final = "lowdnn.case_text"
_FAST: Final = "fast"
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
#: The form of sizes; exponents are left out, since they would make numbers of any length.
_RATIONAL: Final = re.compile(r"-?[0-9]{1,18}((/|\.)[0-9]{1,18})?")
_INT64_MAX: Final = 2**63 - 1

#: Characters of the longest key that a message shows.
_MOST_NAME: Final = 80

CaseT = TypeVar("CaseT")


@dataclass(frozen=True)
class Codec:
    """How the value of a key is written. ``parse`` raises ValueError where ``rule`` is broken."""

    rule: str
    parse: Callable[[str], Any]
    format: Callable[[Any], str] = str


def key(codec: Codec, default: Any = MISSING) -> Any:
    """A dataclass field that is a key of the case's text; without a default it is required."""
    return field(default=default, metadata={_KEY: codec})


def parse_fields(cls: type[CaseT], family: str, words: list[str]) -> CaseT:
    """The case from its ``key=value`` words. Raises BadParamError naming key, rule and value."""
    declared = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if name not in declared or not equals:
            rule = "key=value with a key of " + ", ".join(declared)
            raise BadParamError.at(f"{family}.{name[:_MOST_NAME]}", expected=rule, got=shown(word))
        if name in values:
            raise BadParamError.at(f"{family}.{name}", expected="each key once", got=shown(word))
        values[name] = _parse(f"{family}.{name}", declared[name], text)
    for name, item in declared.items():
        if item.default is MISSING and name not in values:
            raise BadParamError.at(f"{family}.{name}", expected="a value", got="none", hint=f"add {name}=...")
    return cls(**values)


def format_fields(case: Any, family: str) -> str:
    """The text of a case: every key that has no default or another value than its default."""
    words = [family]
    for item in fields(case):
        value = getattr(case, item.name)
        if item.default is MISSING or value != item.default:
            words.append(f"{item.name}={item.metadata[_KEY].format(value)}")
    return " ".join(words)


def integer(least: int) -> Codec:
    def parse(text: str) -> int:
        value = _integer(text)
        if value < least:
            raise ValueError
        return value

    return Codec(f"an integer >= {least}", parse)


def extents(least: int, most: int = 8) -> Codec:
    """``2x3x4``: a tuple of integers."""

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(_integer(part) for part in text.split("x"))
        if len(values) > most or min(values) < least:
            raise ValueError
        return values

    return Codec(f"1 to {most} integers >= {least} joined by 'x'", parse, lambda value: "x".join(map(str, value)))


def paddings() -> Codec:
    """``1``, ``1x2`` or ``0:1x1:2``: (before, after) for each axis."""

    def parse(text: str) -> tuple[tuple[int, int], ...]:
        pairs = []
        for part in text.split("x"):
            before, colon, after = part.partition(":")
            pairs.append((_integer(before), _integer(after if colon else before)))
        if min(min(pair) for pair in pairs) < 0:
            raise ValueError
        return tuple(pairs)

    def show(value: tuple[tuple[int, int], ...]) -> str:
        return "x".join(str(a) if a == b else f"{a}:{b}" for a, b in value)

    return Codec("integers >= 0, or before:after pairs of them, joined by 'x'", parse, show)


def rationals() -> Codec:
    """``2`` or ``1/2x3``: a tuple of fractions > 0."""

    def parse(text: str) -> tuple[Fraction, ...]:
        values = tuple(map(_rational, text.split("x")))
        if min(values) <= 0:
            raise ValueError
        return values

    return Codec("numbers > 0, such as 2 or 1/2, joined by 'x'", parse, lambda value: "x".join(map(str, value)))


def rational_paddings() -> Codec:
    """``1/2`` or ``0:1x3/4``: (before, after) for each axis, of any sign."""

    def parse(text: str) -> tuple[tuple[Fraction, Fraction], ...]:
        pairs = (part.partition(":") for part in text.split("x"))
        return tuple((_rational(before), _rational(after if colon else before)) for before, colon, after in pairs)

    def show(value: tuple[tuple[Fraction, Fraction], ...]) -> str:
        return "x".join(str(a) if a == b else f"{a}:{b}" for a, b in value)

    return Codec("numbers such as 1 or 1/2, or before:after pairs of them, joined by 'x'", parse, show)


def axes() -> Codec:
    """``1,2``: distinct axes in ascending order."""

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(_integer(part) for part in text.split(","))
        if list(values) != sorted(set(values)) or min(values) < 0:
            raise ValueError
        return values

    return Codec("ascending axes joined by ','", parse, lambda value: ",".join(map(str, value)))


def indices() -> Codec:
    """``0,2,1``: integers in any order."""

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(_integer(part) for part in text.split(","))
        if min(values) < 0:
            raise ValueError
        return values

    return Codec("integers >= 0 joined by ','", parse, lambda value: ",".join(map(str, value)))


def words() -> Codec:
    """Text that the field's user checks, not this codec."""
    return Codec("text without blanks", str)


def number() -> Codec:
    return Codec("a finite number", _finite, _number_text)


def share() -> Codec:
    """The share of a whole that is dropped: at least 0 and below 1."""

    def parse(text: str) -> float:
        value = float(text)
        if not 0 <= value < 1:
            raise ValueError
        return value

    return Codec("a number from 0 to less than 1", parse, _number_text)


def choice(*names: str) -> Codec:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    return Codec("one of " + ", ".join(names), parse)


def names(allowed: tuple[str, ...]) -> Codec:
    """``bias+relu``: a tuple of names."""

    def parse(text: str) -> tuple[str, ...]:
        values = tuple(text.split("+"))
        if not set(values) <= set(allowed):
            raise ValueError
        return values

    return Codec("names joined by '+', of " + ", ".join(allowed), parse, "+".join)


def data_type() -> Codec:
    """``bf16``: a short name of the dtype table; an unset type is None."""
    allowed = ", ".join(dtypes.info(t).short_name for t in dtypes.supported())

    def parse(text: str) -> DataType:
        try:
            return dtypes.by_short_name(text)
        except LowdnnError:
            raise ValueError from None

    return Codec(f"one of {allowed}", parse, lambda value: dtypes.info(value).short_name)


def sum_type() -> Codec:
    """A short name of a data type, or ``fast``: FAST_FLOAT_FOR_FP8, which no tensor has."""
    types = data_type()

    def parse(text: str) -> DataType:
        return DataType.FAST_FLOAT_FOR_FP8 if text == _FAST else types.parse(text)

    def show(value: DataType) -> str:
        return _FAST if value is DataType.FAST_FLOAT_FOR_FP8 else types.format(value)

    return Codec(f"{types.rule}, {_FAST}", parse, show)


def _integer(text: str) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or abs(value) > _INT64_MAX:
        raise ValueError
    return value


def _rational(text: str) -> Fraction:
    if not _RATIONAL.fullmatch(text):
        raise ValueError
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ValueError from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _number_text(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _parse(where: str, item: Field[Any], text: str) -> Any:
    codec: Codec = item.metadata[_KEY]
    try:
        return codec.parse(text)
    except ValueError:
        raise BadParamError.at(where, expected=codec.rule, got=shown(text)) from None
