"""Executes: counted for each operation and engine, and some of them timed on the host and on the device.

A plan that is watched is of the class ``WatchedPlan``; without telemetry no plan is, and ``LoadedPlan.execute`` runs as
it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from random import Random
from threading import RLock
from time import perf_counter
from typing import Final, cast
from weakref import WeakKeyDictionary

from lowdnn.forking import tell_after_fork
from lowdnn.runtime.context import Context
from lowdnn.runtime.execute_counts import ExecuteCount
from lowdnn.runtime.loaded_plan import LoadedPlan, Pointers
from lowdnn.telemetry import measures
from lowdnn.telemetry.device_clock import DeviceClock, Observe
from lowdnn.telemetry.registry import Registry

#: Draws of a sampler before they repeat; a prime number, so that no loop of a program keeps step with them.
_DRAWS: Final = 10_007

#: Opens a span around an execute of a plan, and gives what gets the device's seconds for it later.
Spans = Callable[[LoadedPlan], AbstractContextManager[Observe]]


def sampler(share: float) -> Callable[[], bool]:
    """Says at each call whether to sample: ``share`` of the calls, 0 to 1, at random places. Costs some 30 ns.

    Safe to share between threads.
    """
    chosen = round(share * _DRAWS) or (1 if share else 0)
    draws = [True] * chosen + [False] * (_DRAWS - chosen)
    Random().shuffle(draws)
    return cycle(draws).__next__


@dataclass(frozen=True)
class Sampling:
    """is_sampled: says at each call whether to sample (``sampler``).  spans: opens spans around sampled executes."""

    is_sampled: Callable[[], bool]
    spans: Spans | None = None


class ExecuteWatch:
    """The measures of the executes of one operation by one engine.

    is_sampled: whether the next execute is timed.  tick: counts one execute, whatever it is given.
    spans: opens a span around a sampled execute, or None.
    """

    def __init__(self, registry: Registry, operation: str, engine: str, sampling: Sampling) -> None:
        self.is_sampled = sampling.is_sampled
        self.spans = sampling.spans
        self._count = ExecuteCount()
        self.tick = self._count.tick
        self.observe_host = registry.histogram(measures.EXECUTE_HOST_SECONDS, operation).observe
        self.observe_device = registry.histogram(measures.KERNEL_SECONDS, operation, engine).observe
        self._counter = registry.counter(measures.EXECUTES, operation, engine)

    def settle(self) -> None:
        """Adds the executes so far to the registry's counter."""
        self._counter.add(self._count.take())


class WatchedPlan(LoadedPlan):
    """A loaded plan whose executes are counted, and timed now and then. ``PlanWatcher`` makes it of a ``LoadedPlan``,
    and that of it again."""

    watched_by: ExecuteWatch
    clock: DeviceClock

    def execute(self, pointers: Pointers, workspace: int = 0, stream: int = 0) -> None:
        watch = self.watched_by
        if watch.is_sampled():
            self._execute_timed(watch, pointers, workspace, stream)
        else:
            LoadedPlan.execute(self, pointers, workspace, stream)
        watch.tick(stream)

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
                with watch.spans(self) as observe_span:
                    LoadedPlan.execute(self, pointers, workspace, stream)
                pair.observe = _both(watch.observe_device, observe_span)
        except BaseException:
            clock.drop(pair)
            raise
        elapsed = perf_counter() - start
        clock.end(pair, stream)
        watch.observe_host(elapsed)


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
        for clock in list(self._clocks.values()):
            clock.close()


def _become(loaded: LoadedPlan, kind: type[LoadedPlan]) -> None:
    """Executes under way go on as they began."""
    loaded.__class__ = kind


def _both(first: Observe, second: Observe) -> Observe:
    def observe(seconds: float) -> None:
        first(seconds)
        second(seconds)

    return observe
