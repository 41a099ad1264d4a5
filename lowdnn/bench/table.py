"""The rows of a benchmark: the CSV file that keeps them, and the table of its classes."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lowdnn.bench.suites import Target


@dataclass(frozen=True)
class Machine:
    """Where rows were measured."""

    gpu: str
    driver: str
    commit: str


@dataclass(frozen=True)
class Row:
    """One line of a result file; ``class_`` is the column ``class``.

    us, peer_us: ours and the fastest peer's.  ratio: peer_us / us.  floor_us: the larger of arithmetic at the sustained
    peak and bytes at the copy bandwidth.  step_us, step_floor_us: for a recurrent network, us by the steps of all its
    layers, and the least time that a step takes; otherwise 0.  error: why there is no ratio; the times are then 0.
    """

    suite: str
    class_: str
    case: str
    network: str
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
    step_us: float = 0.0
    step_floor_us: float = 0.0
    error: str = ""


class RowFile:
    """A result file that takes each row as soon as it is measured.

    known: the cases that it held without an error when it was opened.
    """

    def __init__(self, path: Path, *, is_resumed: bool) -> None:
        """``is_resumed``: rows are added to those of an earlier run; otherwise the file is replaced."""
        self.rows = read_rows(path) if is_resumed and path.exists() else []
        self.known = {(row.class_, row.case) for row in self.rows if not row.error}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(_columns())
        kept, self.rows = [row for row in self.rows if not row.error], []
        for row in kept:
            self.add(row)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._writer.writerow(asdict(row).values())
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a file with the columns of ``Row``."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Row(**{_field(name): _value(name, text) for name, text in line.items()}) for line in csv.DictReader(file)
        ]


def class_table(rows: Iterable[Row], targets: Mapping[str, Target], left_out: Mapping[str, int]) -> str:
    """For each class: cases, errors, cases left out; geometric mean and worst of ratio and of share, with the targets.

    share: floor_us / us, of work bound by memory a share of a copy's bandwidth; none where a row has no floor.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.class_, []).append(row)
    classes = list(dict.fromkeys([*targets, *groups, *left_out]))
    lines = [
        _class_lines(name, groups.get(name, ()), targets.get(name), left_out.get(name, 0))
        for name in classes
        if name in groups or name in left_out
    ]
    columns = ("ratio", "target", "worst", "target", "share", "target", "worst")
    return "\n".join([f"{'cases':>6}{'errors':>7}{'left out':>9}{''.join(f'{name:>8}' for name in columns)}", *lines])


def _class_lines(name: str, rows: Sequence[Row], target: Target | None, left_out: int) -> str:
    measured = [row for row in rows if not row.error]
    counts = f"{len(measured):6d}{len(rows) - len(measured):7d}{left_out:9d}"
    if not measured:
        return f"{name}\n{counts}"
    mean = statistics.geometric_mean(row.ratio for row in measured)
    worst = min(measured, key=lambda row: row.ratio)
    least = min(measured, key=_share)
    share = statistics.geometric_mean(map(_share, measured)) if _share(least) else None
    wanted = (None, None, None) if target is None else (target.mean, target.worst, target.share)
    reached = (mean, worst.ratio, share)
    is_missed = any(
        goal is not None and got is not None and got < goal for got, goal in zip(reached, wanted, strict=True)
    )
    pairs = [_number(got, 3) + _number(goal, 2) for got, goal in zip(reached, wanted, strict=True)]
    numbers = "".join(pairs) + ("" if share is None else _number(_share(least), 3))
    figures = f"{counts}{numbers}".rstrip() + ("  MISSED" if is_missed else "")
    lines = [name, figures, f"      worst: {worst.case}"]
    return "\n".join(lines if share is None or least is worst else [*lines, f"      least share: {least.case}"])


def _share(row: Row) -> float:
    return row.floor_us / row.us


def _number(value: float | None, digits: int) -> str:
    return " " * 8 if value is None else f"{value:8.{digits}f}"


def _columns() -> list[str]:
    return [item.name.rstrip("_") for item in fields(Row)]


def _field(column: str) -> str:
    return "class_" if column == "class" else column


def _value(column: str, text: str) -> Any:
    return float(text) if column in _NUMBERS else text


_NUMBERS = frozenset(item.name for item in fields(Row) if item.type == "float")
