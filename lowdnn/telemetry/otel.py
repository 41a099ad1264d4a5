"""OpenTelemetry: the measures as metrics, sampled executes as spans, and the ids of traces in log lines.

    exporter = OpenTelemetry()                    # the providers that the program has set
    telemetry.enable(exporters=[exporter], spans=exporter.spans)

Needs the extra ``opentelemetry``: its API alone; the program brings an SDK and decides where everything goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from time import time_ns

if find_spec("opentelemetry") is None:
    raise ModuleNotFoundError(
        "lowdnn.telemetry.otel needs OpenTelemetry: pip install 'lowdnn[opentelemetry]'", name="opentelemetry"
    )

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
from opentelemetry.trace import TracerProvider, format_span_id, format_trace_id

from lowdnn import __version__
from lowdnn.events import add_fields, remove_fields
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.telemetry.device_clock import Observe
from lowdnn.telemetry.measures import MEASURES, Area, Kind, Measure
from lowdnn.telemetry.registry import Registry
from lowdnn.telemetry.samples import Family

#: OpenTelemetry's names of units (UCUM).
_UNITS = {"seconds": "s", "bytes": "By", "percent": "%", "watts": "W", "MiB": "MiBy", "degrees Celsius": "Cel"}


class OpenTelemetry:
    """Gives the library's and the GPUs' measures to a meter, and spans to a tracer, both named ``lowdnn``.

    A metric has the measure's name without ``_total``. Counters and gauges are those of the last export, which precedes
    the provider's own by at most ``interval_s`` of ``enable``; values of histograms are handed over one by one.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        """The providers are those of the process, where they are left out."""
        self._meter_provider = meter_provider
        self._tracer = trace.get_tracer("lowdnn", __version__, tracer_provider)
        self._families: Mapping[Measure, Family] = {}
        self._instruments: dict[Measure, Histogram] = {}
        self._registry: Registry | None = None

    def open(self, registry: Registry) -> None:
        provider = self._meter_provider or metrics.get_meter_provider()
        meter = provider.get_meter("lowdnn", __version__)
        self._registry = registry
        for measure in MEASURES:
            if measure.area in (Area.LIBRARY, Area.GPU):
                self._make(meter, measure)
        registry.listen(self._observe)
        add_fields(trace_fields)
        self.export(registry.collect())

    def export(self, families: Sequence[Family]) -> None:
        self._families = {family.measure: family for family in families}

    def close(self) -> None:
        """The instruments stay, and give no more values."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.stop_listening(self._observe)
            remove_fields(trace_fields)
        self._families = {}

    def after_fork(self) -> None:
        """Gives no values of the parent."""
        self.close()

    @contextmanager
    def spans(self, loaded: LoadedPlan) -> Iterator[Observe]:
        """A span ``lowdnn.execute`` around an execute. Once the device's time is known, a span ``lowdnn.kernels`` below
        it, which begins where the host began to launch."""
        attributes = {
            "lowdnn.operation": loaded.operation,
            "lowdnn.engine": loaded.plan.engine,
            "lowdnn.plan": loaded.plan.name,
        }
        with self._tracer.start_as_current_span("lowdnn.execute", attributes=attributes) as span:
            begin_ns = time_ns()
            context = trace.set_span_in_context(span)

            def observe(seconds: float) -> None:
                kernels = self._tracer.start_span("lowdnn.kernels", context, attributes=attributes, start_time=begin_ns)
                kernels.end(begin_ns + round(seconds * 1e9))

            yield observe

    def _make(self, meter: Meter, measure: Measure) -> None:
        name, unit = measure.name.removesuffix("_total"), _UNITS.get(measure.unit, measure.unit or "1")
        if measure.kind is Kind.HISTOGRAM:
            self._instruments[measure] = meter.create_histogram(
                name, unit, measure.help, explicit_bucket_boundaries_advisory=measure.buckets
            )
            return
        is_counter = measure.kind is Kind.COUNTER
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        make(name, [partial(self._observations, measure)], unit, measure.help)

    def _observations(self, measure: Measure, options: CallbackOptions) -> Iterator[Observation]:
        family = self._families.get(measure)
        for sample in () if family is None else family.samples:
            if isinstance(sample.value, float):
                yield Observation(sample.value, dict(zip(measure.labels, sample.labels, strict=True)))

    def _observe(self, measure: Measure, labels: tuple[str, ...], value: float) -> None:
        instrument = self._instruments.get(measure)
        if instrument is not None:
            instrument.record(value, dict(zip(measure.labels, labels, strict=True)))


def trace_fields() -> dict[str, str]:
    """The ids of the current span, for log lines; none outside of any span."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}
