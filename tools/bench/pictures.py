"""Draws pictures of runs from committed rows: ``python -m tools.bench.pictures [--card h200]``.

Writes ``roofline.svg``, ``shares.svg`` and ``trend.svg`` of ``lowdnn/guide`` with matplotlib. The runs of the trend are
the versions of ``gemm.csv`` in the history of the repository.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lowdnn.bench import plots
from lowdnn.bench.floor import card_named, moved_bytes, product_flops
from lowdnn.bench.runs import BenchClock, CaseTimes, Run
from lowdnn.cases import parse_case

_RESULTS = Path(__file__).resolve().parent / "results"
_GUIDE = Path(__file__).resolve().parents[2] / "lowdnn" / "guide"
#: Suites whose cases have a place in the roofline; layers of networks are left out, since there are too many.
_SUITES = ("gemm", "conv", "membound", "attention")
_TREND = "gemm.csv"
#: A version with a smaller share of the cases has no point in the trend.
_MOST_SHARE = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", default="h200", help="the folder of results (default h200)")
    folder = _RESULTS / parser.parse_args().card
    lines = [line for suite in _SUITES for line in _lines(folder / f"{suite}.csv") if not line["network"]]
    run = _run(lines, "", _with_work)
    plots.write(plots.roofline(run, card_named(run.device)), _GUIDE / "roofline.svg")
    plots.write(plots.shares(run), _GUIDE / "shares.svg")
    plots.write(plots.trend(_whole([*_history(folder / _TREND)])), _GUIDE / "trend.svg")


def _whole(runs: list[Run]) -> list[Run]:
    """The runs that have nearly all cases of the last one."""
    cases = set(runs[-1].by_case)
    return [run for run in runs if len(cases & set(run.by_case)) > _MOST_SHARE * len(cases)]


def _history(path: Path) -> Iterator[Run]:
    """The committed versions of a file of rows, oldest first."""
    log = ("git", "log", "--follow", "--name-only", "--format=%cI %h", "--", str(path))
    lines = [line for line in _output(*log).splitlines() if line]
    for entry, name in reversed([*zip(lines[::2], lines[1::2], strict=True)]):
        time, commit = entry.split()
        lines_of = csv.DictReader(_output("git", "show", f"{commit}:{name}").splitlines())
        yield _run([line for line in lines_of if not line.get("error")], time, _timed)


def _run(lines: Sequence[Mapping[str, str]], time: str, times_of: Callable[[Mapping[str, str]], CaseTimes]) -> Run:
    return Run(
        device=lines[0]["gpu"],
        clock=BenchClock.EVENTS,
        driver=lines[0]["driver"],
        lowdnn="",
        commit=lines[0]["commit"],
        time=time,
        times=tuple(map(times_of, lines)),
    )


def _timed(line: Mapping[str, str]) -> CaseTimes:
    return CaseTimes(class_=line["class"], case=line["case"], us=float(line["us"]))


def _with_work(line: Mapping[str, str]) -> CaseTimes:
    graph = parse_case(line["case"]).graph()
    work = {"flops": float(product_flops(graph)), "bytes": float(moved_bytes(graph))}
    return replace(_timed(line), floor_us=float(line["floor_us"]), **work)


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if not line.get("error")]


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_RESULTS.parents[2])
    return done.stdout


if __name__ == "__main__":
    main()
