"""Sentences that a stranger stumbles over: ``python -m tools.checks.words [FOLDER...]``.

Three rules hold for the docstrings and comments of Python and CUDA, the last of them for Markdown too:

- A sentence begins with its subject, not with "Of", "That of", "Those", "The same", "What", "As many" or a relative
  clause ("that exist"). So does the description of an argument or field behind its name. The first sentence of a
  comment or docstring has no pronoun for a subject ("They", "All of them") either.
- A comment speaks of one constant. Two constants that are defined on one line with a comment are two.
- A sentence, or the part of it up to a semicolon, has at most 40 words. The signs and one-letter names of a formula are
  not counted.

Each fault is one line of the output, and the exit code is 1 where there is one. Code blocks, indented text and tables
of docstrings are not read; text in backquotes is one word.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.checks.passages import Passage, constants, documents, passages
from tools.checks.sources import Source, sources

SENTENCE_WORDS = 40

_FOLDERS = ("lowdnn", "tools", "tests")
_HEADLESS = re.compile(
    r"(?:of|that of|those|the same|what|(?:as|so) (?:many|much|few)|likewise|neither (?:of|by))\b"
    r"|(?-i:that|which|whose)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(r"(?:it|they|their|(?:all|none|both|each|one|some) of (?:them|these|those))\b", re.IGNORECASE)
#: A word; the signs and one-letter names of a formula are none.
_WORD = re.compile(r"\S*[^\W\d]{2}\S*")
_BACKQUOTED = re.compile(r"(`+).+?\1")
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!et al\.)(?<!\.\.)(?<=[.!?])[)\"']*\s+|(?<=:)\s+(?=[A-Z])")
_CLAUSE_END = re.compile(r"(?<=;)\s+")


def main(root: Path, folders: Iterable[str] = _FOLDERS) -> int:
    found = [*faults(root, folders)]
    print("\n".join(found) or "no fault found")
    return 1 if found else 0


def faults(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """One line for each fault of the files in the folders, and of the Markdown of the tree."""
    for file in sources(root, tuple(folders)):
        for passage in passages(file):
            yield from (f"{file.place}:{passage.line}: {fault}" for fault in _faults_of(passage))
        yield from _shared_comments(file)
    for document in documents(root):
        for passage in document.passages():
            yield from (f"{document.place}:{passage.line}: {fault}" for fault in _long_sentences(passage))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a paragraph; a colon ends one where a capital follows."""
    text = _BACKQUOTED.sub(lambda found: "`" + re.sub(r"[^\w]", "_", found.group()) + "`", text)
    yield from filter(None, map(str.strip, _SENTENCE_END.split(" ".join(text.split()))))


def _faults_of(passage: Passage) -> Iterator[str]:
    found = [sentence for paragraph in passage.paragraphs() for sentence in sentences(paragraph)]
    for number, sentence in enumerate(found):
        start = _HEADLESS.match(sentence) or (None if number else _PRONOUN.match(sentence))
        if start and not sentence.endswith("?"):
            yield f"expected a sentence that begins with its subject, got {start.group()!r}: {_start(sentence)}"
    yield from _long_sentences(passage)


def _long_sentences(passage: Passage) -> Iterator[str]:
    for paragraph in passage.paragraphs():
        for clause in (clause for sentence in sentences(paragraph) for clause in _CLAUSE_END.split(sentence)):
            if (count := len(_WORD.findall(clause))) > SENTENCE_WORDS:
                yield f"expected at most {SENTENCE_WORDS} words in a sentence, got {count}: {_start(clause)}"


def _shared_comments(file: Source) -> Iterator[str]:
    for line, names in constants(file):
        yield f"{file.place}:{line}: expected a comment for each constant, got one for {', '.join(names)}"


def _start(sentence: str) -> str:
    return sentence if len(sentence) <= 60 else f"{sentence[:60]}..."


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[2], sys.argv[1:] or _FOLDERS))
