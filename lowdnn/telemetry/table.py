"""A table of executes for people."""

from __future__ import annotations

from collections.abc import Iterable

from lowdnn.telemetry import measures
from lowdnn.telemetry.samples import Family, Histogram

_HEADING = ("operation", "engine", "executes", "timed", "p50 us", "p95 us", "p99 us")


def table(families: Iterable[Family]) -> str:
    """One line for each operation and engine, most executes first, with a heading."""
    found = {family.measure: {sample.labels: sample.value for sample in family.samples} for family in families}
    executes = found.get(measures.EXECUTES, {})
    times = found.get(measures.KERNEL_SECONDS, {})
    rows: list[tuple[str, ...]] = [_HEADING]
    for labels, count in sorted(executes.items(), key=lambda item: (-_number(item[1]), item[0])):
        operation, engine = labels
        seconds = times.get(labels)
        timed = seconds if isinstance(seconds, Histogram) else Histogram((), (0,), 0.0)
        quantiles = [_microseconds(timed, share) for share in (0.5, 0.95, 0.99)]
        rows.append((operation, engine, f"{_number(count):.0f}", str(timed.count), *quantiles))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    lines = [
        "  ".join([f"{row[0]:<{widths[0]}}", f"{row[1]:<{widths[1]}}", *map(str.rjust, row[2:], widths[2:])])
        for row in rows
    ]
    return "\n".join(lines) if len(rows) > 1 else "no execute was counted"


def _number(value: float | Histogram) -> float:
    return value.count if isinstance(value, Histogram) else value


def _microseconds(times: Histogram, share: float) -> str:
    return f"{times.quantile(share) * 1e6:.1f}" if times.count else "-"
