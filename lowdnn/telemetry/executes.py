"""Executes: counted for each operation and engine, and some of them timed on the host and on the device.

A plan that is watched is of the class ``WatchedPlan``; without telemetry no plan is, and ``LoadedPlan.execute`` runs as
it stands.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from math import log1p
from random import Random
from threading import RLock
from time import perf_counter
from typing import Any, cast
from weakref import WeakKeyDictionary

from lowdnn.events import emit, event_logger
from lowdnn.forking import tell_after_fork
from lowdnn.runtime.context import Context
from lowdnn.runtime.execute_counts import ExecuteCount
from lowdnn.runtime.loaded_plan import LoadedPlan, Pointers
from lowdnn.telemetry import measures
from lowdnn.telemetry.device_clock import DeviceClock, Observe
from lowdnn.telemetry.registry import Registry

#: Opens a span around an execute of a plan, and gives what gets the device's seconds for it later.
Spans = Callable[[LoadedPlan], AbstractContextManager[Observe]]


def gaps(share: float) -> Callable[[], int]:
    """Draws how many executes on the next timed one comes, so that each is timed with probability ``share``, 0 to 1."""
    if share <= 0:
        return lambda: sys.maxsize
    if share >= 1:
        return lambda: 1
    draw, rate = Random().expovariate, -log1p(-share)
    return lambda: 1 + int(draw(rate))


@dataclass(frozen=True)
class Sampling:
    """share: how many executes are timed, 0 to 1.  spans: opens spans around these."""

    share: float
    spans: Spans | None = None


class ExecuteWatch:
    """The measures of the executes of one operation by one engine.

    begin: counts an execute and returns its number, whatever it is given.  fail: takes it back.
    next_timed: the number of the next execute that is timed.  gap: draws how far behind it the one after it is.
    spans: opens a span around a timed execute, or None.
    """

    def __init__(self, registry: Registry, operation: str, engine: str, sampling: Sampling) -> None:
        self._begun, self._failed = ExecuteCount(), ExecuteCount()
        self.begin, self.fail = self._begun.tick, self._failed.tick
        self.gap = gaps(sampling.share)
        self.next_timed = self.gap() - 1
        self.spans = sampling.spans
        self.observe_host = registry.histogram(measures.EXECUTE_HOST_SECONDS, operation).observe
        self.observe_device = registry.histogram(measures.KERNEL_SECONDS, operation, engine).observe
        self._counter = registry.counter(measures.EXECUTES, operation, engine)
        self._owed = 0

    def settle(self) -> None:
        """Adds the executes so far, without those that have failed, to the registry's counter."""
        executes = self._begun.take() - self._failed.take() - self._owed
        # An execute may fail behind the last look at those that have begun.
        self._counter.add(max(executes, 0))
        self._owed = max(-executes, 0)


class WatchedPlan(LoadedPlan):
    """A loaded plan whose executes are counted, and timed now and then. ``PlanWatcher`` makes it of a ``LoadedPlan``,
    and that of it again.

    ``LoadedPlan.surround`` would not do: host time and failures include the checks of arguments before the launches,
    and an execute that is not timed must have no step more.
    """

    watched_by: ExecuteWatch
    clock: DeviceClock

    def execute(self, pointers: Pointers, workspace: int = 0, stream: int = 0) -> None:
        watch = self.watched_by
        try:
            number = watch.begin(stream)
            if number < watch.next_timed:
                LoadedPlan.execute(self, pointers, workspace, stream)
            else:
                watch.next_timed = number + watch.gap()
                self._execute_timed(watch, pointers, workspace, stream)
        except BaseException:
            watch.fail(stream)
            raise

    def _execute_timed(self, watch: ExecuteWatch, pointers: Pointers, workspace: int, stream: int) -> None:
        """The execute between two events, unless the stream is being captured."""
        clock = self.clock
        pair = clock.begin(stream) if self.context.liveness.is_usable else None
        if pair is None:
            LoadedPlan.execute(self, pointers, workspace, stream)
            return
        start = perf_counter()
        try:
            if watch.spans is None:
                LoadedPlan.execute(self, pointers, workspace, stream)
                pair.observe = watch.observe_device
            else:
                with _span(watch.spans, self) as observe_span:
                    LoadedPlan.execute(self, pointers, workspace, stream)
                pair.observe = _both(watch.observe_device, observe_span)
        except BaseException:
            clock.drop(pair)
            raise
        pair.host_seconds, pair.observe_host = perf_counter() - start, watch.observe_host
        clock.end(pair, stream)


