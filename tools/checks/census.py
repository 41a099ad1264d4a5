"""Counts of the sources: ``python -m tools.checks.census [TREE]`` (this tree where none is named).

Files, lines and functions (their bodies, as in ``size``) with median, 90th percentile and largest; packages; numeric
literals of the Python in ``engines/`` and ``arch/``; the conditional directives of the kernels.

Literals that are 0, 1 or a power of two up to 2**64 (2 and 0.5 among them) are not counted, nor are those in the rows
of a table. A table is a collection of at least three collections or calls, or a dictionary of at least three entries,
that a module or class assigns.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from math import frexp
from pathlib import Path
from statistics import median, quantiles

from tools.checks.sources import CUDA, PYTHON, Source, sources

_MODEL_FOLDERS = ("lowdnn/engines", "lowdnn/arch")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b(.*)$", re.MULTILINE)
#: Names that a condition on data types or architectures has.
_TYPE_OR_ARCH = re.compile(r"__CUDA_ARCH__|FP8|TYPES?\b")
_ROWS = 3


def main(root: Path) -> None:
    print(f"{'':24}{'count':>7}{'lines':>8}{'median':>8}{'p90':>7}{'largest':>9}{'>400':>6}{'>500':>6}{'<50':>6}")
    for title, folder, suffixes in _FILES:
        _print_files(title, [*sources(root, (folder,), suffixes)])
    for folder in ("lowdnn", "tests", "tools"):
        _print_functions(f"functions of {folder}", [*sources(root, (folder,), PYTHON)])
    _print_functions("functions of kernels", [*sources(root, ("lowdnn",), CUDA)])
    print(f"\npackages: {sum(1 for _ in (root / 'lowdnn').rglob('__init__.py'))}")
    for folder in _MODEL_FOLDERS:
        python, cuda = ([*sources(root, (folder,), suffixes)] for suffixes in (PYTHON, CUDA))
        print(f"{folder}: {_lines(python)} lines of Python, {_lines(cuda)} of CUDA")
    _print_literals([*sources(root, _MODEL_FOLDERS, PYTHON)])
    _print_conditions([*sources(root, ("lowdnn",), CUDA)])


_FILES = (
    ("lowdnn Python", "lowdnn", PYTHON),
    ("lowdnn .cu", "lowdnn", (".cu",)),
    ("lowdnn .cuh", "lowdnn", (".cuh",)),
    ("tests Python", "tests", PYTHON),
    ("tools Python", "tools", PYTHON),
)


def literals(tree: ast.Module) -> Iterator[tuple[float, bool, bool]]:
    """For each number of a module but 0, 1 and powers of two: the number, whether it is in a table, and whether a
    module or class assigns it as a constant."""
    in_table, constant = set[int](), set[int]()
    for node in _assigned(tree):
        numbers = {id(inner) for inner in ast.walk(node)}
        if _is_table(node):
            in_table |= numbers
        constant |= numbers
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and not _is_plain(node.value):
            yield node.value, id(node) in in_table, id(node) in constant


def conditions(text: str) -> Iterator[tuple[str, bool]]:
    """Each conditional directive of a kernel's source, and whether it asks for data types or architectures."""
    for found in _CONDITION.finditer(text):
        yield found.group(1).strip(), bool(_TYPE_OR_ARCH.search(found.group(1)))


def _print_files(title: str, files: Sequence[Source]) -> None:
    counts = [file.lines for file in files]
    limits = "".join(f"{sum(count > limit for count in counts):6}" for limit in (400, 500))
    print(f"{title:24}{_distribution(counts)}{limits}{sum(count < 50 for count in counts):6}")


def _print_functions(title: str, files: Sequence[Source]) -> None:
    print(f"{title:24}{_distribution([function.lines for file in files for function in file.functions()])}")


def _distribution(counts: Sequence[int]) -> str:
    if len(counts) < 2:
        return f"{len(counts):7}{sum(counts):8}"
    deciles = quantiles(counts, n=10, method="inclusive")
    return f"{len(counts):7}{sum(counts):8}{median(counts):8.0f}{deciles[-1]:7.0f}{max(counts):9}"


def _lines(files: Sequence[Source]) -> int:
    return sum(file.lines for file in files)


def _print_literals(files: Sequence[Source]) -> None:
    found = [literal for file in files for literal in literals(file.tree)]
    rest = [is_constant for _, in_table, is_constant in found if not in_table]
    print(
        f"numeric literals of engines/ and arch/, 0, 1 and powers of two apart: {len(found)}; of these in tables "
        f"{len(found) - len(rest)}; the others {len(rest)}, as constants of modules and classes {sum(rest)}"
    )


def _print_conditions(files: Sequence[Source]) -> None:
    found = [asks for file in files for _, asks in conditions(file.text)]
    print(f"#if lines: {len(found)}; outside of data types and architectures {len(found) - sum(found)}")


def _assigned(tree: ast.Module) -> Iterator[ast.expr]:
    """The values that a module and its classes assign."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield node.value


def _is_table(node: ast.expr) -> bool:
    """Whether a collection of rows is in the expression."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Dict) and len(inner.keys) >= _ROWS:
            return True
        if isinstance(inner, ast.Tuple | ast.List | ast.Set):
            rows = [row for row in inner.elts if isinstance(row, ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Call)]
            if len(rows) >= _ROWS:
                return True
    return False


def _is_plain(number: float) -> bool:
    return number == 0 or (frexp(number)[0] == 0.5 and abs(number) <= 2**64)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2])
