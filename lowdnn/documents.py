"""JSON documents: plain values to text, and text from outside to plain values under limits.

A document is an object ``{kind: version, field: content...}``. A document that is read has at most ``MAX_BYTES`` bytes
of UTF-8, ``MAX_ITEMS`` items and ``MAX_DEPTH`` levels, each key once, finite floats, and integers of 64 bits. Whoever
reads a document checks what its fields hold (``codec``); nothing in it is ever compiled, opened or run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lowdnn.status import BadParamError, SerializationVersionMismatchError

MAX_BYTES = 16 << 20
#: The most members of objects and elements of arrays, counted together.
MAX_ITEMS = 2_000_000
#: The most arrays and objects nested in each other.
MAX_DEPTH = 64
#: The range of every integer: that of a signed and of an unsigned number of 64 bits together.
INTEGERS = range(-(2**63), 2**64)

#: The most characters of a name.
MAX_NAME = 1024
NAME_RULE = f"at most {MAX_NAME} characters without control characters"
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

#: Bits of the longest integer that messages show, since Python refuses to print many digits.
_MAX_SHOWN_BITS = 256

#: Characters of the longest integer in the range, with its sign; longer ones are refused unparsed, since Python takes
#: quadratic time for them.
_INTEGER_CHARACTERS = 20


def write_document(kind: str, version: int, fields: Mapping[str, Any]) -> str:
    """The text ``{kind: version, **fields}``, which ``read_document`` takes.

    Raises BadParamError for fields that are beyond the limits of a document.
    """
    content = {kind: version, **fields}
    _check(content, kind, 1)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    _check_size(text, kind)
    return text


def read_document(text: object, kind: str, version: int, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """The fields that ``write_document`` wrote; ``fields`` has the type of each one.  text: str, or UTF-8 bytes.

    Raises SerializationVersionMismatchError for another version, BadParamError for text that is no JSON document within
    the limits, and for other fields or types.
    """
    document = _parsed(_text(text, where), where)
    _check(document, where, 1)
    return read_fields(document, kind, version, fields, where)


def read_fields(document: Any, kind: str, version: int, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """As ``read_document``, for a document that is already parsed, such as one inside another."""
    if not isinstance(document, dict):
        raise BadParamError.at(where, expected="an object", got=type(document).__name__)
    found = document.get(kind)
    if type(found) is not int or found != version:
        raise SerializationVersionMismatchError.at(
            f"{where}.{kind}",
            expected=version,
            got=shown(found),
            hint="write the document again",
        )
    content = {name: item for name, item in document.items() if name != kind}
    if content.keys() != fields.keys():
        wrong = sorted(content.keys() ^ fields.keys())
        raise BadParamError.at(where, expected=f"the fields {', '.join(fields)}", got=f"others: {shown(wrong)}")
    for name, wanted in fields.items():
        if type(content[name]) is not wanted:
            raise BadParamError.at(f"{where}.{name}", expected=wanted.__name__, got=shown(content[name]))
    return content


def check_name(name: str, where: str) -> None:
    """Raises BadParamError for a text that breaks ``NAME_RULE``."""
    if not is_name(name):
        raise BadParamError.at(where, expected=NAME_RULE, got=shown(name))


def is_name(text: str) -> bool:
    """Whether ``text`` keeps ``NAME_RULE``: it fits a line of a log or message."""
    return len(text) <= MAX_NAME and not _UNPRINTABLE.search(text)


def place(where: str, key: str | int) -> str:
    """The name in messages of a member of the object, or an element of the array, at ``where``."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if key.isidentifier() else f"{where}[{shown(key)}]"


def shown(value: object, most: int = 80) -> str:
    """``repr(value)``, shortened for a message."""
    if isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if not isinstance(value, (dict, list, tuple, str)) else _shown_long(value, most)
    return text if len(text) <= most else f"{text[:most]}..."


@dataclass(frozen=True)
class _Unfit:
    """Stands for a value that the parser cannot take; ``_check`` refuses it, with its place."""

    expected: str
    got: str


def _shown_long(value: Any, most: int) -> str:
    if isinstance(value, str):
        return repr(value[: most + 1])
    text = json.dumps(value, default=repr) if len(value) <= most else f"{type(value).__name__} of {len(value)} items"
    return text[: most + 1]


def _text(text: object, where: str) -> str:
    if isinstance(text, (bytes, bytearray, memoryview)):
        _check_length(len(text), where)
        try:
            return bytes(text).decode()
        except UnicodeDecodeError as error:
            raise BadParamError.at(where, expected="UTF-8", got=str(error)) from None
    if not isinstance(text, str):
        raise BadParamError.at(where, expected="text or bytes", got=type(text).__name__)
    return text


def _parsed(text: str, where: str) -> Any:
    _check_size(text, where)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=lambda name: _Unfit("a finite number", name),
        )
    except RecursionError:
        _refuse_depth(where)
    except ValueError as error:
        raise BadParamError.at(where, expected="a JSON document", got=f"other text ({error})") from None


def _check_size(text: str, where: str) -> None:
    _check_length(len(text), where)
    items = text.count(",") + text.count("[") + text.count("{")
    if items > MAX_ITEMS:
        raise BadParamError.at(where, expected=f"at most {MAX_ITEMS} items", got=items)


def _check_length(length: int, where: str) -> None:
    if length > MAX_BYTES:
        raise BadParamError.at(where, expected=f"at most {MAX_BYTES} bytes", got=length)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return _Unfit("each key once", f"{shown(repeated)} again")


def _integer(digits: str) -> Any:
    if len(digits) <= _INTEGER_CHARACTERS and (value := int(digits)) in INTEGERS:
        return value
    return _Unfit("an integer of 64 bits", shown(digits))


def _float(digits: str) -> Any:
    value = float(digits)
    return value if math.isfinite(value) else _Unfit("a finite number", shown(digits))


def _check(value: Any, where: str, depth: int) -> None:
    """Raises BadParamError, naming the place, for a value beyond the limits."""
    if isinstance(value, (dict, list)):
        if depth > MAX_DEPTH:
            _refuse_depth(where)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(item) not in _PLAIN:
                _check(item, place(where, key), depth + 1)
    elif isinstance(value, _Unfit):
        raise BadParamError.at(where, expected=value.expected, got=value.got)


#: Types whose values the parser has checked already, or that need no check.
_PLAIN = frozenset((str, int, float, bool, type(None)))


def _refuse_depth(where: str) -> NoReturn:
    raise BadParamError.at(where, expected=f"at most {MAX_DEPTH} levels", got="more")
