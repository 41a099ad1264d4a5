"""Benchmarks: lowdnn and its peers in turns in one process on an NVIDIA GPU, one CSV row a case.

    python -m tools.bench [SUITE...] [--suite SUITE] [--only TEXT] [--sample N] [--budget SECONDS] [--resume]

Suites: gemm, conv, membound, attention (``lowdnn/bench/cases``; conv has the layers of ``networks.txt`` too), rnn
(drawn by ``lowdnn/bench/recurrent.py``), host. The device suites time kernels by graph replay
(``lowdnn/bench/timing.py``) and compare the results with the peers'; the host suite times calls without
synchronisation. In the rows, ``us`` is ours, ``floor_us`` the least time (``lowdnn/bench/floor.py``), ``peer`` the
fastest peer, and ``ratio`` = peer_us / us. Each suite ends with a table of its classes: the ratios, and the shares
floor_us / us. The exit code is 1 where a case failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from lowdnn.backend.handle import Handle
from lowdnn.bench.floor import card_named
from lowdnn.bench.networks import cases_of
from lowdnn.bench.statistics import Timing
from lowdnn.bench.suites import DEVICE_SUITES, TARGETS, SuiteCase, mixed, of_classes, sampled
from lowdnn.bench.table import Machine, Row, RowFile, class_table
from lowdnn.cases import parse_case
from lowdnn.plan import KernelRef
from lowdnn.status import LowdnnError
from tools.bench.device import chosen, measure
from tools.bench.host import measure_host
from tools.bench.peers.catalog import configure
from tools.bench.planning import measure_planning

_RESULTS = Path(__file__).resolve().parent / "results"
SUITES = (*DEVICE_SUITES, "host")

#: Memory that torch may keep from case to case before it is asked to give it back.
_MAX_RESERVED_BYTES = 64 * 2**30


def main() -> int:
    arguments = _parse()
    configure()
    machine = Machine(torch.cuda.get_device_name(0), _driver_version(), arguments.commit or _commit())
    folder = arguments.out or _RESULTS / card_named(machine.gpu).name.lower()
    is_clean = True
    for suite in arguments.suites:
        every = [] if suite == "host" else of_classes(cases_of(suite), arguments.only)
        with RowFile(folder / f"{suite}.csv", is_resumed=arguments.resume) as file:
            try:
                for row in (
                    _host_rows(machine) if suite == "host" else _device_rows(suite, every, file, arguments, machine)
                ):
                    _add(file, row)
            finally:  # also when the device is lost
                print(f"\n== {suite}\n{class_table(file.rows, TARGETS, _left_out(every, file))}", flush=True)
            is_clean &= not any(row.error for row in file.rows)
    return 0 if is_clean else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of: {', '.join(SUITES)} (default: all)")
    parser.add_argument("--suite", action="append", default=[], metavar="SUITE", help="the same, by name")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="classes and networks named so")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N cases of each class, by chance")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no case of a suite after this time")
    parser.add_argument("--seed", type=int, default=4, help="of --sample and of the order under --budget (default 4)")
    parser.add_argument("--compile-ahead", action="store_true", help="compile for all cases first, side by side")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the files have, measure the others")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the CSV files (default: results/CARD)")
    parser.add_argument("--commit", default="", help="commit of the tree (default: asked of git)")
    parser.add_argument("--engine", help="this engine instead of the heuristics' first choice")
    arguments = parser.parse_args()
    arguments.suites = [*arguments.suites, *arguments.suite] or list(SUITES)
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"expected suites out of {', '.join(SUITES)}, got {', '.join(sorted(unknown))}")
    return arguments


def _device_rows(
    suite: str, every: list[SuiteCase], file: RowFile, arguments: argparse.Namespace, machine: Machine
) -> Iterator[Row]:
    """The rows of a device suite, as far as sample and budget go, without those that the file has."""
    start = time.monotonic()
    cases = [case for case in _chosen(every, arguments) if (case.class_, case.text) not in file.known]
    with Handle.open("cuda") as handle:
        if arguments.compile_ahead:
            _compile_ahead(handle, cases, arguments.engine)
        for case in cases:
            if arguments.budget is not None and time.monotonic() - start > arguments.budget:
                return
            yield measure(handle, suite, case, machine, arguments.engine)
            if torch.cuda.memory_reserved() > _MAX_RESERVED_BYTES:
                torch.cuda.empty_cache()


def _compile_ahead(handle: Handle, cases: list[SuiteCase], engine: str | None) -> None:
    """Loads all kernels at once, which compiles them side by side; what fails here fails again in its case."""
    start, kernels = time.monotonic(), dict.fromkeys(_kernels(handle, cases, engine))
    with suppress(LowdnnError):
        handle.runtime.modules.load(list(kernels))
    print(f"{len(kernels)} kernels in {time.monotonic() - start:.0f} s", flush=True)


def _kernels(handle: Handle, cases: list[SuiteCase], engine: str | None) -> Iterator[KernelRef]:
    for case in cases:
        with suppress(LowdnnError):
            yield from chosen(handle, parse_case(case.text).graph(), engine).plan.kernels


def _left_out(every: list[SuiteCase], file: RowFile) -> Counter[str]:
    """How many cases of each class have no row."""
    done = {(row.class_, row.case) for row in file.rows}
    return Counter(case.class_ for case in every if (case.class_, case.text) not in done)


def _chosen(cases: list[SuiteCase], arguments: argparse.Namespace) -> list[SuiteCase]:
    if arguments.sample is not None:
        cases = sampled(cases, arguments.sample, arguments.seed)
    return cases if arguments.budget is None else mixed(cases, arguments.seed)


def _add(file: RowFile, row: Row) -> None:
    file.add(row)
    if row.error:
        print(f"ERROR {row.case}\n      {row.error}", flush=True)
        return
    times = f"{row.ratio:6.2f}x {row.us:9.2f} us  floor {row.floor_us:8.2f}  {row.peer} {row.peer_us:.2f}"
    if row.step_us:
        times += f"  a step {row.step_us:.2f}, floor {row.step_floor_us:.2f}"
    print(f"{times:64} {row.engine:24} {row.case}", flush=True)


def _host_rows(machine: Machine) -> Iterator[Row]:
    times = measure_host(repeats=200)
    (bare_name, bare), *_ = times.items()
    for name, timing in times.items():
        if name != bare_name:
            yield _host_row("execute", name, timing, bare_name, bare.us, machine)
    for name, timing in measure_planning(repeats=50).items():
        yield _host_row("planning", name, timing, "limit of 1 ms", 1000.0, machine)


def _host_row(class_: str, name: str, timing: Timing, peer: str, peer_us: float, machine: Machine) -> Row:
    """The floor of a host time is its peer's; planning has a limit instead, which is no floor."""
    return Row(
        suite="host",
        class_=class_,
        case=name,
        network="",
        dtype="",
        engine="",
        knobs="",
        us=round(timing.us, 2),
        floor_us=round(peer_us, 2) if class_ == "execute" else 0.0,
        peer=peer,
        peer_us=round(peer_us, 2),
        ratio=round(peer_us / timing.us, 3),
        spread=round(timing.spread, 3),
        **vars(machine),
    )


def _driver_version() -> str:
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    asked = subprocess.run(
        ("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False, cwd=_RESULTS
    )
    return asked.stdout.strip() or os.environ.get("COMMIT", "")


if __name__ == "__main__":
    sys.exit(main())
