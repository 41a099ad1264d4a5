"""Seeded mutations of serialised plans and graphs: whatever a document holds, it is read or refused.

    python -m tools.checks.mutate_plans [--count 20000] [--seed N] [--first N]

A document is a plan, a pygraph or an operation graph with bytes flipped, fields exchanged, numbers at their extremes,
directives and paths in strings, and so on. Findings are crashes, hangs, exceptions that no docstring names, opened
files other than lowdnn's own (an audit hook reports them), and compiled texts that the generator did not write. Each
finding is printed with the arguments that repeat it; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import secrets
import sys
import time

from tests.support.plan_attack import Attack, attack

_STEP = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    faulthandler.enable()
    start = time.monotonic()

    def report(number: int, found: Attack) -> None:
        if (number + 1) % _STEP == 0:
            seconds = time.monotonic() - start
            print(
                f"seed {arguments.seed}: {number + 1} after {seconds:.0f} s, {len(found.findings)} findings", flush=True
            )

    found = attack(arguments.seed, arguments.count, first=arguments.first, report=report)
    for finding in found.findings:
        print(finding)
    for outcome, number in sorted(found.outcomes.items()):
        print(f"{number:7d} {outcome}")
    print(f"{arguments.count} mutations, {found.compiled} programs compiled, {len(found.findings)} findings")
    return int(bool(found.findings))


if __name__ == "__main__":
    sys.exit(main())
