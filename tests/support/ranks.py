"""Ranks for tests: threads, each with one of several emulated devices, whose collectives meet in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.backend import Handle
from lowdnn.distributed.in_process import InProcessCommunicator, run_in_threads
from lowdnn.distributed.meeting_point import MeetingPoint
from lowdnn.driver import open_driver
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.captured_graph import CapturedGraph
from lowdnn.runtime.context import Context
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream

T = TypeVar("T")


@dataclass(frozen=True)
class Rank:
    """A communicator with a stream, and arrays of its device."""

    communicator: InProcessCommunicator
    stream: Stream
    owned: ExitStack

    def device(self, array: NDArray[Any], data_type: DataType = DataType.FLOAT) -> DeviceBuffer:
        """``array``, as the storage of ``data_type``, on the device."""
        context = self.communicator.context
        buffer = DeviceBuffer.allocate(context, array.nbytes, data_type=data_type, shape=array.shape)
        buffer.copy_from_host(np.ascontiguousarray(array), self.stream)
        return self.owned.enter_context(buffer)

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """A function that replays ``work``, which is given to the rank's stream."""
        graph = self.owned.enter_context(CapturedGraph.record(self.stream, work))
        return partial(graph.launch, self.stream)

    def host(self, buffer: DeviceBuffer) -> NDArray[Any]:
        return buffer.to_host(self.stream)


def on_ranks(size: int, work: Callable[[Rank], T], timeout_s: float = 20.0, policy: str = "lockstep") -> list[T]:
    """The results of ``work`` of each rank, in rank order."""

    driver = open_driver("emulated", devices=size, policy=policy)

    def of_rank(rank: int, point: MeetingPoint) -> T:
        with ExitStack() as owned:
            context = owned.enter_context(Context(driver, rank))
            stream = owned.enter_context(Stream.create(context))
            communicator = owned.enter_context(InProcessCommunicator(point, rank, context))
            return work(Rank(communicator, stream, owned))

    return run_in_threads(size, of_rank, timeout_s=timeout_s)


def on_handles(
    size: int,
    work: Callable[[Handle, InProcessCommunicator], T],
    timeout_s: float = 60.0,
    policy: str = "lockstep",
) -> list[T]:
    """The results of ``work`` on ``size`` ranks, each with a handle of its own, in rank order."""
    driver = open_driver("emulated", devices=size, policy=policy)

    def of_rank(rank: int, point: MeetingPoint) -> T:
        with Handle(Runtime(driver, device=rank)) as handle:
            return work(handle, InProcessCommunicator(point, rank, handle.runtime.context))

    return run_in_threads(size, of_rank, timeout_s=timeout_s)
