"""Records families on a GPU. Every family runs in a process of its own, which is replaced when a case breaks it."""

from __future__ import annotations

import datetime
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

from lowdnn.driver.base import DriverError
from tests.calibration.case import Array, Case
from tests.calibration.running import execute, opened
from tests.calibration.store import Recording

#: A case that takes longer hangs.
_CASE_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 60.0

Cases = Callable[[], Iterator[Case]]


def record(cases: Cases, kind: str = "cuda") -> Recording:
    """Runs all cases; one that does not load, faults or hangs is skipped with the reason."""
    described = list(cases())
    results: dict[tuple[str, str], Array] = {}
    digests: dict[str, str] = {}
    skipped: dict[str, str] = {}
    start, device = 0, ("", 0)
    while start < len(described):
        messages = _run_from(cases, start, kind)
        device = next(messages, device)
        begun = start
        for arrays, problem in messages:
            case = described[start]
            start += 1
            if problem:
                skipped[case.name] = problem
                continue
            digests[case.name] = case.digest()
            results |= {(case.name, output.label): one for output, one in zip(case.outputs, arrays, strict=True)}
        if start < len(described) and (start == begun or not problem):
            skipped[described[start].name] = "the process hung or died"
            start += 1
    return Recording(*device, datetime.date.today().isoformat(), digests, skipped, results)


def _run_from(cases: Cases, start: int, kind: str) -> Iterator[tuple]:
    """(device name, driver version), then (results, problem) for each case from number ``start`` until one breaks."""
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
        sender.send((driver.device_name(0), driver.driver_version()))
        for place, case in enumerate(cases()):
            if place < start:
                continue
            try:
                sender.send((execute(case, driver), ""))
            except DriverError as error:
                sender.send(([], str(error)))
                return
