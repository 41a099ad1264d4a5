"""Makes random calls of the classic functions through C and compares with float64 references, or statuses.

    python -m tools.checks.random_calls --first 0 --count 10000 [--seconds 600] [--device cuda]

Each call follows from its seed alone: ``--first SEED --count 1`` repeats a failure. After each valid call come a few
with one argument spoiled, which have to be refused with a documented status and write nothing. The exit status is 1 if
something was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from lowdnn.capi.library import LIBRARY_NAME, write_library
from lowdnn.capi.loading import Binding
from lowdnn.capi.state import State
from lowdnn.driver import open_driver
from lowdnn.runtime.runtime import Runtime
from tests.support.capi import Caller
from tests.support.random_calls import random_call
from tests.support.random_calls.running import Machine
from tests.support.random_calls.spoiling import spoils_of


def main() -> int:
    options = _options()
    end, counts, seed = time.monotonic() + options.seconds, Counter[str](), options.first
    write_library(options.folder / LIBRARY_NAME)
    while seed < options.first + options.count and time.monotonic() < end:
        with Runtime(open_driver(options.device)) as runtime:
            binding = Binding(State(runtime.driver))
            machine = Machine(Caller(binding.library(options.folder / LIBRARY_NAME)), runtime)
            wrong = False
            while not wrong and seed < options.first + options.count and time.monotonic() < end:
                problems = problems_of(machine, seed, options.spoils, counts)
                for problem in problems:
                    print(f"seed {seed}: {problem}", flush=True)
                wrong = bool(problems)
                counts["wrong"] += wrong
                seed += 1
            binding.end()
    print(f"seeds {options.first} to {seed - 1}: {counts['spoiled']} spoiled calls, {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


def problems_of(machine: Machine, seed: int, spoils: int, counts: Counter[str]) -> list[str]:
    """Messages about faults in the calls of a seed: a valid call, then up to ``spoils`` invalid ones."""
    draw, call = random_call(seed)
    problems, wrong = [machine.problem(call)], spoils_of(call)
    for spoil in draw.rng.sample(wrong, min(spoils, len(wrong))):
        problems.append(machine.problem(call, spoil))
        counts["spoiled"] += 1
    return [f"{call.name} {draw.data_type.name}: {problem}" for problem in problems if problem]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--spoils", type=int, default=4)
    parser.add_argument("--device", default="emulated")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.mkdtemp()))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
