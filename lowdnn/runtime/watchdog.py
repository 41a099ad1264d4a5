"""The watchdog: names an execute that does not end within a limit. The process, its streams and the execute go on.

It stands here, below whatever exports measures, because it needs what an execute owns: the context, events, launches.

An execute that is watched records an event in its stream before its first launch and one behind each launch. A thread
looks at them, in each stream at the oldest execute that has not ended. Its limit counts from when the first event is
seen to have happened: so long as it has not, the stream is busy with other work, or waits for it, and nothing is said.
The event that comes next tells which launch does not end. The watchdog cannot know whether the device gives the kernel
any time: where other streams or processes hold it, that looks like a hang, and ``hang_over`` tells its end.

Three things are told apart, once each: a hang; a fault that a kernel left in the context, for which a process needs a
new handle; and a device that is lost, reset by somebody or out of order. Executes in a capture are not watched, nor are
launches of CUDA graphs.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from lowdnn.driver.base import Driver, DriverError, EventFlags
from lowdnn.driver.results import DEVICE_LOSSES, KERNEL_FAULTS
from lowdnn.events import Counters, emit, event_logger
from lowdnn.forking import tell_after_fork
from lowdnn.plan import Launch, Plan
from lowdnn.runtime.context import Context
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.observing import Surroundings

#: Executes of one stream that are watched at a time. A GPU's queue holds fewer launches, so the oldest has ended then.
_MOST_MARKS: Final = 4096
#: Looks within the limit, and the bounds of the seconds between two of them.
_LOOKS: Final = 8
_LEAST_S, _MOST_S = 0.01, 0.25
#: Seconds to wait for an emulated kernel to tell its places, and for the thread to end.
_ANSWER_S: Final = 2.0
_JOIN_S: Final = 5.0
_MOST_FINDINGS: Final = 64
#: The per-thread default stream has one number in all threads.
_PER_THREAD: Final = 2


class Trouble(StrEnum):
    """The kinds of trouble; the name of the event."""

    HANG = "hang"
    FAULT = "device_fault"
    LOST = "device_lost"


@dataclass(frozen=True)
class Finding:
    """An event of the watchdog, by its fields.

    launch: the number of the launch in its plan, from 1; with a fault or a lost device, that of the oldest execute that
    had not ended.  seconds: since the execute was seen to run.  command: the ``lowdnn run`` line that repeats it.
    places: where the blocks were, a line each, on the emulated device.  reason: the driver's error, or "".
    """

    trouble: Trouble
    device: int
    plan: str = ""
    kernel: str = ""
    launch: int = 0
    launches: int = 0
    grid: str = ""
    block: str = ""
    stream: int = 0
    seconds: float = 0.0
    command: str = ""
    places: str = ""
    reason: str = ""

    def fields(self) -> dict[str, object]:
        """The fields of the event."""
        own = {
            "plan": self.plan,
            "kernel": self.kernel,
            "launch": f"{self.launch} of {self.launches}",
            "grid": self.grid,
            "block": self.block,
            "stream": f"{self.stream:#x}",
            "seconds": round(self.seconds, 3),
            "repeat": self.command,
        }
        more = {name: text for name, text in (("places", self.places), ("reason", self.reason)) if text}
        return {"device": self.device, **(own if self.plan else {}), **more}


@dataclass(eq=False, slots=True)
class _Mark:
    """An execute of ``watched`` in a stream.

    events: one before the first launch, one behind each.  recorded: how many of them are in the stream.  is_left:
    whether the host has left the execute.  started_s: when it was first seen to run.
    """

    watched: _Watched
    stream: int
    events: list[int]
    recorded: int = 1
    is_left: bool = False
    started_s: float | None = None
    is_told: bool = False


@dataclass(eq=False)
class _Lane:
    """The executes of a stream in their order. ``lock`` guards changes of ``marks``."""

    marks: deque[_Mark] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Watchdog:
    """Watches the executes of one context. Close it.

    findings: the last events that it has told. Counts ``hangs``.
    """

    def __init__(self, context: Context, counters: Counters, limit_s: float) -> None:
        self.context = context
        self.limit_s = limit_s
        self.findings: deque[Finding] = deque(maxlen=_MOST_FINDINGS)
        self._counters = counters
        self._logger = event_logger("watchdog")
        self._lanes: dict[tuple[int, int], _Lane] = {}
        self._free: list[int] = []
        self._raised: deque[_Mark] = deque()
        self._is_watching = True
        self._has_closed = threading.Event()
        self._thread: threading.Thread | None = None
        tell_after_fork(self)

    def after_fork(self) -> None:
        self._is_watching, self._thread = False, None
        self._has_closed = threading.Event()

    def watch(self, loaded: LoadedPlan) -> None:
        """Watches all executes of a plan from now on."""
        watched = _Watched(self, loaded)
        loaded.surround(Surroundings(watched.before, watched.launched, watched.failed))
        if self._thread is None and self._is_watching:
            arguments = weakref.ref(self), self._has_closed, min(max(self.limit_s / _LOOKS, _LEAST_S), _MOST_S)
            self._thread = threading.Thread(target=_look_on, args=arguments, name="lowdnn watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread and gives the events back; closing twice does nothing."""
        self._is_watching = False
        self._has_closed.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
        marks = [*self._raised, *(mark for lane in self._lanes.values() for mark in lane.marks)]
        self._raised.clear()
        self._lanes.clear()
        events = [*self._free, *(event for mark in marks for event in mark.events)]
        self._free.clear()
        for event in events:
            self.context.give_back("event of the watchdog", partial(self.context.driver.event_destroy, event))

    # -- in the thread that executes --------------------------------------------------------------------------------
    def enter(self, watched: _Watched, stream: int, count: int) -> _Mark | None:
        """A mark with ``count`` events, the first of which is recorded; None where the execute is not watched."""
        driver = self.context.driver
        if not self._is_watching:
            return None
        key = stream, threading.get_ident() if stream == _PER_THREAD else 0
        lane = self._lanes.get(key) or self._lanes.setdefault(key, _Lane())
        events: list[int] = []
        try:
            if driver.stream_is_capturing(stream):
                return None
            with lane.lock:
                if len(lane.marks) >= _MOST_MARKS:
                    self._free.extend(lane.marks.popleft().events)
            events = self._events(driver, count)
            driver.event_record(events[0], stream)
        except DriverError:  # the launch that follows meets the same, and raises it
            self._free.extend(events)
            return None
        mark = _Mark(watched, stream, events)
        with lane.lock:
            lane.marks.append(mark)
        return mark

    def _events(self, driver: Driver, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            try:
                found.append(self._free.pop())
            except IndexError:
                found.append(driver.event_create(EventFlags.DISABLE_TIMING))
        return found

    def abandon(self, mark: _Mark) -> None:
        """Forgets an execute that has raised, after one look at what has become of the context."""
        for lane in tuple(self._lanes.values()):
            with lane.lock, suppress(ValueError):
                lane.marks.remove(mark)
                self._raised.append(mark)

    # -- in the thread that looks -----------------------------------------------------------------------------------
    def look(self) -> None:
        """Looks at the executes of all streams, and tells what is wrong with them."""
        while self._raised:
            mark = self._raised.popleft()
            self._look_safely(partial(self._has_happened, mark.events[0]), mark)
            self._free.extend(mark.events)
        for lane in tuple(self._lanes.values()):
            self._look_safely(partial(self._look_at, lane), None)

    def _look_safely(self, look: Callable[[], object], mark: _Mark | None) -> None:
        """``look``, where the context is open; ``mark`` is the execute that its failure is about, if any."""
        try:
            if self._is_watching:
                look()
        except DriverError as error:
            if self._is_watching:  # the context may have been closed meanwhile
                self._tell_of_device(error, mark or next(self._oldest(), None))

    def _look_at(self, lane: _Lane) -> None:
        with lane.lock:
            marks = tuple(lane.marks)
        ended = self._ended(marks)
        with lane.lock:
            for mark in marks[:ended]:
                if lane.marks and lane.marks[0] is mark:  # the executing thread may have taken it
                    lane.marks.popleft()
                    self._free.extend(mark.events)
        for mark in marks[:ended]:
            if mark.is_told:
                fields = {"plan": mark.watched.plan.name, "stream": f"{mark.stream:#x}", "seconds": _since(mark)}
                emit(self._logger, logging.WARNING, "hang_over", fields)
        if ended < len(marks):
            self._look_at_oldest(marks[ended])

    def _ended(self, marks: tuple[_Mark, ...]) -> int:
        """How many executes have ended: those of a stream end in their order."""
        least, most = 0, len(marks)
        while least < most:
            middle = (least + most) // 2
            mark = marks[middle]
            if mark.is_left and self._has_happened(mark.events[-1]):
                least = middle + 1
            else:
                most = middle
        return least

    def _look_at_oldest(self, mark: _Mark) -> None:
        passed = 0
        while passed < mark.recorded and self._has_happened(mark.events[passed]):
            passed += 1
        if passed == 0:
            mark.started_s = None
        elif mark.started_s is None:
            mark.started_s = time.monotonic()
        elif _since(mark) >= self.limit_s and not mark.is_told:
            mark.is_told = True
            places = self.context.driver.block_places(self.context.handle, _ANSWER_S)
            self._counters.add("hangs")
            self._tell(_finding(Trouble.HANG, self.context.device, mark, passed - 1, places=places))

    def _has_happened(self, event: int) -> bool:
        return self.context.driver.event_peek(event, self.context.handle)

    def _tell_of_device(self, error: DriverError, oldest: _Mark | None) -> None:
        """Tells of a context of which nothing that is asked succeeds any more."""
        if error.result in KERNEL_FAULTS:
            trouble = Trouble.FAULT
        elif error.result in DEVICE_LOSSES:
            trouble = Trouble.LOST
        else:  # the context may be whole
            emit(self._logger, logging.WARNING, "look_failed", {"reason": error})
            return
        self._is_watching = False
        reason = str(error)
        if oldest is None:
            self._tell(Finding(trouble, self.context.device, reason=reason))
        else:
            place = max(0, oldest.recorded - (2 if oldest.is_left else 1))
            self._tell(_finding(trouble, self.context.device, oldest, place, reason=reason))

    def _oldest(self) -> Iterator[_Mark]:
        for lane in tuple(self._lanes.values()):
            with lane.lock:
                marks = tuple(lane.marks)
            yield from marks[:1]

    def _tell(self, finding: Finding) -> None:
        self.findings.append(finding)
        emit(self._logger, logging.ERROR, finding.trouble.value, finding.fields())


class _Watched:
    """The steps around the launches of one plan, which executes one at a time."""

    def __init__(self, watchdog: Watchdog, loaded: LoadedPlan) -> None:
        self._watchdog = watchdog
        self.plan = loaded.plan
        self._loaded = weakref.ref(loaded)
        self._count = len(loaded.plan.launches) + 1
        self._record = loaded.context.driver.event_record
        self._mark: _Mark | None = None

    def command(self) -> str:
        """The ``lowdnn run`` line of the plan; "" once the loaded plan is gone."""
        loaded = self._loaded()
        return "" if loaded is None else loaded.command()

    def before(self, stream: int) -> None:
        self._mark = self._watchdog.enter(self, stream, self._count)

    def launched(self, stream: int) -> None:
        mark = self._mark
        if mark is None:
            return
        try:
            self._record(mark.events[mark.recorded], stream)
        except DriverError:
            self.failed(stream)
            return
        mark.recorded += 1
        if mark.recorded == self._count:
            mark.is_left, self._mark = True, None

    def failed(self, stream: int) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            self._watchdog.abandon(mark)


def _finding(trouble: Trouble, device: int, mark: _Mark, place: int, *, places: str = "", reason: str = "") -> Finding:
    plan: Plan = mark.watched.plan
    launch: Launch = plan.launches[min(place, len(plan.launches) - 1)]
    return Finding(
        trouble,
        device,
        plan.name,
        plan.kernels[launch.kernel].name,
        place + 1,
        len(plan.launches),
        "x".join(map(str, launch.grid)),
        "x".join(map(str, launch.block)),
        mark.stream,
        _since(mark),
        mark.watched.command(),
        places,
        reason,
    )


def _since(mark: _Mark) -> float:
    return 0.0 if mark.started_s is None else time.monotonic() - mark.started_s


def _look_on(watchdog: weakref.ref[Watchdog], has_closed: threading.Event, pause_s: float) -> None:
    """Looks until the watchdog is closed or gone."""
    while not has_closed.wait(pause_s):
        found = watchdog()
        if found is None:
            return
        found.look()
        del found
