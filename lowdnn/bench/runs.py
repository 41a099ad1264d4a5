"""Runs of the benchmark: cases that were timed at one time on one device, and the files that keep them.

A file of saved runs is JSON lines, a run each, which later runs are added to:

    {"lowdnn_bench": 1, "device": "NVIDIA H200", "clock": "events", "lowdnn": "0.2.0", ..., "times": [{...}, ...]}
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from lowdnn import __version__
from lowdnn.backend.handle import Handle
from lowdnn.bench.floor import Card, card_named, data_bytes, floor_us, moved_bytes, product_flops
from lowdnn.bench.statistics import Timing
from lowdnn.bench.suites import SuiteCase
from lowdnn.bench.workbench import Prepared, Workbench
from lowdnn.cases import parse_case
from lowdnn.documents import read_document, shown, write_document
from lowdnn.runtime.shared_files import change_file
from lowdnn.runtime.timing import slots_for
from lowdnn.status import BadParamError, LowdnnError, NotSupportedError
from lowdnn.text_files import read_text

#: Version of the JSON form. A reader refuses other versions.
SCHEMA_VERSION = 1
#: The most cases that are taken in turns.
_BATCH_CASES = 16
#: The share of the device's memory that their data may fill.
_BATCH_SHARE = 0.5
#: A larger file is no file of runs.
_MOST_BYTES = 256 << 20


class BenchClock(Enum):
    """The meaning of a run's microseconds."""

    EVENTS = "events"  #: device time between two CUDA events
    COUNTED = "counted"  #: instructions that the emulated device counted, which are no time

    @property
    def words(self) -> str:
        if self is BenchClock.EVENTS:
            return "microseconds of device time between CUDA events"
        return "instructions counted by the emulated device, scaled like microseconds: no time was measured"


@dataclass(frozen=True)
class CaseTimes:
    """The times of one case in a run.

    count: how often a program runs it.  us, low_us, high_us: median, 10th and 90th percentile of the rounds.
    floor_us: the least time on the card; 0 where its rates are not known.  flops, bytes: the
    work.
    error: why there are no times, or empty.
    """

    class_: str
    case: str
    network: str = ""
    count: int = 1
    engine: str = ""
    knobs: str = ""
    us: float = 0.0
    low_us: float = 0.0
    high_us: float = 0.0
    floor_us: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    error: str = ""

    @property
    def share(self) -> float:
        """floor_us / us; 0 where one of them is not known."""
        return self.floor_us / self.us if self.us else 0.0


@dataclass(frozen=True)
class Run:
    """device: the driver's name of it.  driver: its version.  time: when the run began, in UTC."""

    device: str
    clock: BenchClock
    driver: str
    lowdnn: str
    commit: str
    time: str
    times: tuple[CaseTimes, ...]

    @property
    def by_case(self) -> dict[str, CaseTimes]:
        """The times without an error, by case."""
        return {times.case: times for times in self.times if not times.error}


def measured(handle: Handle, cases: Sequence[tuple[int, SuiteCase]], rounds: int, commit: str = "") -> Iterator[Run]:
    """A run of (count, case), given again with more of its times after each batch of cases.

    The cases of a batch are timed in turns, ``rounds`` times.
    """
    driver, context = handle.runtime.driver, handle.runtime.context
    clock = BenchClock.COUNTED if driver.kind == "emulated" else BenchClock.EVENTS
    name = driver.device_name(context.device)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    run = Run(name, clock, str(driver.driver_version()), __version__, commit, started, ())
    card = card_of(handle)
    limit = int(driver.device_total_memory_bytes(context.device) * _BATCH_SHARE)
    with Workbench(handle) as bench:
        for batch in batches(cases, limit):
            prepared = bench.prepare([case.text for _, case in batch])
            samples = [bench.round() for _ in range(rounds)]
            found = (
                _times(count, case, plan, [us for us in column if us is not None], card)
                for (count, case), plan, column in zip(batch, prepared, zip(*samples, strict=True), strict=True)
            )
            run = replace(run, times=(*run.times, *found))
            yield run


def card_of(handle: Handle) -> Card | None:
    """The facts of the GPU's board; None where they are not known, and on the emulated device."""
    driver = handle.runtime.driver
    if driver.kind == "emulated":
        return None
    try:
        return card_named(driver.device_name(handle.runtime.context.device))
    except NotSupportedError:
        return None


