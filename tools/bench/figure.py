"""Draws speed by class from committed rows: ``python -m tools.bench.figure [--card h200] [--check]``.

Writes ``lowdnn/guide/speed.svg`` and the table at the end of ``lowdnn/guide/speed.md``. With ``--check`` nothing is
written, and the exit code is 1 where they are not what the rows give.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from lowdnn.bench.suites import DEVICE_SUITES, TARGETS
from lowdnn.bench.table import Row, read_rows

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = Path(__file__).resolve().parent / "results"
_GUIDE = _ROOT / "lowdnn" / "guide"
#: The line of the page behind which the table stands.
_MARK = "<!-- The table is written by python -m tools.bench.figure. -->\n"

#: Widths and heights in pixels.
_WIDTH = 1040
_LABEL_WIDTH = 540
_ROW_HEIGHT = 20
_TOP = 64
#: The axis is logarithmic, from the first to the last of these ratios.
_TICKS = (0.5, 1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ClassOfCases:
    """mean, worst: geometric mean and least of the fastest peer's time over ours.  peers: the peers that were
    fastest."""

    name: str
    cases: int
    mean: float
    worst: float
    peers: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="h200", help="the folder of results (default h200)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is out of date")
    options = parser.parse_args()
    rows = [row for path in sorted((_RESULTS / options.card).glob("*.csv")) for row in read_rows(path)]
    classes = [*by_class(rows)]
    page = (_GUIDE / "speed.md").read_text(encoding="utf-8")
    text = page.partition(_MARK)[0]
    wanted = {
        _GUIDE / "speed.svg": drawing(classes, title=f"Time of the fastest peer / time of lowdnn, {rows[0].gpu}"),
        _GUIDE / "speed.md": text + _MARK + "\n" + table(classes),
    }
    stale = [path for path, content in wanted.items() if not path.exists() or path.read_text("utf-8") != content]
    for path in stale:
        if options.check:
            print(
                f"{path.relative_to(_ROOT).as_posix()}: expected what the rows give; run python -m tools.bench.figure"
            )
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if options.check and stale else 0


def by_class(rows: Iterable[Row]) -> Iterator[ClassOfCases]:
    """The classes of kernels that have a target, in the order of their targets."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not row.error and row.class_ in TARGETS and row.suite in DEVICE_SUITES:
            groups.setdefault(row.class_, []).append(row)
    for name in sorted(groups, key=[*TARGETS].index):
        ratios = [row.ratio for row in groups[name]]
        peers = sorted({row.peer for row in groups[name]})
        label = f"attention {name.removeprefix('attention ')}" if groups[name][0].suite == "attention" else name
        yield ClassOfCases(label, len(ratios), statistics.geometric_mean(ratios), min(ratios), tuple(peers))


def table(classes: Sequence[ClassOfCases]) -> str:
    """The classes as Markdown."""
    lines = [
        f"| {each.name} | {each.cases} | {each.mean:.2f} | {each.worst:.2f} | {', '.join(each.peers)} |"
        for each in classes
    ]
    head = "| class | cases | geometric mean | worst | fastest peers |\n|---|---|---|---|---|\n"
    return head + "\n".join(lines) + "\n"


def drawing(classes: Sequence[ClassOfCases], title: str) -> str:
    """The classes as an SVG: a dot at the geometric mean, a line from there to the worst case."""
    bottom = _TOP + _ROW_HEIGHT * len(classes)
    parts = [
        _text(_LABEL_WIDTH - 12, 22, title, 'text-anchor="end" font-size="15"'),
        _text(_LABEL_WIDTH, 22, "dot: geometric mean of a class; line: to its worst case; 1: as fast", ""),
    ]
    for tick in _TICKS:
        colour = "#444" if tick == 1 else "#ddd"
        parts.append(f'<path d="M{_at(tick):.1f} {_TOP - 10}V{bottom}" stroke="{colour}"/>')
        parts.append(_text(_at(tick), _TOP - 16, f"{tick:g}", 'text-anchor="middle"'))
    for number, each in enumerate(classes):
        y = _TOP + _ROW_HEIGHT * number + _ROW_HEIGHT / 2
        colour = "#2a7a3f" if each.mean >= 1 else "#b3402a"
        parts.append(_text(_LABEL_WIDTH - 12, y + 4, each.name, 'text-anchor="end"'))
        parts.append(f'<path d="M{_at(each.worst):.1f} {y}H{_at(each.mean):.1f}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{_at(each.mean):.1f}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(_text(_at(max(each.mean, 1)) + 10, y + 4, f"{each.mean:.2f}", ""))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 12}" '
    style = 'font-family="sans-serif" font-size="11" fill="#222">\n<rect width="100%" height="100%" fill="#fff"/>\n'
    return head + style + "\n".join(parts) + "\n</svg>\n"


def _at(ratio: float) -> float:
    """The horizontal position of a ratio."""
    share = math.log(ratio / _TICKS[0]) / math.log(_TICKS[-1] / _TICKS[0])
    return _LABEL_WIDTH + min(max(share, 0.0), 1.0) * (_WIDTH - _LABEL_WIDTH - 60)


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
