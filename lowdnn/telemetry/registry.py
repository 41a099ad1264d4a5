"""The registry: the values of measures in this process, by label, and what is asked when they are read.

A program counts into ``REGISTRY``, or into a registry of its own:

    REGISTRY.counter(measures.SERVICE_REQUESTS, "200").add()
    REGISTRY.histogram(measures.SERVICE_REQUEST_SECONDS).observe(0.012)
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Final, TypeVar

from lowdnn.events import emit, event_logger
from lowdnn.forking import tell_after_fork
from lowdnn.status import BadParamError
from lowdnn.telemetry.measures import Kind, Measure
from lowdnn.telemetry.samples import Family, Histogram, Sample

#: Label values of one measure; further ones are counted together, so that no program fills the memory of its monitor.
MOST_SERIES: Final = 1000
#: The label value that stands for all further ones.
OTHER: Final = "other"

#: Gets a histogram, the values of its labels, and one value.
Listener = Callable[[Measure, tuple[str, ...], float], None]
CellT = TypeVar("CellT", bound="Counter | Gauge | Distribution")


class Counter:
    """A number that only grows. Safe to share between threads, and with finalizers that run in the midst of a call."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._value = 0.0

    def add(self, amount: float = 1) -> None:
        """Adds ``amount``; raises BadParamError for a negative one."""
        if amount < 0:
            raise BadParamError.at("telemetry.Counter.add.amount", expected="0 or more", got=amount)
        with self._lock:
            self._value += amount

    def read(self) -> float:
        with self._lock:
            return self._value

    def after_fork(self) -> None:
        self._lock, self._value = RLock(), 0.0


class Gauge:
    """A number that goes up and down. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._value = 0.0

    def set(self, value: float) -> None:
        with self._lock:
            self._value = float(value)

    def add(self, amount: float = 1) -> None:
        with self._lock:
            self._value += amount

    def read(self) -> float:
        with self._lock:
            return self._value

    def after_fork(self) -> None:
        self._lock, self._value = RLock(), 0.0


class Distribution:
    """Values counted in the buckets of a histogram. Safe to share between threads.

    tell: gets each value, too.
    """

    def __init__(self, bounds: tuple[float, ...], tell: Callable[[float], None]) -> None:
        self._lock = RLock()
        self._bounds = bounds
        self._tell = tell
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Counts ``value``, which is in the measure's unit."""
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._total += value
        self._tell(value)

    def read(self) -> Histogram:
        with self._lock:
            return Histogram(self._bounds, tuple(self._counts), self._total)

    def after_fork(self) -> None:
        self._lock, self._total = RLock(), 0.0
        self._counts = [0] * (len(self._bounds) + 1)


class Registry:
    """The values of measures, by label. Safe to share between threads.

    The child of a fork begins without values and feeds.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._cells: dict[Measure, dict[tuple[str, ...], Counter | Gauge | Distribution]] = {}
        self._feeds: list[Callable[[], None]] = []
        self._listeners: tuple[Listener, ...] = ()
        self._logger = event_logger("telemetry")
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._lock, self._feeds, self._listeners = RLock(), [], ()
        for cells in self._cells.values():
            for cell in cells.values():
                cell.after_fork()

    def counter(self, measure: Measure, *labels: str) -> Counter:
        """The counter of these label values, one for each label of the measure; the same object at every call.

        Raises BadParamError for a measure of another kind, and for another number of labels; so do the next two.
        """
        return self._cell(measure, Kind.COUNTER, labels, Counter)

    def gauge(self, measure: Measure, *labels: str) -> Gauge:
        """The gauge of these label values."""
        return self._cell(measure, Kind.GAUGE, labels, Gauge)

    def histogram(self, measure: Measure, *labels: str) -> Distribution:
        """The histogram of these label values."""
        tell = partial(self._tell, measure, labels)
        return self._cell(measure, Kind.HISTOGRAM, labels, lambda: Distribution(measure.buckets, tell))

    def add_feed(self, feed: Callable[[], None]) -> None:
        """Calls ``feed`` before each ``collect``, to bring gauges and counters up to date. Its errors are logged."""
        with self._lock:
            self._feeds.append(feed)

    def remove_feed(self, feed: Callable[[], None]) -> None:
        """Undoes ``add_feed``; does nothing where it was undone before."""
        with self._lock:
            self._feeds = [other for other in self._feeds if other != feed]

    def listen(self, listener: Listener) -> None:
        """Calls ``listener`` with each value of a histogram. Its errors are logged."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

    def stop_listening(self, listener: Listener) -> None:
        """Undoes ``listen``; does nothing where it was undone before."""
        with self._lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    def collect(self) -> tuple[Family, ...]:
        """All values now, behind one call of each feed, by measure in the order of their names."""
        with self._lock:
            feeds = tuple(self._feeds)
        for feed in feeds:
            try:
                feed()
            except Exception as error:
                emit(self._logger, logging.WARNING, "telemetry_feed_failed", {"reason": error})
        with self._lock:
            cells = {measure: sorted(found.items()) for measure, found in self._cells.items()}
        return tuple(
            Family(measure, tuple(Sample(labels, cell.read()) for labels, cell in found))
            for measure, found in sorted(cells.items(), key=lambda item: item[0].name)
        )

    def clear(self) -> None:
        """Forgets all values and feeds. Cells that someone holds count on, and are not read any more."""
        with self._lock:
            self._cells.clear()
            self._feeds.clear()
            self._listeners = ()

    def _tell(self, measure: Measure, labels: tuple[str, ...], value: float) -> None:
        for listener in self._listeners:
            try:
                listener(measure, labels, value)
            except Exception as error:
                emit(self._logger, logging.WARNING, "telemetry_listener_failed", {"reason": error})

    def _cell(self, measure: Measure, kind: Kind, labels: tuple[str, ...], make: Callable[[], CellT]) -> CellT:
        if measure.kind is not kind:
            raise BadParamError.at(f"telemetry.{measure.name}", expected=f"a {kind}", got=f"a {measure.kind}")
        if len(labels) != len(measure.labels):
            expected = f"a value for each of {', '.join(measure.labels) or 'no labels'}"
            raise BadParamError.at(f"telemetry.{measure.name}.labels", expected=expected, got=labels)
        with self._lock:
            cells = self._cells.setdefault(measure, {})
            if labels not in cells and len(cells) >= MOST_SERIES:
                labels = (OTHER,) * len(labels)
            return cells.setdefault(labels, make())  # type: ignore[return-value]


#: The registry of this process, which ``telemetry.reset`` empties.
REGISTRY: Final = Registry()
