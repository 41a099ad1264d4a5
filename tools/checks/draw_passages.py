"""Draws comments for a reader to explain: ``python -m tools.checks.draw_passages [--seed N] [--count N]``.

The reader sees the file alone and says what each comment or docstring means; what they get wrong is the text's fault.
Half of the passages are from kernels and their headers, half from Python, each of at least ``LEAST_WORDS`` words. A
passage is drawn by its file and its number in it, so that a change of other files does not change the draw.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tools.checks.passages import passages
from tools.checks.sources import sources

SEED = 29
COUNT = 100
LEAST_WORDS = 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    arguments = parser.parse_args()
    for number, (place, text) in enumerate(drawn(Path.cwd(), arguments.seed, arguments.count), 1):
        print(f"{number}. {place}\n{text}\n")
    return 0


def drawn(root: Path, seed: int, count: int) -> list[tuple[str, str]]:
    """``count`` passages of the package and its tools as (file:line, text), by file and line."""
    by_rank = sorted(_ranked(root, seed))
    python = [found for _, found in by_rank if found[0].endswith(".py")]
    cuda = [found for _, found in by_rank if not found[0].endswith(".py")]
    chosen = cuda[: count // 2] + python[: count - count // 2]
    return [(f"{place}:{line}", text) for place, line, text in sorted(chosen)]


def _ranked(root: Path, seed: int) -> Iterator[tuple[str, tuple[str, int, str]]]:
    """Every passage that is long enough, as a number that the seed gives it, and (file, line, text)."""
    for file in sources(root, ("lowdnn", "tools")):
        for number, passage in enumerate(passages(file)):
            if len(passage.text.split()) >= LEAST_WORDS:
                rank = sha256(f"{seed} {file.place} {number}".encode()).hexdigest()
                yield rank, (file.place, passage.line, passage.text)


if __name__ == "__main__":
    sys.exit(main())
