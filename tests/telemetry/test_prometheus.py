"""The text that Prometheus reads, parsed by prometheus_client's own parser."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from lowdnn.telemetry import MEASURES, Registry, measures, prometheus
from lowdnn.telemetry.measures import Kind


def _filled() -> Registry:
    registry = Registry()
    for measure in MEASURES:
        labels = [f'{label} "\\\n' for label in measure.labels]
        if measure.kind is Kind.COUNTER:
            registry.counter(measure, *labels).add(2.5)
        elif measure.kind is Kind.GAUGE:
            registry.gauge(measure, *labels).set(-3)
        else:
            registry.histogram(measure, *labels).observe(measure.buckets[1])
    return registry


def test_every_measure_comes_back_from_the_text() -> None:
    found = {
        sample.name: sample
        for family in text_string_to_metric_families(prometheus.text(_filled()))
        for sample in family.samples
        if "le" not in sample.labels
    }
    for measure in MEASURES:
        suffix = "_sum" if measure.kind is Kind.HISTOGRAM else ""
        sample = found[measure.name + suffix]
        assert sample.labels == {label: f'{label} "\\\n' for label in measure.labels}
        expected = {Kind.COUNTER: 2.5, Kind.GAUGE: -3, Kind.HISTOGRAM: measure.buckets[1] if measure.buckets else 0}
        assert sample.value == expected[measure.kind]


def test_the_buckets_of_a_histogram_are_cumulative() -> None:
    registry = Registry()
    cell = registry.histogram(measures.SERVICE_BATCH_SIZE)
    for value in (1, 2, 2, 300):
        cell.observe(value)
    lines = prometheus.text(registry).splitlines()
    assert 'lowdnn_service_batch_size_bucket{le="1.0"} 1.0' in lines
    assert 'lowdnn_service_batch_size_bucket{le="2.0"} 3.0' in lines
    assert 'lowdnn_service_batch_size_bucket{le="+Inf"} 4.0' in lines
    assert "lowdnn_service_batch_size_sum 305.0" in lines
    assert "# TYPE lowdnn_service_batch_size histogram" in lines


def test_a_programs_own_registry_takes_the_measures() -> None:
    own, registry = CollectorRegistry(), Registry()
    own.register(prometheus.RegistryCollector(registry))
    registry.counter(measures.COMPILES).add(4)
    assert own.get_sample_value("lowdnn_compiles_total") == 4


def test_the_text_file_is_written_whole(tmp_path: Path) -> None:
    registry = Registry()
    registry.gauge(measures.VERIFY_FAILURES, "matmul m=5 n=6 k=7").set(0)
    file = tmp_path / "lowdnn.prom"
    prometheus.write_text_file(file, registry)
    assert 'lowdnn_verify_failures{case="matmul m=5 n=6 k=7"} 0.0' in file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["lowdnn.prom"]
