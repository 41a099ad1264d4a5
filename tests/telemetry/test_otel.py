"""Metrics, spans and the ids of traces in log lines, through OpenTelemetry's own SDK."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lowdnn import telemetry
from lowdnn.events import emit, event_logger
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.status import BadParamError
from lowdnn.telemetry import REGISTRY, measures
from lowdnn.telemetry.device_clock import Observe
from lowdnn.telemetry.otel import OpenTelemetry, trace_fields
from tests.telemetry.conftest import Program, opened_program, value_of


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def exporter(reader: InMemoryMetricReader, spans: InMemorySpanExporter) -> OpenTelemetry:
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    return OpenTelemetry(MeterProvider(metric_readers=[reader]), tracers)


def read(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The metrics by name."""
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in ([] if data is None else data.resource_metrics)
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_measures_are_metrics(program: Program, reader: InMemoryMetricReader, exporter: OpenTelemetry) -> None:
    with telemetry.enable(sample=1.0, exporters=[exporter], interval_s=1000):
        program.run(4)
        program.synchronize()
        exporter.export(telemetry.collect())
        found = read(reader)
        (executes,) = found["lowdnn_executes"].data.data_points
        assert (executes.value, dict(executes.attributes)) == (4, {"operation": "scale", "engine": "test_scale"})
        assert found["lowdnn_executes"].data.is_monotonic
        (held,) = found["lowdnn_buffer_bytes"].data.data_points
        assert (held.value, found["lowdnn_buffer_bytes"].unit) == (512, "By")
        (times,) = found["lowdnn_kernel_seconds"].data.data_points
        assert (times.count, times.explicit_bounds) == (4, measures.KERNEL_SECONDS.buckets)
        assert found["lowdnn_kernel_seconds"].unit == "s"
    REGISTRY.histogram(measures.KERNEL_SECONDS, "scale", "test_scale").observe(1.0)
    after = read(reader)
    assert "lowdnn_executes" not in after or not after["lowdnn_executes"].data.data_points
    assert after["lowdnn_kernel_seconds"].data.data_points[0].count == 4


def test_timed_executes_are_spans_below_the_programs(
    program: Program, spans: InMemorySpanExporter, exporter: OpenTelemetry
) -> None:
    with telemetry.enable(sample=1.0, exporters=[exporter], spans=exporter.spans):
        with exporter._tracer.start_as_current_span("request") as request:
            program.run(1)
        program.synchronize()
        telemetry.collect()
    kernels, execute = (
        next(span for span in spans.get_finished_spans() if span.name == f"lowdnn.{name}")
        for name in ("kernels", "execute")
    )
    assert execute.parent is not None
    assert execute.parent.span_id == request.get_span_context().span_id
    assert kernels.parent is not None
    assert kernels.parent.span_id == execute.context.span_id
    assert kernels.context.trace_id == request.get_span_context().trace_id
    assert kernels.attributes["lowdnn.plan"] == program.loaded.plan.name
    assert kernels.start_time >= execute.start_time
    assert kernels.end_time > kernels.start_time


def test_log_lines_inside_a_span_have_its_ids(
    program: Program, exporter: OpenTelemetry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="lowdnn")
    with telemetry.enable(exporters=[exporter]), exporter._tracer.start_as_current_span("request") as request:
        emit(event_logger("frontend"), logging.INFO, "inside", {})
        context = request.get_span_context()
        assert trace_fields() == {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
        assert f"inside trace_id={context.trace_id:032x} span_id={context.span_id:016x}" in caplog.text
    assert trace_fields() == {}
    emit(event_logger("frontend"), logging.INFO, "outside", {})
    assert "trace_id" not in caplog.messages[-1]


def test_a_listener_that_fails_costs_nobody_a_value(caplog: pytest.LogCaptureFixture) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("full")

    REGISTRY.listen(failing)
    cell = REGISTRY.histogram(measures.SERVICE_BATCH_SIZE)
    cell.observe(3)
    assert cell.read().count == 1
    assert "full" in caplog.text
    REGISTRY.stop_listening(failing)


def test_launches_of_a_timed_execute_have_the_ids_of_its_span(
    exporter: OpenTelemetry, spans: InMemorySpanExporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="lowdnn.launch")
    program = opened_program(tmp_path)
    with program.runtime, telemetry.enable(sample=1.0, exporters=[exporter], spans=exporter.spans):
        program.run(1)
    execute = next(span for span in spans.get_finished_spans() if span.name == "lowdnn.execute")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "lowdnn.launch"]
    assert f"trace_id={execute.context.trace_id:032x} span_id={execute.context.span_id:016x}" in line


@pytest.mark.parametrize("place", ["call", "enter", "exit", "observe"])
def test_a_tracer_that_fails_hurts_no_execute(program: Program, place: str, caplog: pytest.LogCaptureFixture) -> None:
    class Span(AbstractContextManager[Observe]):
        def __enter__(self) -> Observe:
            fail("enter")
            return lambda seconds: fail("observe")

        def __exit__(self, *_: object) -> None:
            fail("exit")

    def fail(here: str) -> None:
        if here == place:
            raise RuntimeError("the collector is away")

    def spans(loaded: LoadedPlan) -> Span:
        fail("call")
        return Span()

    with telemetry.enable(sample=1.0, spans=spans):
        program.run(3)
        with pytest.raises(BadParamError):
            program.loaded.execute((1, 2), 0, 0)
        program.synchronize()
        assert value_of(measures.EXECUTES, "scale", "test_scale") == 3
        assert value_of(measures.KERNEL_SECONDS, "scale", "test_scale") == 3
    assert "the collector is away" in caplog.text
