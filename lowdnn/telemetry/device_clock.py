"""Device time of launches by pairs of events, which are recorded now and read when somebody asks."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

from lowdnn.driver.base import CaptureMode, Driver, DriverError
from lowdnn.runtime.context import Activated, Context, Liveness

#: Pairs of events of a context. With all of them waiting to be read, the oldest one gives way to a new one.
MOST_PAIRS: Final = 256

#: Takes the seconds between the events of a pair.
Observe = Callable[[float], None]


@dataclass(slots=True)
class Pair:
    """Two events of one context, before and behind some launches.

    observe: gets the time between them, and then observe_host the seconds that the host took for the launches.
    """

    start: int
    end: int
    observe: Observe | None = None
    host_seconds: float = 0.0
    observe_host: Observe | None = None


@dataclass(frozen=True)
class _Home:
    """The parts of a context that a clock needs, which do not keep it alive."""

    driver: Driver
    context: int
    liveness: Liveness

    def activated(self) -> Activated:
        return Activated(self.driver, self.context)


class DeviceClock:
    """The pairs of one context. Safe to share between threads; a pair is in the hands of one of them at a time.

    A stream that is being captured gets no event. The events go with the context.
    """

    def __init__(self, context: Context) -> None:
        self._home = _Home(context.driver, context.handle, context.liveness)
        self._pairs = _Pairs(self._home)
        #: Runs once: at ``close``, when the context is closed, or when it is collected, before it is released.
        self.close = weakref.finalize(context, self._pairs.close)
        self.close.atexit = False
        context.before_close(self.close)

    def begin(self, stream: int) -> Pair | None:
        """A pair whose first event is in ``stream``; None in a capture, and where the driver refuses."""
        driver = self._home.driver
        pair = None
        try:
            if driver.stream_is_capturing(stream):
                return None
            pair = self._pairs.take()
            if pair is not None:
                driver.event_record(pair.start, stream)
            return pair
        except DriverError:
            if pair is not None:
                self._pairs.give_back(pair)
            return None

    def end(self, pair: Pair, stream: int) -> None:
        """Puts the second event into ``stream``; ``read`` hands the time to the pair's ``observe``."""
        try:
            self._home.driver.event_record(pair.end, stream)
        except DriverError:
            self._pairs.give_back(pair)
        else:
            self._pairs.wait(pair)

    def drop(self, pair: Pair) -> None:
        """Takes back a pair behind which no launch came."""
        self._pairs.give_back(pair)

    def read(self) -> None:
        """Hands over the times of all launches that are over by now; waits for none, in whatever thread."""
        if self._home.liveness.is_usable:
            self._pairs.read()


class _Pairs:
    """The pairs of a clock: free ones, and those that wait to be read. The others are between ``take`` and their
    return.

    There is no lock, since a finalizer may close the clock in the midst of any of its calls: the ends of a deque are
    taken and given whole, and whoever returns a pair to a closed clock destroys what is there.
    """

    def __init__(self, home: _Home) -> None:
        self._home = home
        self._free: deque[Pair] = deque()
        self._waiting: deque[Pair] = deque()
        self._numbers = count()
        self._is_open = True

    def take(self) -> Pair | None:
        """A pair; the one that has waited for the longest time where there are no more; None from a closed clock."""
        if not self._is_open:
            return None
        try:
            return self._free.pop()
        except IndexError:
            pass
        if next(self._numbers) < MOST_PAIRS:
            driver = self._home.driver
            with self._home.activated():
                return Pair(driver.event_create(), driver.event_create())
        with suppress(IndexError):
            return self._waiting.popleft()
        return None

    def give_back(self, pair: Pair) -> None:
        self._free.append(pair)
        if not self._is_open:
            self._destroy()

    def wait(self, pair: Pair) -> None:
        self._waiting.append(pair)
        if not self._is_open:
            self._destroy()

    def read(self) -> None:
        """Hands over what is done by now."""
        try:
            with self._home.activated(), _relaxed(self._home.driver), suppress(IndexError):
                for _ in range(len(self._waiting)):
                    self._read(self._waiting.popleft())
        except DriverError:
            pass  # after a fault of a kernel every call fails; the events are destroyed with the clock

    def _read(self, pair: Pair) -> None:
        driver = self._home.driver
        try:
            if not driver.event_query(pair.end):
                self.wait(pair)
                return
            seconds = driver.event_elapsed_ms(pair.start, pair.end) * 1e-3
        except DriverError:
            self.give_back(pair)
            return
        observe, pair.observe = pair.observe, None
        observe_host, pair.observe_host = pair.observe_host, None
        host_seconds = pair.host_seconds
        self.give_back(pair)
        if observe is not None:
            observe(seconds)
        if observe_host is not None:
            observe_host(host_seconds)

    def close(self) -> None:
        """Hands over what is done, and destroys every event that no thread has in its hands."""
        if self._home.liveness.is_held:  # otherwise the context is gone, and the events with it
            self.read()
            self._is_open = False
            self._destroy()

    def _destroy(self) -> None:
        for pairs in (self._free, self._waiting):
            with suppress(IndexError):
                while True:
                    self._destroy_pair(pairs.pop())

    def _destroy_pair(self, pair: Pair) -> None:
        for event in (pair.start, pair.end):
            with suppress(DriverError), self._home.activated():
                self._home.driver.event_destroy(event)


@contextmanager
def _relaxed(driver: Driver) -> Iterator[None]:
    """A block whose calls break no capture of another thread, as asking an event would by default."""
    mode = driver.thread_exchange_capture_mode(CaptureMode.RELAXED)
    try:
        yield
    finally:
        driver.thread_exchange_capture_mode(mode)
