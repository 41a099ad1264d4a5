"""The graphs that a program runs, written as text cases with counts into the file of LOWDNN_RECORD_CASES.

A graph is recorded when a plan of it is loaded. Its count is how often such plans were executed; an execute that a CUDA
graph captures counts once, whatever the replays. Counting costs an execute one call of a C function (some 25 ns), and
nothing where nothing is recorded.

A thread writes the file soon after a new graph, and now and then while its count grows, so that a process that is
killed has lost the counts of some seconds. The rest is written when the handle is closed or the process ends. Counts
are added to those that the file has, so that several processes may share it. Children of ``fork`` write what they run
with handles of their own.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event, Lock, Thread

from lowdnn.cases import case_families
from lowdnn.cases.counted import MAX_CASES, merged
from lowdnn.cases.naming import case_of
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation
from lowdnn.runtime.execute_counts import ExecuteCount
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.shared_files import change_file
from lowdnn.status import BadParamError, LowdnnError, LowdnnWarning

#: Seconds from a new graph to the file, for whatever is loaded with it.
_SOON_S = 0.1
#: The least seconds between two writings.
_LEAST_S = 1.0
#: The most seconds between two writings while a count grows.
_MOST_S = 30.0
#: The share of its time that the thread may spend writing.
_WRITING_SHARE = 0.05


class RecordingWarning(LowdnnWarning):
    """The file of LOWDNN_RECORD_CASES cannot be written."""


@dataclass
class _Recorded:
    """The operations of a graph, and a count for each of its plans.

    is_known: whether its case was handed to a writer.  is_left_out: whether no case can say what it is.
    """

    operations: tuple[Operation, ...]
    counts: set[ExecuteCount] = field(default_factory=set)
    is_known: bool = False
    is_left_out: bool = False

    @cached_property
    def case(self) -> str:
        return str(case_of(OperationGraph(self.operations)))


class CaseRecorder:
    """The graphs of one handle, and the executes of their plans. Close it."""

    def __init__(self, path: Path) -> None:
        case_families()  # imported here, since a child of fork keeps what another thread has imported half
        self._path = path
        self._process = os.getpid()
        self._recorded: dict[str, _Recorded] = {}
        self._is_full = False
        self._unwritten: Counter[str] = Counter()
        self._remarks: list[str] = []
        self._writing = Lock()
        self._has_news, self._is_closed = Event(), Event()
        self._thread: Thread | None = None

    def watch(self, graph: OperationGraph, loaded: LoadedPlan) -> None:
        """Counts the executes of ``loaded``, a plan of ``graph``, from now on; handles that share it, together."""
        if graph.key not in self._recorded and len(self._recorded) == MAX_CASES:
            if not self._is_full:
                self._is_full = True
                self._remarks.append(f"left out: more than {MAX_CASES} graphs of one handle")
            return
        self._recorded.setdefault(graph.key, _Recorded(graph.operations)).counts.add(loaded.count_executes())
        self._has_news.set()
        if self._thread is None:
            arguments = weakref.ref(self), self._has_news, self._is_closed
            self._thread = Thread(target=_write_on, args=arguments, name="lowdnn cases", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Writes what is not in the file. A file that cannot be written gives a RecordingWarning."""
        self._is_closed.set()
        self._has_news.set()
        failure = self.write()
        if failure:
            warnings.warn(f"LOWDNN_RECORD_CASES: {failure}", RecordingWarning, stacklevel=2)

    def write(self) -> str:
        """Adds to the file what was counted since it was written last; the reason where that is not possible."""
        if os.getpid() != self._process:
            return ""  # a child of fork executes none of these plans
        with self._writing:
            self._take()
            remarks = tuple(self._remarks)
            if not self._unwritten and not remarks:
                return ""
            try:
                change_file(self._path, lambda text: merged(text, self._unwritten, remarks))
            except (OSError, BadParamError) as error:
                return str(error)
            fields = {"file": self._path, "cases": len(self._unwritten)}
            emit(event_logger("backend"), logging.INFO, "cases_recorded", fields)
            self._unwritten.clear()
            del self._remarks[: len(remarks)]
            return ""

    def _take(self) -> None:
        """Takes over the counts of the plans since the last time."""
        for recorded in tuple(self._recorded.values()):
            executes = sum(count.take() for count in tuple(recorded.counts))
            if recorded.is_left_out or (recorded.is_known and not executes):
                continue
            try:
                self._unwritten[recorded.case] += executes
                recorded.is_known = True
            except LowdnnError as error:
                recorded.is_left_out = True
                self._remarks.append(f"left out: {error}".splitlines()[0])


def _write_on(recorder: weakref.ref[CaseRecorder], has_news: Event, is_closed: Event) -> None:
    """Writes until the recorder is closed or gone."""
    pause_s = _LEAST_S
    while True:
        is_new = has_news.wait(pause_s)
        has_news.clear()
        if is_new:
            pause_s = _LEAST_S
            is_closed.wait(_SOON_S)
        found = recorder()
        if found is None or is_closed.is_set():
            return
        begin_s = time.monotonic()
        found.write()
        del found
        written_s = time.monotonic() - begin_s
        is_closed.wait(max(_LEAST_S, written_s / _WRITING_SHARE))
        pause_s = min(2 * pause_s, _MOST_S)
