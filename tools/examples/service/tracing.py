"""Traces: a span for each request, and one for each batch with links to its requests, around lowdnn's own spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from opentelemetry.trace import Link, SpanKind

from lowdnn.telemetry.otel import OpenTelemetry


class Traces:
    """Spans as lines of JSON in a file. A service in production has an exporter of its collector in that place.

    lowdnn: gives spans of the executes to ``lowdnn.telemetry.enable``.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        exporter = ConsoleSpanExporter("digits", self._file, lambda span: f"{span.to_json(indent=None)}\n")
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("service")
        self.lowdnn = OpenTelemetry(tracer_provider=self._provider)

    @contextmanager
    def request(self, headers: Mapping[str, str]) -> Iterator[None]:
        """A span below that of the caller, whom the header ``traceparent`` names (W3C Trace Context)."""
        with self._tracer.start_as_current_span("classify", extract(headers), SpanKind.SERVER):
            yield

    @contextmanager
    def batch(self, origins: Sequence[Context]) -> Iterator[None]:
        """A span of its own, with a link to the span of each request. origins: the contexts that they came from."""
        links = [Link(origin.run(trace.get_current_span).get_span_context()) for origin in origins]
        with self._tracer.start_as_current_span(
            "batch", context=trace.set_span_in_context(trace.INVALID_SPAN), links=links
        ):
            yield

    def close(self) -> None:
        """Writes the spans that are left."""
        self._provider.shutdown()
        self._file.close()