def batches(cases: Iterable[tuple[int, SuiteCase]], limit_bytes: int) -> Iterator[list[tuple[int, SuiteCase]]]:
    """The cases in groups whose data, in all of their copies, take at most ``limit_bytes``, or which are alone."""
    batch: list[tuple[int, SuiteCase]] = []
    filled = 0
    for count, case in cases:
        size_bytes = _size_bytes(case)
        if batch and (len(batch) == _BATCH_CASES or filled + size_bytes > limit_bytes):
            yield batch
            batch, filled = [], 0
        batch.append((count, case))
        filled += size_bytes
    if batch:
        yield batch


def save(run: Run, path: Path) -> None:
    """Adds the run to a file of saved runs. Raises OSError, and BadParamError for a file of another kind."""
    line = run_json(run)

    def add(text: str) -> str:
        runs_in(text, str(path))
        return f"{text}{line}\n"

    change_file(path, add)


def saved_runs(path: Path) -> list[Run]:
    """The runs of a file, oldest first. Raises BadParamError for a file that cannot be read, or of another kind."""
    return runs_in(read_text(path, "bench.runs", "a readable file", _MOST_BYTES), str(path))


def runs_in(text: str, where: str) -> list[Run]:
    """The runs of a file's text; ``where`` names it in errors."""
    return [_run(line, f"{where}:{number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def write_csv(run: Run, path: Path) -> None:
    """The times as rows, each with the facts of the run."""
    facts = {"device": run.device, "clock": run.clock.value, "driver": run.driver, "lowdnn": run.lowdnn}
    facts |= {"commit": run.commit, "time": run.time}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(item.name.rstrip("_") for item in fields(CaseTimes)), *facts])
        writer.writerows([*asdict(times).values(), *facts.values()] for times in run.times)


def run_json(run: Run) -> str:
    """The run as one JSON object, as a file of saved runs has it."""
    document = asdict(run) | {"clock": run.clock.value, "times": [asdict(times) for times in run.times]}
    return write_document("lowdnn_bench", SCHEMA_VERSION, document)


def _times(count: int, case: SuiteCase, plan: Prepared, samples_us: list[float], card: Card | None) -> CaseTimes:
    found = CaseTimes(case.class_, case.text, case.network, count, plan.engine, plan.knobs, error=plan.error)
    if plan.error:
        return found
    graph, timing = parse_case(case.text).graph(), Timing.of(samples_us)
    return replace(
        found,
        us=round(timing.us, 3),
        low_us=round(timing.low_us, 3),
        high_us=round(timing.high_us, 3),
        floor_us=0.0 if card is None else round(floor_us(graph, card), 3),
        flops=float(product_flops(graph)),
        bytes=float(moved_bytes(graph)),
    )


def _size_bytes(case: SuiteCase) -> int:
    """Bytes of all copies of a case's data; 0 for a case that has no graph."""
    try:
        size_bytes = data_bytes(parse_case(case.text).graph())
    except LowdnnError:
        return 0
    return size_bytes * slots_for(size_bytes)


_RUN_FIELDS: dict[str, type] = {item.name: str for item in fields(Run)} | {"times": list}
_RULES: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "an integer from 0"),
    float: ((int, float), "a number from 0"),
}
_TIMES_TYPES = {item.name: {"str": str, "int": int, "float": float}[str(item.type)] for item in fields(CaseTimes)}


def _run(line: str, where: str) -> Run:
    content = read_document(line, "lowdnn_bench", SCHEMA_VERSION, _RUN_FIELDS, where)
    clocks = [clock.value for clock in BenchClock]
    if content["clock"] not in clocks:
        raise BadParamError.at(f"{where}.clock", expected=" or ".join(clocks), got=shown(content["clock"]))
    times = tuple(_case_times(item, f"{where}.times[{number}]") for number, item in enumerate(content["times"]))
    return Run(**content | {"clock": BenchClock(content["clock"]), "times": times})


def _case_times(item: Any, where: str) -> CaseTimes:
    if not isinstance(item, dict) or item.keys() != _TIMES_TYPES.keys():
        raise BadParamError.at(where, expected=f"the fields {', '.join(_TIMES_TYPES)}", got=shown(item))
    for name, wanted in _TIMES_TYPES.items():
        value = item[name]
        types, rule = _RULES[wanted]
        if type(value) not in types or (wanted is not str and value < 0):
            raise BadParamError.at(f"{where}.{name}", expected=rule, got=shown(value))
    if not item["error"] and not item["us"]:
        raise BadParamError.at(f"{where}.us", expected="more than 0 where there is no error", got=item["us"])
    return CaseTimes(**item)
