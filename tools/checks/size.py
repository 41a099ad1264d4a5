"""No file longer than 500 lines but tables, no function longer than 60: ``python -m tools.checks.size``.

Files are those of Python and CUDA in ``lowdnn/``, ``tools/`` and ``tests/``. A function's signature and docstring do
not count. The ten largest files and functions are printed; the exit code is 1 where one is too long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tools.checks.sources import Function, Source, sources

FILE_LINES, FUNCTION_LINES = 500, 60

#: Files that are one table each, whatever their length.
TABLES = frozenset({"lowdnn/capi/classic_enums.py", "lowdnn/enums.py"})

_FOLDERS = ("lowdnn", "tools", "tests")
_SHOWN = 10


def main(root: Path) -> int:
    files = [*sources(root, _FOLDERS)]
    functions = [function for file in files for function in file.functions()]
    print(f"files (at most {FILE_LINES} lines, tables apart):")
    for file in sorted(files, key=lambda file: -file.lines)[:_SHOWN]:
        print(f"{file.lines:6} {file.place}{'  (a table)' if file.place in TABLES else ''}")
    print(f"functions (at most {FUNCTION_LINES} lines):")
    for function in sorted(functions, key=lambda function: -function.lines)[:_SHOWN]:
        print(f"{function.lines:6} {function}")
    too_long = [*faults(files, functions)]
    print("\n".join(too_long) or "nothing is too long")
    return 1 if too_long else 0


def faults(files: Iterable[Source], functions: Iterable[Function]) -> Iterable[str]:
    """One line for each file and function that is too long."""
    for file in files:
        if file.lines > FILE_LINES and file.place not in TABLES:
            yield f"{file.place}: expected at most {FILE_LINES} lines, got {file.lines}; split it by subject"
    for function in functions:
        if function.lines > FUNCTION_LINES:
            yield f"{function}: expected at most {FUNCTION_LINES} lines, got {function.lines}; give its steps names"


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2]))
