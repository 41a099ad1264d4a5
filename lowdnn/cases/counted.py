"""The text of a file of counted cases: a count, a tabulator and a case in each line, the largest count first.

    # lowdnn cases with counts
    1200	conv n=64 c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=bf16
    3	graph ops=[{"class":"NormForward",...}]

Remarks are comment lines behind the header. The file is bounded: it keeps the cases with the largest counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from lowdnn.documents import shown
from lowdnn.status import BadParamError

HEADER = "# lowdnn cases with counts"
MAX_CASES = 10_000
#: The size of all lines together; readers take twice as much.
MAX_BYTES = 32 << 20

_FULL = f"# full: of more than {MAX_CASES} cases, or {MAX_BYTES} bytes, those with the smallest counts are left out"
_MAX_REMARKS = 100
_LINE = re.compile(r"([0-9]{1,18})\t(\S.*)")


def merged(text: str, counts: Mapping[str, int], remarks: Iterable[str]) -> str:
    """The file's ``text``, or that of a new file where it is empty, with ``counts`` added up by case.

    Raises BadParamError for the text of another kind of file.
    """
    lines = text.splitlines() or [HEADER]
    if lines[0] != HEADER:
        raise BadParamError.at("cases", expected=f"a file that begins with {HEADER!r}", got=shown(lines[0]))
    found = [_LINE.fullmatch(line) for line in lines[1:]]
    total = Counter({match[2]: int(match[1]) for match in found if match})
    total.update(counts)
    known = [line for line in lines[1:] if line.startswith("#") and line != _FULL]
    notes = dict.fromkeys([*known, *(f"# {remark}" for remark in remarks)])
    kept = _largest(total)
    full = [_FULL] if _FULL in lines or len(kept) < len(total) else []
    return "\n".join([HEADER, *full, *[*notes][:_MAX_REMARKS], *kept, ""])


def _largest(counts: Counter[str]) -> list[str]:
    """The lines of the cases with the largest counts, in order, as many as there is room for."""
    lines: list[str] = []
    left = MAX_BYTES
    for case, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_CASES]:
        line = f"{count}\t{case}"
        left -= len(line.encode()) + 1
        if left >= 0:
            lines.append(line)
    return lines
