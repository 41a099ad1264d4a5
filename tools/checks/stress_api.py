"""Random calls of the backend and the frontend, right and wrong, in any order: only documented errors may come out.

    nice python -m tools.checks.stress_api [--steps 100000] [--seed 1] [--seconds 3600]

A step is one call on the emulated device: descriptors are created, set, read, finalized and executed with right and
wrong attributes, types, counts and values; graphs are written with random arguments, planned, built, executed with
missing, other and wrong tensors, written to text and read back; handles are closed and opened again, tensors freed,
streams set.
Documented are the exceptions of ``LowdnnError``'s tree, and TypeError for arguments that a call does not have. A step
of more than half a minute counts as a hang, and an object that still lives at the end as a leak.

A seed gives the steps that it gave before. Each fault is printed once, with the step, the call and the frame that
raised; the exit code is 1 where there was one.
"""

from __future__ import annotations

import argparse
import gc
import re
import resource
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import lowdnn
from lowdnn.status import LowdnnError, LowdnnWarning
from tools.checks.stress_backend import BackendCalls
from tools.checks.stress_frontend import FrontendCalls
from tools.checks.stress_handles import Handles

_HANG_S = 30
_WRONG_SIGNATURE = re.compile(r"\(\) (missing|takes|got an unexpected keyword|got multiple values)")
_PACKAGE = Path(lowdnn.__file__).parent


@dataclass
class Report:
    """The outcome of the steps: the number of each exception, and the faults by the frame that raised them."""

    steps: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    leaked_handles: int = 0
    grown_mib: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in self.errors.most_common())
        calls = ", ".join(f"{name} {self.succeeded[name]}/{count}" for name, count in self.calls.most_common())
        lines = [
            f"{self.steps} steps in {self.seconds:.0f} s, of which {self.succeeded.total()} succeeded",
            f"calls, those that succeeded first: {calls}",
            f"errors: {told}",
            f"handles that live on: {self.leaked_handles}; memory grew by {self.grown_mib:.1f} MiB in the second half",
            f"faults: {len(self.faults)}",
        ]
        return "\n".join(lines + [f"  {place}\n    {text}" for place, text in self.faults.items()])


def stress(steps: int, seed: int, seconds: float = float("inf")) -> Report:
    """Makes ``steps`` calls, fewer where ``seconds`` end before. The calls follow from ``seed`` alone."""
    report, draw, start = Report(), Random(seed), time.monotonic()
    handles = Handles(draw)
    parts = (BackendCalls(draw, handles), FrontendCalls(draw, handles))
    half_mib = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LowdnnWarning)
        while report.steps < steps and time.monotonic() - start < seconds:
            name, call = draw.choice(parts).draw_call()
            _step(report, name, call)
            if report.steps == steps // 2:
                half_mib = _resident_mib()
    alive = [weakref.ref(handle.runtime.driver) for handle in handles.every]
    handles.close()
    del parts, handles, call
    gc.collect()
    report.leaked_handles = sum(reference() is not None for reference in alive)
    report.grown_mib, report.seconds = _resident_mib() - half_mib, time.monotonic() - start
    return report


def _step(report: Report, name: str, call: Callable[[], object]) -> None:
    report.steps += 1
    report.calls[name] += 1
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(_HANG_S)
    try:
        call()
        report.succeeded[name] += 1
    except LowdnnError as error:
        report.errors[type(error).__name__] += 1
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if _is_wrong_signature(error):
            report.errors["TypeError of the call"] += 1
        else:
            _record(report, name, error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _hangs(*_: object) -> None:
    raise TimeoutError(f"no end within {_HANG_S} s")


def _is_wrong_signature(error: BaseException) -> bool:
    """True where Python found that the arguments do not fit the call's parameters: at the call, or where the one
    function around the method calls it."""
    return isinstance(error, TypeError) and len(_places(error)) <= 1 and bool(_WRONG_SIGNATURE.search(str(error)))


def _places(error: BaseException) -> list[str]:
    """The lines of the library in the error's traceback, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    return [f"{Path(frame.filename).relative_to(_PACKAGE)}:{frame.lineno}" for frame in inside]


def _record(report: Report, name: str, error: BaseException) -> None:
    places = _places(error)[::-1] or ["the tool itself"]
    text = f"step {report.steps}: {name}: {error!s}"[:400]
    report.faults.setdefault(
        f"{type(error).__name__} at {places[0]}", f"{text}\n    by way of {', '.join(places[1:5])}"
    )


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="calls to make (default 100000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the calls (default 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="most seconds (default: no limit)")
    arguments = parser.parse_args()
    report = stress(arguments.steps, arguments.seed, arguments.seconds)
    print(report)
    return 1 if report.faults or report.leaked_handles else 0


if __name__ == "__main__":
    sys.exit(main())
