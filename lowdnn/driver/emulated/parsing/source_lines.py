"""From a line of PTX back to the source: ``.loc`` and ``.file``. PTX ISA manual, "Debugging Directives".

A text is searched when a fault is told, so that kernels pay nothing for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
_FUNCTION = re.compile(r"\s*(\.visible|\.weak|\.extern)?\s*\.(entry|func)\b")


def source_line(ptx_lines: Sequence[str], line: int) -> tuple[str, int] | None:
    """(file, line) that the nearest ``.loc`` above PTX line ``line`` names; None where its function has none there, or
    where the compiler says that the code belongs to no line (0)."""
    for text in reversed(ptx_lines[:line]):
        location = _LOC.match(text)
        if location is not None:
            number = int(location[2])
            return (_file_name(ptx_lines, int(location[1])), number) if number else None
        if _FUNCTION.match(text):
            return None
    return None


def _file_name(ptx_lines: Sequence[str], number: int) -> str:
    for text in ptx_lines:
        found = _FILE.match(text)
        if found is not None and int(found[1]) == number:
            return found[2]
    return f"file {number}"
