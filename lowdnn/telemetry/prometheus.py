"""Prometheus: the text format, for an endpoint or for a file of node_exporter. Needs the extra ``prometheus``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError(
        "lowdnn.telemetry.prometheus needs prometheus_client: pip install 'lowdnn[prometheus]'",
        name="prometheus_client",
    )

from prometheus_client import CollectorRegistry, generate_latest, write_to_textfile
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from lowdnn.telemetry.measures import Kind, Measure
from lowdnn.telemetry.registry import REGISTRY, Registry
from lowdnn.telemetry.samples import Family, Histogram, Sample


class QuietCollector(Collector):
    """A collector that is registered without being read."""

    def describe(self) -> tuple[Metric, ...]:
        """No metric ahead."""
        return ()


class RegistryCollector(QuietCollector):
    """Gives the values of a lowdnn registry to a ``CollectorRegistry`` that it is registered in:

    prometheus_client.REGISTRY.register(lowdnn.telemetry.prometheus.RegistryCollector())
    """

    def __init__(self, registry: Registry = REGISTRY) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        yield from map(metric, self._registry.collect())


class _Read(QuietCollector):
    """Gives values that have been read."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from map(metric, self._families)


def text(registry: Registry = REGISTRY) -> str:
    """All values now, in Prometheus' text format."""
    return generate_latest(collecting(RegistryCollector(registry))).decode()


def write_text_file(path: Path | str, registry: Registry = REGISTRY) -> None:
    """Writes ``text`` to ``path``, whole or not at all, for node_exporter's textfile collector, which reads ``*.prom``.

    Raises OSError where the file cannot be written.
    """
    write_to_textfile(str(path), collecting(RegistryCollector(registry)))


class TextFile:
    """Exports into a file for node_exporter's textfile collector, which reads ``*.prom`` of its directory.

    ``%p`` in the path is the number of the process, so that several ones do not overwrite each other.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = str(path)

    def open(self, registry: Registry) -> None:
        """Writes the file for the first time; raises OSError where that is not possible."""
        write_text_file(self._file, registry)

    def export(self, families: Sequence[Family]) -> None:
        write_to_textfile(self._file, collecting(_Read(families)))

    def close(self) -> None:
        """Leaves the file as it is."""

    def after_fork(self) -> None:
        """Leaves the parent's file alone."""

    @property
    def _file(self) -> str:
        return self._path.replace("%p", str(os.getpid()))


def metric(family: Family) -> Metric:
    """A family in the form of prometheus_client."""
    measure = family.measure
    found = Metric(measure.name.removesuffix("_total"), measure.help, _type(measure))
    for sample in family.samples:
        for name, labels, value in series(measure, sample):
            found.add_sample(name, labels, value)
    return found


def series(measure: Measure, sample: Sample) -> Iterable[tuple[str, dict[str, str], float]]:
    """The numbers of a sample: (name, labels, value); several of a histogram."""
    labels = dict(zip(measure.labels, sample.labels, strict=True))
    value = sample.value
    if not isinstance(value, Histogram):
        return [(measure.name, labels, value)]
    bounds = [*map(floatToGoString, value.bounds), "+Inf"]
    buckets = [
        (f"{measure.name}_bucket", labels | {"le": bound}, float(count))
        for bound, count in zip(bounds, value.cumulative, strict=True)
    ]
    return [
        *buckets,
        (f"{measure.name}_count", labels, float(value.count)),
        (f"{measure.name}_sum", labels, value.total),
    ]


def _type(measure: Measure) -> str:
    """The type in the text. DCGM's counters lack the suffix that the format asks of one."""
    is_named = measure.kind is not Kind.COUNTER or measure.name.endswith("_total")
    return str(measure.kind) if is_named else "unknown"


def collecting(collector: Collector) -> CollectorRegistry:
    """A registry of prometheus_client with one collector."""
    found = CollectorRegistry()
    found.register(collector)
    return found
