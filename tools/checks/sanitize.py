"""compute-sanitizer over the small cases, every engine that takes each, on an NVIDIA GPU.

    python -m tools.checks.sanitize [--tools memcheck,racecheck] [--families conv,matmul] [--jobs N]

One process for each tool and family runs ``lowdnn run @tests/cases/<family>.txt --engine all --exact``, several at a
time. Prints one verdict a line; the exit code is 1 where a tool found something or a case failed.

racecheck takes an arrival at an mbarrier as that of the arriving lane alone. Where one lane arrives for its warp,
behind a __syncwarp (``TileRing::release``), it reports what the other lanes read against the copy that the barrier lets
in: in kernels of attention, terms and tickets. With all lanes arriving the reports of the forward kernel were gone; the
emulated device's detector, to which a warp is one, reports none.

Nor does it see all that ``bar.arrive`` orders: it reported what ``rnn_persistent_backward`` reads before one
against what is written behind it. There were fewer reports with ``bar.sync`` at one of its two named barriers, and
none at both, as it is now.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAMILIES = tuple(sorted(path.stem for path in (ROOT / "tests" / "cases").glob("*.txt")))

#: Where in a kernel, at the end of a line of the tool's report.
_PLACE = re.compile(r"\+0x[0-9a-f]+.*")

#: compute-sanitizer's exit code where it finds errors; not one that the program itself uses.
_FOUND = 99


@dataclass(frozen=True)
class Verdict:
    """The verdict of one tool on one family; ``summary`` holds its findings and the cases that were not ok."""

    tool: str
    family: str
    code: int
    cases: int
    seconds: float
    summary: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time (default 8)")
    arguments = parser.parse_args()
    pairs = list(product(arguments.tools.split(","), arguments.families.split(",")))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = list(pool.map(lambda pair: sanitize(*pair), pairs))
    for verdict in verdicts:
        word = "clean" if verdict.code == 0 else f"FAILED ({verdict.code})"
        print(f"{verdict.tool:10s} {verdict.family:10s} {word:12s} {verdict.cases:4d} runs in {verdict.seconds:5.0f} s")
        if verdict.code:
            print("  " + verdict.summary.replace("\n", "\n  "))
    return int(any(verdict.code for verdict in verdicts))


def sanitize(tool: str, family: str) -> Verdict:
    cases = f"@{ROOT / 'tests' / 'cases' / f'{family}.txt'}"
    program = (sys.executable, "-m", "lowdnn.cli.main", "run", cases, "--device", "cuda", "--engine", "all", "--exact")
    command = ("compute-sanitizer", "--tool", tool, "--error-exitcode", str(_FOUND), *program)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    lines = done.stdout.splitlines()
    runs = sum(line.startswith("ok") for line in lines)
    summary = summary_of(lines) + done.stderr[-2000:]
    return Verdict(tool, family, done.returncode, runs, time.monotonic() - start, summary)


def summary_of(lines: Sequence[str]) -> str:
    """One line for each thing that the tool says of a kernel, with how often it says so, and the cases that failed."""
    named = [_PLACE.sub("", line.lstrip("= ")) for line in lines if line.startswith("=") and _PLACE.search(line)]
    failed = [line for line in lines if line.startswith(("FAILED", "error"))]
    return "\n".join([*(f"{count} x {text}" for text, count in Counter(named).items()), *failed])


if __name__ == "__main__":
    sys.exit(main())
