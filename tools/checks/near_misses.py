"""Runs near misses of the patterns that engines take whole, and compares with the float64 references.

    python -m tools.checks.near_misses --seconds 600 [--first 0] [--family attention] [--pattern band] [--device cuda]

A near miss is an exact pattern with one change (``tests/support/near_misses``). Each round reads all of them as what
recognises them does, and runs some that are drawn. Graphs follow from seed and pattern, so that ``--first SEED
--seconds 0 --pattern NAME`` repeats it. The last line is a summary; the exit status is 1 if a near miss was misread or
wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from tests.support.near_misses import attention, attention_gradients, moves, products, rows, softmax, sums
from tests.support.near_misses.checking import misreadings, wrong_runs
from tests.support.near_misses.pattern import Known

FAMILIES: Mapping[str, Mapping[str, Known]] = {
    "attention": attention.PATTERNS,
    "attention_gradients": attention_gradients.PATTERNS,
    "moves": moves.PATTERNS,
    "products": products.PATTERNS,
    "rows": rows.PATTERNS,
    "softmax": softmax.PATTERNS,
    "sums": sums.PATTERNS,
}
#: Runs of each pattern in a round, of near misses that one kernel takes.
_FUSED = 12
#: Runs of near misses that several kernels take.
_SEPARATE = 4


def main() -> int:
    options = _options()
    chosen = [
        known
        for family, patterns in FAMILIES.items()
        for known in patterns.values()
        if options.family in ("", family) and options.pattern in ("", known.name)
    ]
    end, seed, found = time.monotonic() + options.seconds, options.first, 0
    while True:
        for known in chosen:
            problems = _problems(options, known, seed)
            found += len(problems)
            for problem in problems:
                print(f"seed {seed}: {problem}", flush=True)
            if options.seconds and time.monotonic() > end:
                break
        seed += 1
        if time.monotonic() > end:
            break
    print(f"seeds {options.first} to {seed - 1}: {len(chosen)} patterns, {found} near misses misread or wrong")
    return 1 if found else 0


def _problems(options: argparse.Namespace, known: Known, seed: int) -> list[str]:
    with Runtime(open_driver(options.device), config=Config(cache_dir=options.cache)) as runtime:
        return misreadings(known, seed) + wrong_runs(runtime, known, seed, {True: _FUSED, False: _SEPARATE})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=600.0, help="stop after so long; 0: after one round")
    parser.add_argument("--family", default="", choices=("", *FAMILIES), help="of patterns; by default all")
    parser.add_argument("--pattern", default="", help="one of them")
    parser.add_argument("--device", default="emulated", help="emulated, or cuda: a GPU that runs sm_90a")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "lowdnn", help="of compiled kernels")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
