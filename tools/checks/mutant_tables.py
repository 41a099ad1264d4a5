"""Mutants as data: small faults of the product, each with the tests that should see it.

A table is a text file in ``tools/checks/mutants/``, one for each layer:

    # a comment
    == lowdnn/ops/slice.py | tests/ops/test_moves.py
    * a slice that ends before it starts
    - if not 0 <= first <= end <= extent:
    + if not (0 <= first and end <= extent):

``==`` names a file and pytest's arguments for the mutants below it, ``*`` begins a mutant with its name. The lines with
``-`` are the text to find, which the file holds once, those with ``+`` what stands there instead; each is a whole line
or, where both begin and end within a line, a part of it. Three more lines are optional:

    @ tests/ops/test_moves.py -k limit      pytest's arguments for this mutant alone
    equivalent: WHY                         no result can change
    survives: WHY                           a result changes, but no default test can tell
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "tools" / "checks" / "mutants"


@dataclass(frozen=True)
class Mutant:
    """layer: the table's name.  tests: pytest's arguments.  reason: why it is equivalent or survives, or empty."""

    layer: str
    file: str
    name: str
    old: str
    new: str
    tests: tuple[str, ...]
    is_equivalent: bool = False
    reason: str = ""

    @property
    def key(self) -> str:
        """Names this mutant with its tests: a verdict holds as long as the key does."""
        return f"{crc32(repr((self.file, self.old, self.new, self.tests)).encode()):08x}"

    def applied(self, text: str) -> str:
        """The file's ``text`` with the fault; raises ValueError unless the place is there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self}: expected its text once in {self.file}, got {found} times; edit {self.layer}.txt")
        return text.replace(self.old, self.new)

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def read_tables(folder: Path = TABLES) -> list[Mutant]:
    """The mutants of every table in ``folder``; raises ValueError for a line that is none of the above."""
    return [mutant for path in sorted(folder.glob("*.txt")) for mutant in read_table(path.stem, path.read_text())]


def read_table(layer: str, text: str) -> Iterator[Mutant]:
    """The mutants of one table; see the module's docstring."""
    file, tests = "", ""
    draft: _Draft | None = None
    for number, line in enumerate(text.splitlines(), 1):
        mark, _, rest = line.partition(" ")
        if mark in ("==", "*"):
            yield from _finished(draft, layer)
            draft = None
        if mark == "==":
            file, _, tests = (part.strip() for part in rest.partition(" | "))
        elif mark == "*":
            draft = _Draft(file, rest, tests)
        elif line and mark != "#":
            if draft is None or mark not in draft.lines:
                raise ValueError(f"{layer}.txt:{number}: expected a mark of a mutant, got {line!r}")
            draft.lines[mark].append(rest)
    yield from _finished(draft, layer)


def select(mutants: Iterable[Mutant], layers: Iterable[str] = (), texts: Iterable[str] = ()) -> list[Mutant]:
    """The mutants of any of the layers whose file or name holds any of the texts; no layers or no texts stand for
    all."""
    layers, texts = set(layers), tuple(texts)
    return [
        mutant
        for mutant in mutants
        if (not layers or mutant.layer in layers) and (not texts or any(text in str(mutant) for text in texts))
    ]


@dataclass
class _Draft:
    """The lines of the mutant that is being read, by their marks."""

    file: str
    name: str
    tests: str
    lines: Mapping[str, list[str]] = field(
        default_factory=lambda: {mark: [] for mark in ("-", "+", "@", "equivalent:", "survives:")}
    )


def _finished(draft: _Draft | None, layer: str) -> Iterator[Mutant]:
    if draft is None:
        return
    lines = draft.lines
    tests = shlex.split(" ".join(lines["@"]) or draft.tests)
    reason = " ".join(lines["equivalent:"] or lines["survives:"])
    yield Mutant(
        layer,
        draft.file,
        draft.name,
        "\n".join(lines["-"]),
        "\n".join(lines["+"]),
        tuple(tests),
        is_equivalent=bool(lines["equivalent:"]),
        reason=reason,
    )