class PlanWatcher:
    """Watches loaded plans, with one watch for each operation and engine, and one clock for each context."""

    def __init__(self, registry: Registry, sampling: Sampling) -> None:
        self._registry = registry
        self._sampling = sampling
        self._lock = RLock()
        self._watches: dict[tuple[str, str], ExecuteWatch] = {}
        self._clocks: WeakKeyDictionary[Context, DeviceClock] = WeakKeyDictionary()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """The child begins with no executes; it runs no plan of its parent."""
        self._lock = RLock()
        self._watches = {}
        self._clocks = WeakKeyDictionary()

    def watch(self, loaded: LoadedPlan) -> None:
        """Counts and samples the executes of ``loaded`` from now on; does nothing where it does so already."""
        with self._lock:
            if type(loaded) is not LoadedPlan or not loaded.context.liveness.is_usable:
                return
            key = loaded.operation, loaded.plan.engine
            if key not in self._watches:
                self._watches[key] = ExecuteWatch(self._registry, *key, self._sampling)
            if loaded.context not in self._clocks:
                self._clocks[loaded.context] = DeviceClock(loaded.context)
            watched = cast(WatchedPlan, loaded)
            watched.watched_by = self._watches[key]
            watched.clock = self._clocks[loaded.context]
            _become(loaded, WatchedPlan)

    def settle(self) -> None:
        """Brings the registry up to date: the counts so far, and the times of what is over by now."""
        with self._lock:
            clocks, watches = list(self._clocks.values()), list(self._watches.values())
        for clock in clocks:
            clock.read()
        for watch in watches:
            watch.settle()

    def stop(self, plans: Iterable[LoadedPlan]) -> None:
        """Leaves ``plans`` alone from now on, and gives the events back. Executes under way in other threads end."""
        with self._lock:
            for loaded in plans:
                if type(loaded) is WatchedPlan:
                    _become(loaded, LoadedPlan)
        self.settle()
        for context, clock in list(self._clocks.items()):
            clock.close()
            context.not_before_close(clock.close)


def _become(loaded: LoadedPlan, kind: type[LoadedPlan]) -> None:
    """Executes under way go on as they began."""
    loaded.__class__ = kind


@contextmanager
def _span(spans: Spans, loaded: LoadedPlan) -> Iterator[Observe]:
    """A span of ``spans``, whose own errors reach no execute."""
    with ExitStack() as stack:
        try:
            span = spans(loaded)
            observe = span.__enter__()
        except Exception as error:
            _span_failed(error)
            yield _unobserved
            return
        stack.push(_guarded(span))
        yield observe


def _guarded(span: AbstractContextManager[Observe]) -> Callable[..., None]:
    """The end of a span."""

    def end(*raised: Any) -> None:
        try:
            span.__exit__(*raised)
        except Exception as error:
            if error is not raised[1]:
                _span_failed(error)

    return end


def _both(first: Observe, second: Observe) -> Observe:
    def observe(seconds: float) -> None:
        first(seconds)
        try:
            second(seconds)
        except Exception as error:
            _span_failed(error)

    return observe


def _unobserved(seconds: float) -> None:
    pass


def _span_failed(error: Exception) -> None:
    emit(event_logger("telemetry"), logging.WARNING, "span_failed", {"reason": repr(error)})
