"""Rows of measurements before and after a change: ``python -m tools.bench.compare --before FILE... --after FILE...``.

Files are those of ``tools.bench --out``; those of one side are rounds, best taken in turns with the other side's. The
verdict on a case needs three rounds before (``lowdnn/bench/verdicts.py``); of those after, the median counts. The exit
code is 1 where a case is slower.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from lowdnn.bench.report import verdict_table
from lowdnn.bench.table import read_rows
from lowdnn.bench.verdicts import Word, of_times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--after", nargs="+", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    after = {case: median(times) for case, times in _times(arguments.after).items()}
    found = of_times(_times(arguments.before), after)
    print(verdict_table(found))
    return int(any(verdict.word is Word.SLOWER for verdict in found))


def _times(paths: Sequence[Path]) -> dict[str, list[float]]:
    """The times of each case, without rows that have an error."""
    found: dict[str, list[float]] = {}
    for row in (row for path in paths for row in read_rows(path)):
        if not row.error:
            found.setdefault(row.case, []).append(row.us)
    return found


if __name__ == "__main__":
    sys.exit(main())
