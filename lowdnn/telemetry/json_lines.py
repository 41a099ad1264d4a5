"""JSON lines: one object for each value at each export, added to a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lowdnn.telemetry.registry import Registry
from lowdnn.telemetry.samples import Family, Histogram, Sample

#: The quantiles of a histogram that a line has, by name.
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class JsonLines:
    """Adds a line for each value to a file, at each export: time, measure, labels, and the value.

    A histogram has ``count``, ``sum``, ``p50``, ``p95``, ``p99`` and its cumulative ``buckets`` in place of ``value``.
    ``%p`` in the path is the number of the process.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)

    def open(self, registry: Registry) -> None:
        """Makes the file where it is missing; raises OSError where that is not possible."""
        self.export(())

    def export(self, families: Sequence[Family]) -> None:
        """Writes all lines at once; the file is opened anew, so that it may be moved away meanwhile."""
        with Path(self._path.replace("%p", str(os.getpid()))).open("a", encoding="utf-8") as file:
            file.write("".join(lines(families)))

    def close(self) -> None:
        """Leaves the file as it is."""

    def after_fork(self) -> None:
        """Leaves the parent's file alone."""


def lines(families: Sequence[Family], time: datetime | None = None) -> Iterator[str]:
    """The lines of the values; ``time``, now by default, is written in UTC as RFC 3339 has it."""
    stamp = (time or datetime.now(UTC)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for family in families:
        names = family.measure.labels
        for sample in family.samples:
            labels = dict(zip(names, sample.labels, strict=True))
            yield json.dumps({"time": stamp, "measure": family.measure.name, "labels": labels} | _value(sample)) + "\n"


def _value(sample: Sample) -> dict[str, Any]:
    value = sample.value
    if not isinstance(value, Histogram):
        return {"value": value}
    quantiles = {name: value.quantile(share) for name, share in QUANTILES.items()} if value.count else {}
    bounds = [*map(str, value.bounds), "inf"]
    buckets = dict(zip(bounds, value.cumulative, strict=True))
    return {"count": value.count, "sum": value.total, **quantiles, "buckets": buckets}
