"""Processor time of planning: from a graph to the plan of the heuristics' first choice, without a GPU.

    python -m tools.bench.planning [--repeats N] [--sample N] [--json]

A row is a class of the benchmarks' cases on one architecture. Each case is the median over shapes that were never
planned before.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.backend.handle import Handle
from lowdnn.bench.networks import cases_of
from lowdnn.bench.statistics import Timing
from lowdnn.bench.suites import DEVICE_SUITES, SuiteCase, sampled
from lowdnn.cases import parse_case
from lowdnn.engines.registry import ENGINES
from lowdnn.enums import HeurMode
from lowdnn.heuristics.ranking import rank
from lowdnn.status import NotSupportedError


def measure_planning(repeats: int) -> dict[str, Timing]:
    """Host time from a new shape to a loaded plan with a known kernel, on a GPU: graph, ranking, plan, load."""
    cases = {
        "conv, new batch": "conv n={} c=64 hw=56x56 k=64 rs=3x3 pad=1 dtype=bf16 epilogue=bias+relu",
        "matmul, new m": "matmul m={} n=4096 k=4096 layout=nt dtype=bf16 epilogue=bias+gelu",
        "pointwise, new batch": "pointwise dims={}x64x56x56 ops=scale+bias+relu dtype=bf16",
        "reduction, new rows": "reduction dims={}x4096 axes=1 op=add dtype=fp32",
    }
    with Handle.open("cuda") as handle:
        times = {name: [_planning_us(handle, text, step) for step in range(repeats)] for name, text in cases.items()}
    return {f"graph to loaded plan: {name}": Timing.of(values[1:]) for name, values in times.items()}


@dataclass(frozen=True)
class PlanningRow:
    """Microseconds from a graph to its first choice's plan: median and greatest of a class's cases, and the latter."""

    arch: str
    class_: str
    cases: int
    median_us: float
    most_us: float
    slowest: str


def measure_plans(repeats: int, sample: int, seed: int = 4) -> list[PlanningRow]:
    """One row for each architecture and class, of at most ``sample`` cases of each class of each suite."""
    suites = [sampled(cases_of(suite), sample, seed) for suite in DEVICE_SUITES]
    rows = []
    for arch in all_specs():
        times: dict[str, list[tuple[float, str]]] = {}
        for case in (case for suite in suites for case in suite):
            times.setdefault(case.class_, []).append((_plan_us(case, arch, repeats), case.text))
        for class_, timed in times.items():
            median_us = statistics.median(us for us, _ in timed)
            rows.append(PlanningRow(arch.name, class_, len(timed), median_us, *max(timed)))
    return rows


#: The first extent of a case, behind its key.
_EXTENT = re.compile(r"(\b(?:n|m|dims)=)(\d+)")


def _plan_us(case: SuiteCase, arch: ArchSpec, repeats: int) -> float:
    """The time for shapes that differ in their first extent; the first one, which warms up, does not count."""
    times = []
    for step in range(1 + repeats):
        graph = parse_case(_grown(case.text, 16 * step)).graph()
        start = time.process_time_ns()
        best = rank(graph, arch, HeurMode.A, ENGINES).best
        times.append((time.process_time_ns() - start) / 1e3)
        if best is None:
            raise NotSupportedError(f"{case.text}: no engine takes it")
    return statistics.median(times[1:])


def _grown(text: str, more: int) -> str:
    return _EXTENT.sub(lambda found: f"{found[1]}{int(found[2]) + more}", text, count=1)


def _planning_us(handle: Handle, text: str, step: int) -> float:
    case = parse_case(text.format(1024 + 128 * step))
    start = time.perf_counter_ns()
    graph = case.graph()
    best = rank(graph, handle.arch, HeurMode.A, handle.engines).best
    if best is None:
        raise NotSupportedError(f"{case}: no engine takes it")
    handle.load(best.plan)
    return (time.perf_counter_ns() - start) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="shapes of each case (default 7)")
    parser.add_argument("--sample", type=int, default=20, help="cases of each class that are planned (default 20)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    arguments = parser.parse_args()
    rows = measure_plans(arguments.repeats, arguments.sample)
    if arguments.json:
        print(json.dumps([vars(row) for row in rows]))
        return
    print(f"{'arch':8}{'cases':>6}{'median us':>11}{'most us':>9}  class; slowest case")
    for row in rows:
        print(f"{row.arch:8}{row.cases:6}{row.median_us:11.0f}{row.most_us:9.0f}  {row.class_}; {row.slowest}")


if __name__ == "__main__":
    main()
