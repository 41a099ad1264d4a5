"""Benchmarks: lowdnn and its peers in turns in one process on an NVIDIA GPU, one CSV row a case.

    python tools/bench.py [SUITE...] [--out DIR] [--commit HASH] [--engine NAME]

Suites: gemm, conv, memory (cases in tools/bench_cases/), host. The device suites time kernels by graph replay (see
bench_timing.py); the host suite times calls without synchronisation. In the rows, ``us`` is ours, ``floor_us`` the
larger of arithmetic at the sustained peak and bytes at the copy bandwidth, ``peer`` the fastest peer, and
``ratio`` = peer_us / us. Each run of a suite replaces its file.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from bench_host import measure_host, measure_planning
from bench_peers import configure, device_tensor, peers_of
from bench_timing import interleaved

from lowdnn.backend.handle import Handle
from lowdnn.engines.registry import engine_named
from lowdnn.enums import HeurMode
from lowdnn.graph.cases import parse_case
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import candidate_for, rank
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.plan import MathUnit, Plan
from lowdnn.runtime.workspace import Workspace

ROOT = Path(__file__).resolve().parent
DEVICE_SUITES = ("gemm", "conv", "memory")
SUITES = (*DEVICE_SUITES, "host")

#: Sustained rates on an H200: matrix products of random data, and a copy's bytes read plus written, each per second.
_PEAK_FLOPS = {
    MathUnit.MMA_F16: 790e12,
    MathUnit.MMA_TF32: 395e12,
    MathUnit.MMA_INT8: 1500e12,
    MathUnit.FMA_F32: 67e12,
    MathUnit.FMA_F64: 33e12,
    MathUnit.NONE: 67e12,
}
_COPY_BYTES_PER_S = 4.3e12


@dataclass(frozen=True)
class Row:
    """One line of a result file; ``class_`` is the column ``class``."""

    suite: str
    class_: str
    case: str
    dtype: str
    engine: str
    knobs: str
    us: float
    floor_us: float
    peer: str
    peer_us: float
    ratio: float
    spread: float
    gpu: str
    driver: str
    commit: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench_results" / "h200", help="folder of the CSV files")
    parser.add_argument("--commit", default="", help="commit of the tree (default: asked of git)")
    parser.add_argument("--engine", help="this engine instead of the heuristics' first choice")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"expected suites out of {', '.join(SUITES)}, got {', '.join(sorted(unknown))}")
    configure()
    machine = (torch.cuda.get_device_name(0), _driver_version(), arguments.commit or _commit())
    for suite in arguments.suites or SUITES:
        measure = _host_rows(machine) if suite == "host" else _device_rows(suite, machine, arguments.engine)
        rows = []
        for row in measure:
            rows.append(row)
            print(
                f"{row.ratio:6.2f}x {row.us:9.2f} us  {row.peer} {row.peer_us:9.2f}  {row.engine:24s} {row.case}",
                flush=True,
            )
        _write(arguments.out / f"{suite}.csv", rows)
        print(f"== {suite}: geometric mean of the ratios {statistics.geometric_mean(r.ratio for r in rows):.3f}")
    return 0


def _device_rows(suite: str, machine: tuple[str, str, str], engine: str | None) -> Iterator[Row]:
    with Handle.open("cuda") as handle:
        for line in (ROOT / "bench_cases" / f"{suite}.txt").read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                class_, case = (part.strip() for part in line.split("|"))
                yield _device_row(handle, suite, class_, case, machine, engine)


def _device_row(
    handle: Handle, suite: str, class_: str, text: str, machine: tuple[str, str, str], engine: str | None
) -> Row:
    case = parse_case(text)
    graph = case.graph()
    plan = _plan(handle, graph, engine)
    loaded = handle.load(plan)
    tensors = {planned.uid: device_tensor(graph.tensors[planned.uid]) for planned in plan.tensors}
    addresses = tuple(tensors[uid].data_ptr() for uid in loaded.uids)
    with Workspace(handle.runtime.context, plan.workspace_bytes) as workspace:

        def ours() -> None:
            loaded.execute(addresses, workspace.address, torch.cuda.current_stream().cuda_stream)

        peers = peers_of(case, graph, tensors, _bytes(graph))
        timings = interleaved({"lowdnn": ours, **peers})
    mine = timings.pop("lowdnn")
    best = min(timings, key=lambda name: timings[name].us)
    return Row(
        suite,
        class_,
        str(case),
        next(iter(inputs_of(graph.operations[0]).values())).data_type.name,
        plan.engine,
        " ".join(f"{knob.name}={value}" for knob, value in plan.choices),
        round(mine.us, 2),
        round(_floor_us(graph, plan), 2),
        best,
        round(timings[best].us, 2),
        round(timings[best].us / mine.us, 3),
        round(max(mine.spread, timings[best].spread), 3),
        *machine,
    )


def _plan(handle: Handle, graph: OperationGraph, engine: str | None) -> Plan:
    if engine is not None:
        return candidate_for(engine_named(engine), graph, handle.arch, {}).plan
    return rank(graph, handle.arch, HeurMode.A, handle.engines).candidates[0].plan


def _bytes(graph: OperationGraph) -> int:
    """Each input read once, each output written once."""
    return sum(tensor.span_bytes for tensor in (*graph.inputs, *graph.outputs))


def _floor_us(graph: OperationGraph, plan: Plan) -> float:
    anchors = [op for op in graph.operations if len(outputs_of(op)) == 1]
    flops = max(op.flops for op in anchors)
    return max(flops / _PEAK_FLOPS[plan.work.unit], _bytes(graph) / _COPY_BYTES_PER_S) * 1e6


def _host_rows(machine: tuple[str, str, str]) -> Iterator[Row]:
    rows = measure_host(repeats=200)
    bare = rows[0]
    for row in rows[1:]:
        spread = (row.high_us - row.low_us) / row.median_us
        yield Row(
            "host", "execute", row.name, "", "", "", round(row.median_us, 2), round(bare.median_us, 2), bare.name,
            round(bare.median_us, 2), round(bare.median_us / row.median_us, 3), round(spread, 3), *machine,
        )  # fmt: skip
    limit_us = 1000.0
    for row in measure_planning(repeats=50):
        spread = (row.high_us - row.low_us) / row.median_us
        yield Row(
            "host", "planning", row.name, "", "", "", round(row.median_us, 1), 0.0, "limit of 1 ms",
            limit_us, round(limit_us / row.median_us, 3), round(spread, 3), *machine,
        )  # fmt: skip


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [item.name.rstrip("_") for item in fields(Row)]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(list(asdict(row).values()) for row in rows)


def _driver_version() -> str:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    asked = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False, cwd=ROOT
    )
    return asked.stdout.strip() or os.environ.get("COMMIT", "")


if __name__ == "__main__":
    sys.exit(main())
