"""Records families on a GPU. Every family runs in a process of its own, which is replaced when a case breaks it."""

from __future__ import annotations

import datetime
import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from lowdnn.driver.base import DriverError
from tests.calibration.case import Array, Case
from tests.calibration.running import execute, opened
from tests.calibration.store import Recording

#: A case that takes longer hangs. The first one waits for the driver to start.
_CASE_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 60.0

Cases = Callable[[], Iterator[Case]]


@dataclass(frozen=True)
class _Outcome:
    """The result of a case and its device, or the problem that it had."""

    results: list[Array]
    problem: str = ""
    device: str = ""
    driver_version: int = 0


def record(cases: Cases, kind: str = "cuda") -> Recording:
    """Runs all cases; one that does not load, faults or hangs is skipped with the reason."""
    described = list(cases())
    outcomes = list(_outcomes(cases, len(described), kind))
    recorded = [(case, outcome) for case, outcome in zip(described, outcomes, strict=True) if not outcome.problem]
    seen = max(outcomes, key=lambda outcome: outcome.driver_version)
    return Recording(
        seen.device,
        seen.driver_version,
        datetime.date.today().isoformat(),
        digests={case.name: case.digest() for case, _ in recorded},
        skipped={case.name: one.problem for case, one in zip(described, outcomes, strict=True) if one.problem},
        results={
            (case.name, output.label): values
            for case, outcome in recorded
            for output, values in zip(case.outputs, outcome.results, strict=True)
        },
    )


def _outcomes(cases: Cases, count: int, kind: str) -> Iterator[_Outcome]:
    """One for each case, from as many processes as it takes."""
    done = 0
    while done < count:
        last = None
        for last in _run_from(cases, done, kind):
            done += 1
            yield last
        if done < count and (last is None or not last.problem):
            done += 1
            yield _Outcome([], "the process hung or died")


def _run_from(cases: Cases, start: int, kind: str) -> Iterator[_Outcome]:
    """The outcomes of one process from case number ``start`` until it ends or hangs."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(cases, start, kind, sender))
    worker.start()
    sender.close()
    timeout_s = _START_TIMEOUT_S
    try:
        while receiver.poll(timeout_s):
            yield receiver.recv()
            timeout_s = _CASE_TIMEOUT_S
    except EOFError:
        pass
    finally:
        worker.kill()
        worker.join()


def _work(cases: Cases, start: int, kind: str, sender: Connection) -> None:
    """In the new process. Ends at the first case that fails: its fault may stick to the context."""
    with opened(kind) as driver:
        facts = driver.device_name(0), driver.driver_version()
        for place, case in enumerate(cases()):
            if place < start:
                continue
            try:
                sender.send(_Outcome(execute(case, driver), "", *facts))
            except DriverError as error:
                sender.send(_Outcome([], str(error), *facts))
                return
