"""The service under load, with faults in its driver, until SIGTERM ends it while the load goes on.

    python -m tools.examples.service.endurance --seconds 1800 --rate 20

It holds that each request has exactly one answer, that each good answer is right, that faults show as status 500 alone,
that memory stays as it is, and that SIGTERM loses nothing. The exit status is 0 where all of that holds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lowdnn.cli.main import main as lowdnn
from tools.examples.service.load import Load, Report
from tools.examples.service.model import CASES
from tools.examples.service.process import ServiceProcess, service

#: By handle: a batch that fails alone, a context that breaks, and one that has no memory when its handle is opened.
FAULTS = (
    "launch:100=LAUNCH_FAILED, memcpy_dtoh_async:80=ILLEGAL_ADDRESS, launch:300-=LAUNCH_FAILED",
    "mem_alloc:3=OUT_OF_MEMORY",
    "launch:500-=ILLEGAL_ADDRESS",
)
#: Growth of memory, from the second quarter of the run to the last one, that is no leak.
_GROWTH_BYTES = 24 << 20
_WARM_UP_S = 2.0


@dataclass(frozen=True)
class Outcome:
    """report: the callers' answers.  resident_bytes: the service's memory, once a second.  status: its exit status.

    replaced: how many times a handle was replaced.
    """

    report: Report
    resident_bytes: tuple[int, ...]
    status: int
    replaced: int

    @property
    def growth_bytes(self) -> float:
        """The median memory of the last quarter above that of the second one."""
        quarter = max(len(self.resident_bytes) // 4, 1)
        second, last = self.resident_bytes[quarter : 2 * quarter], self.resident_bytes[-quarter:]
        return statistics.median(last) - statistics.median(second or last)

    def problems(self) -> Iterator[str]:
        """A line for each thing that does not hold."""
        report = self.report
        if report.lost or report.wrong:
            yield f"{report.lost} requests have no answer, {report.wrong} a wrong one"
        if sum(report.answers.values()) != report.sent:
            yield f"{report.sent} requests have {sum(report.answers.values())} answers"
        if unknown := set(report.answers) - {200, 500, 503, 504}:
            yield f"answers with status {sorted(unknown)}"
        if not report.answers[200] > 0.8 * report.sent:
            yield f"{report.answers[200]} of {report.sent} answers are good"
        if self.growth_bytes > _GROWTH_BYTES:
            yield f"memory has grown by {self.growth_bytes / 2**20:.0f} MiB"
        if self.status != 0:
            yield f"exit status {self.status} after SIGTERM"


def endure(bundle: Path, log: Path, seconds: float, rate: float, faults: Sequence[str] = FAULTS) -> Outcome:
    """Runs the service on the emulated device under ``rate`` requests a second."""
    arguments = ["--device", "emulated", "--bundle", str(bundle), "--port", "0"]
    arguments += [word for text in faults for word in ("--faults", text)]
    with service(arguments, log) as served:
        load = Load(served.port, rate)
        with load.running():
            memory = [*_watched(served, seconds)]
            status = served.terminate()
            time.sleep(0.5)
        replaced = log.read_text(encoding="utf-8").count("handle_replaced")
        return Outcome(load.report(), tuple(memory), status, replaced)


def export_bundle(folder: Path) -> Path:
    """A bundle of the network's plans for the emulated device."""
    path = folder / "digits.bundle"
    if lowdnn(["cache", "export", *CASES, "--arch", "sm_90a", "-o", str(path)]) != 0:
        raise RuntimeError("lowdnn cache export did not write the bundle")
    return path


def _watched(served: ServiceProcess, seconds: float) -> Iterator[int]:
    """The memory of the service each second, behind its warm-up."""
    end = time.monotonic() + seconds
    time.sleep(min(_WARM_UP_S, seconds / 4))
    while time.monotonic() < end:
        yield served.resident_bytes()
        time.sleep(min(1.0, max(end - time.monotonic(), 0)))


def main() -> int:
    """Prints what came of it; 1 where something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.examples.service.endurance", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        bundle = export_bundle(Path(folder))
        outcome = endure(bundle, Path(folder) / "service.log", arguments.seconds, arguments.rate)
    print(outcome.report)
    print(f"handles replaced: {outcome.replaced}; exit status after SIGTERM: {outcome.status}")
    memory = [size / 2**20 for size in outcome.resident_bytes]
    print(f"memory: {memory[0]:.0f} MiB at first, {memory[-1]:.0f} MiB at last, {max(memory):.0f} MiB at most")
    problems = [*outcome.problems()]
    print("\n".join(problems) or "all of it holds")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
