"""Wrong versions of a kernel: its PTX with one instruction taken out at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator


def without_each(ptx: str, pattern: str) -> Iterator[tuple[str, str]]:
    """(the line taken out, the PTX without it) for every line that holds ``pattern`` (a regular expression)."""
    lines = ptx.split("\n")
    for number, line in enumerate(lines):
        if re.search(pattern, line):
            yield line.strip(), "\n".join([*lines[:number], "", *lines[number + 1 :]])
