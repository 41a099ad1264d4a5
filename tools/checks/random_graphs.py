"""Plans random graphs over all operations for every generation, runs them and compares with the float64 references.

    python -m tools.checks.random_graphs --first 0 --count 10000 [--run-every 1] [--seconds 600] [--device cuda]

Each graph follows from its seed alone, so that a run can go on where another one ended (``--first``), and
``--first SEED --count 1`` repeats a failure. The last line is a summary; the exit status is 1 if a graph was refused
or wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.plan import Plan
from lowdnn.runtime.runtime import Runtime
from tests.support.random_graphs.checking import planned, problem_of
from tests.support.random_graphs.growth import Grown
from tests.support.random_graphs.steps import random_graph


def main() -> int:
    options = _options()
    end, seconds, counts = time.monotonic() + options.seconds, Counter[str](), Counter[str]()
    seed, last = options.first, options.first + options.count - 1
    while seed <= last and time.monotonic() < end:
        problems: list[str] = []
        with Runtime(open_driver(options.device), config=Config(cache_dir=options.cache)) as runtime:
            while not problems and seed <= last and time.monotonic() < end:  # a failed launch spoils its device
                is_run = seed % options.run_every == 0
                problems = _problems(runtime, seed, is_run=is_run, seconds=seconds, counts=counts)
                for problem in problems:
                    print(f"seed {seed}: {problem}", flush=True)
                counts["failed"] += bool(problems)
                seed += 1
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    print(
        f"seeds {options.first} to {seed - 1}: {counts['planned']} plans, {counts['run']} run, "
        f"{counts['operations']} operations, {counts['failed']} graphs refused or wrong ({spent})"
    )
    return 1 if counts["failed"] else 0


def _problems(runtime: Runtime, seed: int, *, is_run: bool, seconds: Counter[str], counts: Counter[str]) -> list[str]:
    """Messages about what is wrong with the graph of ``seed``. Adds to the seconds spent and to the counts."""
    start = time.monotonic()
    grown = random_graph(seed)
    seconds["growing"] += time.monotonic() - start
    counts["operations"] += len(grown.graph.operations)
    start, plans, problems = time.monotonic(), list[Plan](), list[str]()
    for arch in (SM_90A, SM_80):
        try:
            plans.append(planned(grown, arch))
        except Exception as error:
            problems.append(f"{arch.name}: {_line(error)}")
    counts["planned"] += len(plans)
    seconds["planning"] += time.monotonic() - start
    start = time.monotonic()
    for plan in _distinct(plans) if is_run else ():
        problems += _wrong(runtime, grown, plan)
        counts["run"] += 1
    seconds["running"] += time.monotonic() - start
    return problems


def _wrong(runtime: Runtime, grown: Grown, plan: Plan) -> list[str]:
    try:
        problem = problem_of(runtime, grown, plan)
    except Exception as error:
        problem = _line(error)
    return [f"{plan.target_arch}, {plan.name} {list(plan.parts)}: {problem}"] if problem else []


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """The plans without repetition: one of those with the same launches."""
    found: list[Plan] = []
    for plan in plans:
        if all((plan.kernels, plan.launches) != (other.kernels, other.launches) for other in found):
            found.append(plan)
    return found


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="graphs")
    parser.add_argument("--run-every", type=int, default=1, help="run one graph in so many; the others are planned")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--device", default="emulated", help="emulated, or cuda: a GPU that runs sm_90a")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "lowdnn", help="of compiled kernels")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
