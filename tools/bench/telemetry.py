"""Host time that telemetry adds to an execute, and the memory that many executes leave behind.

    python -m tools.bench.telemetry [--device cuda] [--rounds N] [--executes N]

``--device stub`` measures on the host alone: launches and events do nothing. A row is the host time of one execute over
short bursts, in turns with telemetry off, so that all see the same machine; ``more`` is the median of the differences
from the burst with it off in the same round. Behind the rows stands how far the process has grown over ``--executes``
executes with one in a hundred timed.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from lowdnn import telemetry
from lowdnn.config import Config
from lowdnn.driver import open_driver
from lowdnn.observer import introduce
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.sources import SourceTree
from lowdnn.runtime.stream import Stream
from lowdnn.telemetry import measures
from tools.bench.host import COPY_SOURCE, COUNT, copy_plan

#: Executes of a burst: fewer than the driver's launch queue holds.
_BURST = 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The rows: their names, and the share of executes that are timed; None with telemetry off.
_ROWS = {"off": None, "on, none timed": 0.0, "on, 1 % timed": 0.01, "on, all timed": 1.0}


@dataclass(frozen=True)
class Program:
    """A plan that copies some floats, on a stream."""

    loaded: LoadedPlan
    pointers: tuple[int, int]
    stream: Stream

    def burst_ns(self, executes: int = _BURST) -> float:
        """Host nanoseconds of one of so many executes; waits for the stream before and behind them."""
        execute, pointers, stream = self.loaded.execute, self.pointers, self.stream.handle
        self.stream.synchronize()
        start = time.perf_counter_ns()
        for _ in range(executes):
            execute(pointers, 0, stream)
        elapsed_ns = time.perf_counter_ns() - start
        self.stream.synchronize()
        return elapsed_ns / executes


@contextmanager
def opened(device: str) -> Iterator[Program]:
    driver: Any = open_driver("emulated" if device == "stub" else device)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "copy.cu").write_text(COPY_SOURCE, encoding="utf-8")
        if device == "stub":
            _stub(driver)
        sources = SourceTree(Path(folder))
        with (
            Runtime(driver, config=Config(disk_cache=False), sources=sources) as runtime,
            Stream.create(runtime.context) as stream,
            runtime.context.activated(),
        ):
            if device == "stub":
                current = driver.context_get_current()
                driver.context_get_current = lambda: current
            loaded = runtime.load(copy_plan())
            loaded.operation = "copy"
            introduce(loaded)
            buffers = [DeviceBuffer.allocate(runtime.context, 4 * COUNT) for _ in range(2)]
            buffers[0].copy_from_host(np.zeros(COUNT, np.float32))
            yield Program(loaded, (buffers[0].address, buffers[1].address), stream)


def _stub(driver: Any) -> None:
    """Leaves of launches and events only the calls."""
    driver.prepare_launch = lambda *_: _nothing
    driver.event_record = _nothing
    driver.stream_is_capturing = _no
    driver.event_query = lambda event: True
    driver.event_elapsed_ms = lambda start, end: 1e-3


def _nothing(*_: object) -> None:
    pass


def _no(stream: int) -> bool:
    return False


def host_ns(program: Program, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of an execute by row, one of each for each round."""
    found: dict[str, list[float]] = {name: [] for name in _ROWS}
    for _ in range(rounds):
        for name, share in _ROWS.items():
            if share is None:
                program.burst_ns()
                found[name].append(program.burst_ns())
            else:
                with telemetry.enable(sample=share, interval_s=1e5):
                    program.burst_ns()
                    telemetry.collect()  # reads the events, so that the next burst makes no more of them
                    found[name].append(program.burst_ns())
    return found


def grown_bytes(program: Program, executes: int) -> int:
    """How much more memory the process has behind ``executes`` executes than a tenth of them earlier."""
    with telemetry.enable(sample=0.01, interval_s=0.5):
        _executed(program, executes // 10)
        before_bytes = _resident_bytes()
        _executed(program, executes)
        grown = _resident_bytes() - before_bytes
        telemetry.collect()
    return grown


def _executed(program: Program, executes: int) -> None:
    for _ in range(executes // 500):
        program.burst_ns(500)
    telemetry.collect()
    gc.collect()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "stub"), default="cuda")
    parser.add_argument("--rounds", type=int, default=100, help="bursts of each row (default 100)")
    parser.add_argument("--executes", type=int, default=1_000_000, help="for the growth (default 1000000)")
    arguments = parser.parse_args()
    with opened(arguments.device) as program:
        times_ns = host_ns(program, arguments.rounds)
        print(f"{'execute':16}{'median us':>11}{'least us':>11}{'more us':>11}{'least more':>11}")
        off = times_ns["off"]
        for name, row in times_ns.items():
            more = [on - base for on, base in zip(row, off, strict=True)]
            numbers = median(row), min(row), median(more), min(row) - min(off)
            print(
                f"{name:16}"
                + "".join(f"{ns / 1e3:{width}.3f}" for ns, width in zip(numbers, (10, 10, 9, 12), strict=True))
            )
        telemetry.reset()
        grown = grown_bytes(program, arguments.executes)
        (executes,) = (one.samples[0].value for one in telemetry.collect() if one.measure is measures.EXECUTES)
        print(f"{executes:.0f} executes counted; the process grew by {grown / 1024:.0f} KiB over {arguments.executes}")
        print(telemetry.summary())


if __name__ == "__main__":
    main()
