"""Escapes text of callers for messages: logs are read line by line, and terminals obey control characters."""

from __future__ import annotations


def one_line(text: str, keep: str = "") -> str:
    """``text`` with control, format and separator characters, the blank apart, written as Python's escapes.

    Characters of ``keep`` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )
