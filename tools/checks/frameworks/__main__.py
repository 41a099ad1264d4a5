"""Runs the cases on both libraries and prints a table; ``--out FILE`` also gets everything as JSON, as it comes.

    python -m tools.checks.frameworks [--framework NAME] [--only WORD ...] [--passes NAME ...] [--out FILE]

A row has the largest error of loss, output and gradients against float64, and that of single results. Errors are
multiples of the real library's error, of the difference between two of its runs, or of one rounding, whichever is most;
above ``--most`` one is a FAIL. Then come the times of the first step and of later ones on each library. Both processes
work at the same time in the first pass, which compares results, and one after the other in the second, which takes
times. The exit status is 1 if a case has failed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.checks.frameworks.cases import Case, table
from tools.checks.frameworks.processes import Process
from tools.checks.frameworks.report import LIBRARIES, has_failed, line_of

#: Measures of each framework: (name, arguments).
_MEASURES: Mapping[str, tuple[tuple[str, tuple[int, ...]], ...]] = {
    "pytorch": (("host_us", ()), ("new_shape_ms", ()), ("endure", (1000,))),
    "jax": (),
}
PASSES = ("check", "time")


class Run:
    """The cases of one framework; ``rows``: what each library answered, written to a file after each answer."""

    def __init__(self, cases: list[Case], options: argparse.Namespace) -> None:
        self._options, self._framework = options, cases[0].framework
        self._deadline = time.monotonic() + options.seconds
        self._processes = {name: self._process(name) for name in LIBRARIES}
        self.rows = [self._row(case.text) for case in cases]

    def check(self) -> None:
        """Checks the cases on both libraries at the same time."""
        for row in self.rows:
            if self._left_s() > 0:
                for process in self._processes.values():
                    process.send(self._command("check", row))
                for name, process in self._processes.items():
                    self._keep(row, name, process.answer(self._left_s()))
                print(line_of(row, self._options.most), flush=True)

    def time(self) -> None:
        """Times the cases that have not failed, on one library after the other."""
        for row in self.rows:
            for name, process in self._processes.items():
                if self._left_s() > 0 and "error" not in row[name]:
                    self._keep(row, name, process.ask(self._command("time", row), self._left_s()))

    def measure(self) -> None:
        """Takes the framework's other measures, the first call of a process among them."""
        for measure, arguments in _MEASURES[self._framework]:
            self.rows.append(self._row(measure))
            command = {"do": "measure", "name": measure, "arguments": arguments}
            for name, process in self._processes.items():
                self._keep(self.rows[-1], name, process.ask(command, self._left_s()))
        command = {"do": "measure", "name": "first_call_s"}
        with tempfile.TemporaryDirectory() as cache:
            for title, names in (
                ("first call, no kernels on disk", LIBRARIES),
                ("first call, kernels on disk", ("own",)),
            ):
                self.rows.append(self._row(title))
                for name in names:
                    process = self._process(name, cache)
                    self._keep(self.rows[-1], name, process.ask(command, self._left_s()))
                    process.end()

    def end(self) -> None:
        for process in self._processes.values():
            process.end()

    def _process(self, name: str, cache: str = "") -> Process:
        log = Path(f"{self._options.out}.{self._framework}.{name}.log")
        return Process(self._framework, name, self._options.device, log, cache)

    def _row(self, text: str) -> dict[str, Any]:
        return {"framework": self._framework, "case": text, **{name: {} for name in LIBRARIES}}

    def _command(self, do: str, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"do": do, "case": [self._framework, row["case"]]}

    def _left_s(self) -> float:
        return min(self._deadline - time.monotonic(), self._options.patience)

    def _keep(self, row: dict[str, Any], name: str, answer: Mapping[str, Any]) -> None:
        row[name] |= answer
        Path(f"{self._options.out}.{self._framework}.json").write_text(json.dumps(self.rows, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "jax"), help="one alone")
    parser.add_argument("--only", nargs="*", default=[], help="cases with one of these words")
    passes = (*PASSES, "measure")
    parser.add_argument("--passes", nargs="+", choices=passes, default=PASSES, help="measure: other times, 1,000 steps")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each framework (default 3600)")
    parser.add_argument("--patience", type=float, default=300.0, help="for one answer (default 300)")
    parser.add_argument("--most", type=float, default=2.0, help="times the real library's error (default 2)")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", default="/tmp/frameworks", help="path before .FRAMEWORK.json (default /tmp/frameworks)"
    )
    options = parser.parse_args()
    chosen = [c for c in table() if not options.only or any(word in c.text for word in options.only)]
    rows: list[dict[str, Any]] = []
    for framework in ("pytorch", "jax"):
        cases = [case for case in chosen if case.framework == framework]
        if cases and options.framework in (None, framework):
            work = Run(cases, options)
            for step in options.passes:
                getattr(work, step)()
            work.end()
            rows += work.rows
    print("\n".join(line_of(row, options.most) for row in rows))
    return int(any(has_failed(row, options.most) for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
