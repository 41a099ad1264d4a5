"""Timing of plans: by events on a device, or by the cost model where a device has no time of its own.

On a device a plan is captured into CUDA graphs of several launches, so that host cost and launch gaps do not count. In
one of them each launch works on the next of several copies of the data, which finds nothing in the L2 cache (cold); in
the other all work on one (warm).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

from numpy.typing import NDArray

from lowdnn.heuristics.ranking import Candidate
from lowdnn.heuristics.tuning.records import RecordClock
from lowdnn.heuristics.tuning.tensors import TuningTensors
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.timing import Clock, event_clock, launches_for
from lowdnn.runtime.workspace import Workspace


class TimedPlan(Protocol):
    """A plan that is ready to be timed."""

    def cold_us(self) -> float:
        """Microseconds of a launch whose operands lie in device memory."""

    def warm_us(self) -> float:
        """Microseconds of a launch whose operands lie in the L2 cache, as far as they fit."""


class Timer(Protocol):
    """Times the plans of one graph. Close it, or use ``with``."""

    clock: RecordClock

    def timed(self, candidate: Candidate) -> TimedPlan:
        """``candidate``, ready; raises what loading and launching its plan raise."""

    def disagreement(self, candidate: Candidate, first: Candidate) -> str:
        """How far the results of a candidate are from another's, where roundings do not explain it."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Estimated:
    """A plan whose time is what the cost model says."""

    us: float

    def cold_us(self) -> float:
        return self.us

    def warm_us(self) -> float:
        return self.us


class ModelTimer:
    """The cost model instead of a clock: nothing is loaded and nothing is launched."""

    clock = RecordClock.MODEL

    def timed(self, candidate: Candidate) -> TimedPlan:
        return Estimated(candidate.estimated_us)

    def disagreement(self, candidate: Candidate, first: Candidate) -> str:
        return ""

    def close(self) -> None:
        """There is nothing to give back."""


@dataclass(frozen=True)
class _Replay:
    """A captured graph of ``launches`` launches, which a clock times."""

    clock: Clock
    launch: Callable[[], object]
    launches: int

    def us(self) -> float:
        return self.clock(self.launch) / self.launches


@dataclass
class _Captured:
    """The graphs of a plan; the warm one is captured when it is first asked for."""

    cold: _Replay
    capture_warm: Callable[[], _Replay]

    def cold_us(self) -> float:
        return self.cold.us()

    def warm_us(self) -> float:
        return self._warm.us()

    @cached_property
    def _warm(self) -> _Replay:
        return self.capture_warm()


class DeviceTimer:
    """Events on ``stream``, in which replays run; capturing uses a stream of its own."""

    clock = RecordClock.EVENTS

    def __init__(self, runtime: Runtime, stream: Stream, tensors: TuningTensors, launches: int | None = None) -> None:
        """Takes over ``tensors``, which ``close`` closes.

        launches: launches in one graph; by default enough for the clock's resolution.
        """
        self._runtime, self._stream, self._tensors, self._launches = runtime, stream, tensors, launches
        self._workspaces: list[Workspace] = []
        self._stack = ExitStack()
        self._stack.callback(tensors.close)
        self._capturing = self._stack.enter_context(Stream.create(runtime.context))
        self._elapsed_us = self._stack.enter_context(event_clock(runtime.context, stream))

    def timed(self, candidate: Candidate) -> TimedPlan:
        loaded, workspace = self._loaded(candidate)
        addresses = self._tensors.addresses(loaded.uids)
        once = partial(loaded.execute, addresses[0], workspace, self._stream.handle)
        self._elapsed_us(once)
        launches = self._launches or launches_for(self._elapsed_us(once), len(addresses))
        cold = self._captured(loaded, addresses, workspace, launches)
        return _Captured(cold, partial(self._captured, loaded, addresses[:1], workspace, launches))

    def disagreement(self, candidate: Candidate, first: Candidate) -> str:
        return self._tensors.disagreement(self._results(candidate), self._results(first))

    def close(self) -> None:
        self._stack.close()

    def _results(self, candidate: Candidate) -> dict[int, NDArray[Any]]:
        loaded, workspace = self._loaded(candidate)
        self._tensors.forget_results()
        loaded.execute(self._tensors.addresses(loaded.uids)[0], workspace, self._stream.handle)
        return self._tensors.results()

    def _loaded(self, candidate: Candidate) -> tuple[LoadedPlan, int]:
        return self._runtime.load(candidate.plan), self._workspace(candidate.plan.workspace_bytes)

    def _workspace(self, size_bytes: int) -> int:
        """The address of a workspace that is large enough: plans take turns, so that they share one."""
        found = next((one for one in self._workspaces if one.size_bytes >= size_bytes), None)
        if found is None:
            found = self._stack.enter_context(Workspace(self._runtime.context, size_bytes))
            self._workspaces.append(found)
        return found.address

    def _captured(self, loaded: LoadedPlan, addresses: list[tuple[int, ...]], workspace: int, launches: int) -> _Replay:
        """The graph, replayed once."""

        def work() -> None:
            for launch in range(launches):
                loaded.execute(addresses[launch % len(addresses)], workspace, self._capturing.handle)

        graph = self._stack.enter_context(CapturedGraph.record(self._capturing, work))
        replay = _Replay(self._elapsed_us, partial(graph.launch, self._stream), launches)
        replay.us()
        return replay
