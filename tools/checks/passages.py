"""Prose in a tree, and constants that share a comment: what the check of words reads.

Passages are the docstrings and comments of Python and CUDA, and the text of Markdown. Comments on consecutive lines of
one column are one passage.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.checks.sources import Source

_LITERAL_INDENT = 4
#: The start of a paragraph inside of one: a bullet, a numbered step, or the description of an argument.
_NAME = r"`{0,2}[\w.*]+`{0,2}"
_ITEM = re.compile(rf"(?:[-*]|\d+[.)]|{_NAME}(?:, {_NAME})*:(?= ))\s+")
#: The space between the descriptions of two fields on one line.
_FIELDS = re.compile(rf"  (?={_NAME}(?:, {_NAME})*: )")
_TABLE = ("|", "==", "--", "+-")
_COLUMNS = re.compile(r" {3,}")
_PYTHON_CONSTANT = re.compile(r"_{0,2}[A-Z][A-Z0-9_]*$")
_CUDA_CONSTANT = re.compile(r"^\s*(?:static )?constexpr [\w:<> ]+?\b([A-Z][A-Z0-9_]*) *= *(.*)$")
_CUDA_COMMENT = re.compile(r"^(?P<code>(?:[^\"/]|\"(?:\\.|[^\"\\])*\"|/(?!/))*)//(?P<text>.*)$")
_BRACKETS = re.compile(r"[(\[{<][^()\[\]{}<>]*[)\]}>]")


@dataclass(frozen=True)
class Passage:
    """line: its first one, from 1 on.  text: without comment signs and common indentation."""

    line: int
    text: str

    def paragraphs(self) -> Iterator[str]:
        """Its paragraphs and list items, without literal blocks."""
        own: list[str] = []
        is_literal = False
        after_blank = True
        for line in self.text.splitlines():
            indent = len(line) - len(line.lstrip())
            if not line.strip():
                yield from _joined(own)
                own, after_blank = [], True
                continue
            if after_blank:
                is_literal = indent >= _LITERAL_INDENT
            elif indent < _LITERAL_INDENT:
                is_literal = False
            after_blank = False
            if is_literal or line.lstrip().startswith((">>>", "```", *_TABLE)):
                continue
            if _COLUMNS.search(line.strip()):
                yield from _joined(own)
                own = []
            for part in _FIELDS.split(line.strip()):
                if item := _ITEM.match(part):
                    yield from _joined(own)
                    own, part = [], part[item.end() :]
                own.append(part)
        yield from _joined(own)


@dataclass(frozen=True)
class Document:
    """A file of Markdown. place: its path from the root of the tree."""

    path: Path
    place: str

    def passages(self) -> Iterator[Passage]:
        """Its paragraphs, list items and cells of tables, without headings and code."""
        first, own, is_code = 0, list[str](), False
        for number, line in enumerate([*self.path.read_text(encoding="utf-8").splitlines(), ""], 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            is_text = bool(line.strip()) and not is_code and not line.startswith(("#", "|", "```"))
            begins = not is_text or re.match(r"\s*(?:[-*]|\d+\.)\s", line)
            if begins and own:
                yield Passage(first, "\n".join(own))
                own = []
            if is_text:
                first = first if own else number
                own.append(line.strip())
            if line.startswith("|") and not is_code:
                yield from (Passage(number, cell.strip()) for cell in line.split("|"))


def documents(root: Path) -> Iterator[Document]:
    """The Markdown at the top of the tree and below its packages."""
    found = [
        *root.glob("*.md"),
        *(path for name in ("lowdnn", "tools", "tests") for path in (root / name).rglob("*.md")),
    ]
    for path in sorted(found):
        yield Document(path, path.relative_to(root).as_posix())


def passages(file: Source) -> Iterator[Passage]:
    """The docstrings and comments of a file."""
    if file.is_python:
        yield from _docstrings(file)
    yield from _blocks(_comments(file))


def constants(file: Source) -> Iterator[tuple[int, list[str]]]:
    """Lines on which several constants are defined that share a comment, with the constants' names."""
    definitions = dict(_python_constants(file) if file.is_python else _cuda_constants(file))
    comments = {comment.line: comment for comment in _comments(file)}
    for line, (last, names) in definitions.items():
        above = comments.get(line - 1)
        has_comment = last in comments or (above is not None and above.is_alone and not above.is_section)
        if has_comment and len(names) > 1:
            yield line, names


@dataclass(frozen=True)
class _Comment:
    """is_alone: no code stands before it on its line."""

    line: int
    column: int
    text: str
    is_alone: bool

    @property
    def is_section(self) -> bool:
        """Whether it is a heading such as ``-- events ----``."""
        return self.text.strip().startswith("--")


def _docstrings(file: Source) -> Iterator[Passage]:
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Passage(node.body[0].lineno, text)


def _comments(file: Source) -> Iterator[_Comment]:
    if file.is_python:
        for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                text = re.sub(r"^#:? ?", "", token.string)
                yield _Comment(line, column, text, is_alone=not token.line[:column].strip())
    else:
        for number, line in enumerate(file.text.splitlines(), 1):
            if found := _CUDA_COMMENT.match(line):
                code, text = found["code"], re.sub(r"^/* ?", "", found["text"])
                yield _Comment(number, len(code), text, is_alone=not code.strip())


def _blocks(comments: Iterable[_Comment]) -> Iterator[Passage]:
    block: list[_Comment] = []
    for comment in comments:
        follows = block and (comment.line, comment.column) == (block[-1].line + 1, block[-1].column)
        if block and not (follows and comment.is_alone):
            yield Passage(block[0].line, "\n".join(each.text for each in block))
            block = []
        block.append(comment)
    if block:
        yield Passage(block[0].line, "\n".join(each.text for each in block))


def _python_constants(file: Source) -> Iterator[tuple[int, tuple[int, list[str]]]]:
    bodies = [file.tree.body, *(node.body for node in ast.walk(file.tree) if isinstance(node, ast.ClassDef))]
    for node in (node for body in bodies for node in body):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names and all(map(_PYTHON_CONSTANT.match, names)):
            yield node.lineno, (node.end_lineno or node.lineno, names)


def _cuda_constants(file: Source) -> Iterator[tuple[int, tuple[int, list[str]]]]:
    for number, line in enumerate(file.text.splitlines(), 1):
        if found := _CUDA_CONSTANT.match(line.split("//")[0]):
            rest = found.group(2)
            while (plain := _BRACKETS.sub("", rest)) != rest:
                rest = plain
            names = [found.group(1), *re.findall(r", *([A-Z][A-Z0-9_]*) *=", rest)]
            yield number, (number, names)


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        yield " ".join(lines)
