"""Counters, gauges and histograms: their values, labels, quantiles, limits, threads and forks."""

from __future__ import annotations

import math
import os
import random
from threading import Thread

import pytest

from lowdnn.status import BadParamError
from lowdnn.telemetry import MEASURES, Histogram, Registry, measures
from lowdnn.telemetry.measures import Kind, measure_named
from lowdnn.telemetry.registry import MOST_SERIES, OTHER
from tests.support.data import fresh_seed


def test_each_measure_is_named_once_and_fits_its_kind() -> None:
    names = [measure.name for measure in MEASURES]
    assert len(names) == len(set(names)) >= 40
    for measure in MEASURES:
        assert measure_named(measure.name) is measure
        assert bool(measure.buckets) == (measure.kind is Kind.HISTOGRAM), measure.name
        assert list(measure.buckets) == sorted(set(measure.buckets)), measure.name
        assert measure.help.endswith("."), measure.name
        if measure.name.startswith("lowdnn_"):
            assert measure.name.endswith("_total") == (measure.kind is Kind.COUNTER), measure.name
    assert measure_named("lowdnn_nothing") is None


def test_buckets_are_steps_of_1_2_and_5() -> None:
    bounds = measures.KERNEL_SECONDS.buckets
    assert bounds[:4] == (1e-6, 2e-6, 5e-6, 1e-5)
    assert bounds[-2:] == (5.0, 10.0)


def test_a_value_at_a_bound_is_in_the_bucket_below_it() -> None:
    cell = Registry().histogram(measures.SERVICE_BATCH_SIZE)
    for value in (1, 2, 2.5, 256, 257):
        cell.observe(value)
    assert cell.read().cumulative == (1, 2, 3, 3, 3, 3, 3, 3, 4, 5)


def test_values_are_read_by_measure_and_label() -> None:
    registry = Registry()
    registry.counter(measures.EXECUTES, "matmul", "gemm_dense").add(3)
    registry.counter(measures.EXECUTES, "matmul", "gemm_dense").add()
    registry.gauge(measures.BUFFER_BYTES).set(7)
    registry.gauge(measures.BUFFER_BYTES).add(-2)
    registry.histogram(measures.KERNEL_SECONDS, "matmul", "gemm_dense").observe(3e-6)
    found = {family.measure: family.samples for family in registry.collect()}
    assert [(sample.labels, sample.value) for sample in found[measures.EXECUTES]] == [(("matmul", "gemm_dense"), 4)]
    assert [sample.value for sample in found[measures.BUFFER_BYTES]] == [5]
    (histogram,) = (sample.value for sample in found[measures.KERNEL_SECONDS])
    assert isinstance(histogram, Histogram)
    assert histogram.counts[2] == histogram.count == 1
    assert histogram.total == 3e-6


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda registry: registry.gauge(measures.EXECUTES, "a", "b"), "expected a gauge, got a counter"),
        (lambda registry: registry.counter(measures.EXECUTES, "a"), "expected a value for each of operation, engine"),
        (lambda registry: registry.counter(measures.COMPILES, "a"), "expected a value for each of no labels"),
        (lambda registry: registry.counter(measures.COMPILES).add(-1), "expected 0 or more, got -1"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, rule: str) -> None:
    with pytest.raises(BadParamError, match=rule):
        call(Registry())  # type: ignore[operator]


def test_further_label_values_are_counted_together() -> None:
    registry = Registry()
    for number in range(MOST_SERIES + 50):
        registry.counter(measures.REFUSALS, f"status {number}").add()
    (family,) = registry.collect()
    assert len(family.samples) == MOST_SERIES + 1
    assert {sample.labels: sample.value for sample in family.samples}[(OTHER,)] == 50


def test_quantiles_lie_in_the_bucket_of_the_true_one() -> None:
    values = random.Random(seed := fresh_seed())
    registry = Registry()
    cell = registry.histogram(measures.KERNEL_SECONDS, "a", "b")
    drawn = sorted(10 ** values.uniform(-7, 1.5) for _ in range(1000))
    for value in drawn:
        cell.observe(value)
    found = cell.read()
    bounds = (0.0, *found.bounds)
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        true = drawn[math.ceil(share * len(drawn)) - 1]
        upper = next((bound for bound in bounds if true <= bound), bounds[-1])
        lower = max((bound for bound in bounds if bound < true), default=0.0)
        assert min(lower, bounds[-1]) <= found.quantile(share) <= upper, (share, seed)
    assert math.isnan(Histogram((1.0,), (0, 0), 0.0).quantile(0.5))
    assert Histogram((1.0, 2.0), (0, 4, 0), 6.0).quantile(0.5) == 1.5
    assert Histogram((1.0, 2.0), (0, 4, 0), 6.0).quantile(0) == 1.0


def test_threads_lose_no_count() -> None:
    registry = Registry()

    def work() -> None:
        for _ in range(2000):
            registry.counter(measures.COMPILES).add()
            registry.histogram(measures.EXECUTE_HOST_SECONDS, "matmul").observe(1e-6)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.counter(measures.COMPILES).read() == 8000
    assert registry.histogram(measures.EXECUTE_HOST_SECONDS, "matmul").read().count == 8000


def test_a_feed_that_fails_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()

    def broken() -> None:
        raise RuntimeError("no such device")

    def working() -> None:
        registry.gauge(measures.BUFFER_BYTES).set(1)

    registry.add_feed(broken)
    registry.add_feed(working)
    (family,) = registry.collect()
    assert family.samples[0].value == 1
    assert "telemetry_feed_failed" in caplog.text
    registry.remove_feed(broken)
    registry.remove_feed(broken)
    caplog.clear()
    registry.collect()
    assert not caplog.text


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_child_of_a_fork_begins_with_no_values() -> None:
    registry = Registry()
    registry.counter(measures.COMPILES).add(5)
    registry.gauge(measures.BUFFER_BYTES).set(5)
    registry.histogram(measures.EXECUTE_HOST_SECONDS, "matmul").observe(1.0)
    child = os.fork()
    if not child:
        values = [sample.value for family in registry.collect() for sample in family.samples]
        is_empty = all(value.count == 0 if isinstance(value, Histogram) else value == 0 for value in values)
        os._exit(0 if is_empty and len(values) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert registry.counter(measures.COMPILES).read() == 5
