"""Rows of two measurements: ``python -m tools.bench.compare --before FILE... --after FILE...``.

Files are those of ``tools.bench --out``; several of one side are rounds, best taken in turns with the other side's. A
case is slower or faster where its medians differ by more than the spread and by more than 1 %. The exit code is 1 where
a case is slower.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from lowdnn.bench.comparison import change_table, changes
from lowdnn.bench.table import Row, read_rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", nargs="+", type=Path, required=True, metavar="FILE")
    parser.add_argument("--after", nargs="+", type=Path, required=True, metavar="FILE")
    arguments = parser.parse_args()
    found = changes(_rows(arguments.before), _rows(arguments.after))
    print(change_table(found))
    return int(any(change.is_loss for change in found))


def _rows(paths: Sequence[Path]) -> Iterator[Row]:
    return chain.from_iterable(map(read_rows, paths))


if __name__ == "__main__":
    sys.exit(main())
