"""The source files of a tree and their functions, as the size check and the census count them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PYTHON, CUDA = (".py",), (".cu", ".cuh")

_COMMENT_OR_STRING = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
#: The text before a function's brace: a list of arguments, perhaps a qualifier or initialisers of members.
_HEAD = re.compile(r"(\w+)\s*\([^{};]*\)\s*(?:const|noexcept)?\s*(?::[^{};]*)?$")
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")


@dataclass(frozen=True)
class Function:
    """A function of a file.  lines: lines of its body, without the signature, the docstring and CUDA's braces."""

    place: str
    name: str
    line: int
    lines: int

    def __str__(self) -> str:
        return f"{self.place}:{self.line} {self.name}"


@dataclass(frozen=True)
class Source:
    """A file of Python or CUDA. place: its path from the root of the tree, with slashes."""

    path: Path
    place: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_python(self) -> bool:
        return self.path.suffix in PYTHON

    def functions(self) -> Iterator[Function]:
        return self._python_functions() if self.is_python else self._cuda_functions()

    def _python_functions(self) -> Iterator[Function]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                has_docstring = ast.get_docstring(node, clean=False) is not None
                before = (node.body[0].end_lineno or 0) if has_docstring else node.body[0].lineno - 1
                yield Function(self.place, node.name, node.lineno, (node.end_lineno or 0) - before)

    def _cuda_functions(self) -> Iterator[Function]:
        """Outermost blocks in braces that follow a list of arguments."""
        text = self.text
        for pattern in (_COMMENT_OR_STRING, _DIRECTIVE, _LAUNCH_BOUNDS):
            text = pattern.sub(_blank, text)
        opened: list[tuple[str, int]] = []  # the function's name, or "", and where its brace is
        start = 0
        for found in re.finditer(r"[{};]", text):
            if found.group() == "{":
                head = None if any(name for name, _ in opened) else _HEAD.search(text[start : found.start()])
                opened.append((head.group(1) if head else "", found.start()))
            elif found.group() == "}" and opened:
                name, brace = opened.pop()
                if name:
                    line = text.count("\n", 0, brace) + 1
                    yield Function(self.place, name, line, max(text.count("\n", brace, found.start()) - 1, 0))
            start = found.end()


def sources(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...] = PYTHON + CUDA) -> Iterator[Source]:
    """The files of these kinds in folders of the tree, in the order of their paths."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield Source(path, path.relative_to(root).as_posix())


def _blank(found: re.Match[str]) -> str:
    return "\n" * found.group().count("\n")
