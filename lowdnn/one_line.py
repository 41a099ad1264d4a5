"""Escapes text of callers for messages: logs are read line by line, and terminals obey control characters."""

from __future__ import annotations

from collections.abc import Sequence

#: Names that a message lists.
_LISTED = 16


def one_line(text: str, keep: str = "") -> str:
    """``text`` with control, format and separator characters, the blank apart, written as Python's escapes.

    Characters of ``keep`` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


def listed(names: Sequence[str]) -> str:
    """``names`` with commas between them; where there are very many, the first ones and how many more there are."""
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
