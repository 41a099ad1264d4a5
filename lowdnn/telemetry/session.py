"""Telemetry on and off: what ``enable`` begins, ``disable`` ends, and a child of ``fork`` does not inherit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Final, Self

from lowdnn.forking import tell_after_fork
from lowdnn.observer import observe, subjects
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.status import BadParamError, NotInitializedError
from lowdnn.telemetry.executes import PlanWatcher, Sampling, Spans
from lowdnn.telemetry.exporting import Exporter, ExportThread
from lowdnn.telemetry.gauges import TorchFallbacks, read_gauges
from lowdnn.telemetry.measures import MEASURES, Area, Kind
from lowdnn.telemetry.observation import Observation
from lowdnn.telemetry.registry import REGISTRY, Registry

#: Brings some measures of a registry up to date.
Feed = Callable[[Registry], None]


@dataclass(frozen=True)
class Options:
    """The arguments of ``enable``; see there."""

    sample: float
    exporters: tuple[Exporter, ...]
    feeds: tuple[Feed, ...]
    spans: Spans | None
    interval_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.sample <= 1:
            raise BadParamError.at("telemetry.enable.sample", expected="0 to 1", got=self.sample)
        if not 0 < self.interval_s < 1e6:
            raise BadParamError.at("telemetry.enable.interval_s", expected="more than 0", got=self.interval_s)


class Enabled(ProcessBound):
    """Telemetry as ``enable`` began it: also a context manager, which ends it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def disable(self) -> None:
        """Ends this telemetry; does nothing where it has ended."""
        self._session.end(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disable()


class Session:
    """Telemetry of this process: off, or on for one ``Enabled``."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = RLock()
        self._enabled: Enabled | None = None
        self._watcher: PlanWatcher | None = None
        self._thread: ExportThread | None = None
        self._feeds: list[Callable[[], None]] = []
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Turns telemetry off in the child, where neither the thread nor the plans of the parent live on."""
        self._lock = RLock()
        thread, self._thread = self._thread, None
        self._enabled = self._watcher = None
        self._feeds = []
        if thread is not None:
            thread.after_fork()

    @property
    def is_on(self) -> bool:
        return self._enabled is not None

    def begin(self, options: Options) -> Enabled:
        """Turns telemetry on. Raises BadParamError where it is on, and what the exporters raise, with all off then."""
        with self._lock:
            if self._enabled is not None:
                hint = "call telemetry.disable() first"
                raise BadParamError.at("telemetry.enable", expected="telemetry that is off", got="on", hint=hint)
            watcher = PlanWatcher(self._registry, Sampling(options.sample, options.spans))
            feeds: tuple[Feed, ...] = (read_gauges, TorchFallbacks().read, *options.feeds)
            self._feeds = [watcher.settle, *(partial(feed, self._registry) for feed in feeds)]
            for feed in self._feeds:
                self._registry.add_feed(feed)
            thread = ExportThread(self._registry, options.exporters, options.interval_s)
            try:
                thread.start()
            except BaseException:
                self._remove_feeds()
                raise
            self._thread, self._watcher, self._enabled = thread, watcher, Enabled(self)
            self._begin_at_zero()
            observe(Observation(self._registry, watcher))
            for loaded in subjects(LoadedPlan):
                watcher.watch(loaded)
            return self._enabled

    def end(self, enabled: Enabled | None = None) -> None:
        """Turns off what ``enabled`` stands for, where it is on; by default whatever is on.

        Raises NotInitializedError where nothing is on and ``enabled`` is left out. Values stay in the registry.
        """
        with self._lock:
            if self._enabled is None and enabled is None:
                raise NotInitializedError.at("telemetry.disable", expected="telemetry that is on", got="off")
            if self._enabled is None or enabled not in (None, self._enabled):
                return
            watcher, thread = self._watcher, self._thread
            self._enabled = self._watcher = self._thread = None
            observe(None)
            if watcher is not None:
                watcher.stop(subjects(LoadedPlan))
            if thread is not None:
                thread.stop()
            self._remove_feeds()

    def _begin_at_zero(self) -> None:
        for measure in MEASURES:
            if measure.area is Area.LIBRARY and measure.kind is Kind.COUNTER:
                for labels in measure.known_labels:
                    self._registry.counter(measure, *labels)

    def _remove_feeds(self) -> None:
        for feed in self._feeds:
            self._registry.remove_feed(feed)
        self._feeds = []


#: The session of this process.
SESSION: Final = Session(REGISTRY)
