"""Versions and their ranges, as packages, drivers and compilers have them: ``13.0.88``, ``>=2.9,<3``, ``==13.0.*``.

A version is numbers with dots between, perhaps with a pre-release (``2.10.0rc1``, ``2.11.0.dev3``), which comes before
its release; what follows a ``+`` does not count. Missing numbers count as 0. Source: PEP 440, its ordinary part.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowdnn.documents import shown
from lowdnn.status import BadParamError

#: The form of a range, for messages.
RANGE_RULE = "a range of versions such as >=580.65, ==13.0.* or >=2.9,<3"

_VERSION = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,7})((?:[._-]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)[._-]?\d*)*)")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*([0-9][0-9A-Za-z.]*?)(\.\*)?")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, order=True)
class Version:
    """Ordered as releases are. numbers: without zeros at the end.  is_release: False for a pre-release."""

    numbers: tuple[int, ...]
    is_release: bool = True

    @classmethod
    def found(cls, text: str) -> Version | None:
        """The version that a text begins with; None for a text without one."""
        match = _VERSION.match(text.strip())
        if match is None:
            return None
        numbers = _numbers(match[1])
        while numbers and not numbers[-1]:
            numbers = numbers[:-1]
        return cls(numbers, not match[2])

    def begins_with(self, numbers: tuple[int, ...]) -> bool:
        """Whether these are its first numbers."""
        return (self.numbers + (0,) * len(numbers))[: len(numbers)] == numbers


@dataclass(frozen=True)
class VersionRange:
    """A range, by the text that says it."""

    text: str
    conditions: tuple[Callable[[Version], bool], ...]

    @classmethod
    def of(cls, text: str, where: str) -> VersionRange:
        """The range of a text such as ``>=2.9,<3``. Raises BadParamError for another text."""
        found = [_conditions(clause.strip()) for clause in text.split(",")]
        if not all(found):
            raise BadParamError.at(where, expected=RANGE_RULE, got=shown(text))
        return cls(text.strip(), tuple(condition for conditions in found for condition in conditions))

    def has(self, text: str) -> bool:
        """Whether the version of a text lies in the range; False for a text without a version."""
        version = Version.found(text)
        return version is not None and all(condition(version) for condition in self.conditions)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _conditions(clause: str) -> list[Callable[[Version], bool]]:
    """The conditions that a clause such as ``>=2.9`` stands for; none where it is no clause."""
    match = _CLAUSE.fullmatch(clause)
    version = match and _VERSION.fullmatch(match[2])
    limit = match and Version.found(match[2])
    if not (match and version and limit):
        return []
    sign, numbers = match[1], _numbers(version[1])
    if match[3]:
        return [lambda found: found.begins_with(numbers) is (sign == "==")] if sign in ("==", "!=") else []
    if sign == "~=":  # ~=2.9.1 is >=2.9.1 and ==2.9.*
        both = [lambda found: found >= limit, lambda found: found.begins_with(numbers[:-1])]
        return both if len(numbers) > 1 else []
    return [lambda found: _COMPARISONS[sign](found, limit)]
