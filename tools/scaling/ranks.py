"""Ranks that are threads of one process, and the time of a launch that all of them make together."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.backend import Handle
from lowdnn.distributed import InProcessCommunicator
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.event import Event
from lowdnn.runtime.stream import Stream

#: Seconds after which a rank that waits for its stream or for the others gives up.
_PATIENCE_S = 110.0
_PAUSE_S = 2e-5
#: Replays that are timed, behind two that do not count.
_REPLAYS = 10


def printed(text: str) -> None:
    print(text, flush=True)


class Crew:
    """The ranks of a process share a gate that opens once all are there, a lock, a number of each, and ``report``,
    which takes their lines of text."""

    def __init__(self, size: int, report: Callable[[str], None] = printed) -> None:
        self.report = report
        self.gate = threading.Barrier(size, timeout=_PATIENCE_S)
        self.capturing = threading.Lock()
        self.numbers = [0.0] * size


class Rank:
    """One rank: its handle, a stream of its own that the handle works in, and its place among the others.

    Buffers of ``put`` and objects given to ``keep`` are closed at the end of the ``with scope()`` around the call.
    """

    def __init__(self, handle: Handle, communicator: InProcessCommunicator, crew: Crew) -> None:
        self.handle, self.communicator, self.crew = handle, communicator, crew
        self.rank, self.size = communicator.rank, communicator.size
        self.context = handle.runtime.context
        self.stream = Stream.create(self.context)
        handle.set_stream(self.stream)
        self._owned = ExitStack()

    def say(self, text: str) -> None:
        """Reports the text once for all ranks."""
        if self.rank == 0:
            self.crew.report(text)

    def meet(self) -> None:
        """Returns once all ranks have called it. Raises BrokenBarrierError where one does not come."""
        self.crew.gate.wait()

    def wait(self) -> None:
        """Waits for the stream, and leaves the interpreter to the other ranks meanwhile. Raises TimeoutError."""
        end_s = time.monotonic() + _PATIENCE_S
        while not self.stream.is_done():
            if time.monotonic() > end_s:
                raise TimeoutError(f"rank {self.rank}: the stream is not done after {_PATIENCE_S:g} s")
            time.sleep(_PAUSE_S)

    def largest(self, number: float) -> float:
        """The largest number of all ranks, which call this together."""
        self.crew.numbers[self.rank] = number
        self.meet()
        largest = max(self.crew.numbers)
        self.meet()
        return largest

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Frees at its end what ``put`` and ``keep`` were given inside."""
        before, self._owned = self._owned, ExitStack()
        try:
            with self._owned:
                yield
        finally:
            self._owned = before

    def keep(self, made: Any) -> Any:
        """``made``, which is a context manager and is closed at the end of the scope."""
        return self._owned.enter_context(made)

    def put(self, array: NDArray[Any], data_type: DataType = DataType.FLOAT) -> DeviceBuffer:
        """A packed copy of the array on the rank's device."""
        packed = np.ascontiguousarray(array)
        buffer = DeviceBuffer.allocate(self.context, packed.nbytes, data_type=data_type, shape=packed.shape)
        self.keep(buffer).copy_from_host(packed, self.stream)
        return buffer

    def launch_us(self, work: Callable[[], object], launches: int) -> float:
        """The median time of one launch of ``work``, of which a graph holds ``launches``; that of the slowest rank."""

        def many() -> None:
            for _ in range(launches):
                work()

        times_us = []
        with (
            self._captured(many) as replay,
            Event.create(self.context) as begin,
            Event.create(self.context) as end,
        ):
            for _ in range(_REPLAYS + 2):
                self.wait()
                self.meet()
                begin.record(self.stream)
                replay()
                end.record(self.stream)
                self.wait()
                times_us.append(1e3 * end.elapsed_ms(begin) / launches)
        return self.largest(statistics.median(times_us[2:]))

    @contextmanager
    def _captured(self, work: Callable[[], object]) -> Iterator[Callable[[], None]]:
        """A function that replays ``work``. Ranks capture in turn, while no launch of another runs."""
        self.wait()
        self.meet()
        with self.crew.capturing:
            graph = CapturedGraph.record(self.stream, work)
        self.meet()
        with graph:
            yield partial(graph.launch, self.stream)
            self.wait()
            self.meet()
