"""Telemetry counts and times the work of lowdnn in this process, for Prometheus, OpenTelemetry, or a file.

    from lowdnn import telemetry
    from lowdnn.telemetry.endpoint import Endpoint

    telemetry.enable(sample=0.01, exporters=[Endpoint(port=9400)])
    ...
    print(telemetry.summary())           # p50, p95 and p99 by operation and engine
    telemetry.disable()

It is off unless asked for, by ``enable`` or by LOWDNN_TELEMETRY, and costs an execute nothing then. ``lowdnn guide
telemetry`` lists the measures and the exporters.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowdnn.telemetry.executes import Spans
from lowdnn.telemetry.exporting import Exporter
from lowdnn.telemetry.measures import MEASURES, Measure
from lowdnn.telemetry.registry import REGISTRY, Registry
from lowdnn.telemetry.samples import Family, Histogram, Sample
from lowdnn.telemetry.session import SESSION, Enabled, Feed, Options
from lowdnn.telemetry.table import table

__all__ = [
    "MEASURES",
    "REGISTRY",
    "Enabled",
    "Exporter",
    "Family",
    "Histogram",
    "Measure",
    "Registry",
    "Sample",
    "collect",
    "disable",
    "enable",
    "is_enabled",
    "reset",
    "summary",
]


def enable(
    sample: float = 0.01,
    *,
    exporters: Iterable[Exporter] = (),
    feeds: Iterable[Feed] = (),
    spans: Spans | None = None,
    interval_s: float = 15.0,
) -> Enabled:
    """Counts and times what lowdnn does in this process from now on. Also a context manager: ``with enable(): ...``.

    sample: the share of executes that are timed on the device and on the host, 0 to 1, drawn at random. All are
    counted. An execute into a stream that is being captured is not timed.
    exporters: they get the measures every ``interval_s`` seconds, or serve them.
    feeds: more sources of measures, such as ``nvml.GpuFeed``, asked before measures are read.
    spans: opens spans around the executes that are timed (``otel.spans``).
    Raises BadParamError for other values, and where telemetry is on already; what an exporter raises when it is opened.
    """
    return SESSION.begin(Options(sample, tuple(exporters), tuple(feeds), spans, interval_s))


def disable() -> None:
    """Exports once more and ends telemetry. The values stay, for ``collect``. Raises NotInitializedError where it is
    off."""
    SESSION.end()


def is_enabled() -> bool:
    """Whether telemetry is on in this process; a child of fork begins with it off."""
    return SESSION.is_on


def collect() -> tuple[Family, ...]:
    """All measures that have a value, now."""
    return REGISTRY.collect()


def summary() -> str:
    """A table of executes by operation and engine: how many there were, and the quantiles of their device time."""
    return table(collect())


def reset() -> None:
    """Ends telemetry, if it is on, and forgets all values."""
    if SESSION.is_on:
        SESSION.end()
    REGISTRY.clear()
