"""The communicator of emulated devices: each rank is a thread of one process with a device of its own.

The host moves the data. A call waits for the work before it in its stream, copies its buffer to the host, meets the
other ranks' calls, and copies the result back; reductions are added up in rank order (``arithmetic``). So a call waits
for the other ranks as its stream would on a GPU, and calls that do not fit together, over which NCCL would hang, are
reported with what each rank called. Nothing of it can be captured into a CUDA graph.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lowdnn.distributed.arithmetic import reduced
from lowdnn.distributed.base import BaseCommunicator
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.meeting_point import Bytes, Letter, MeetingPoint
from lowdnn.distributed.operands import Operand
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream
from lowdnn.status import CudaGraphNativeApiError

T = TypeVar("T")

#: Seconds between looks at whether a rank has failed.
_LOOK_S = 0.1


def run_in_threads(size: int, work: Callable[[int, MeetingPoint], T], *, timeout_s: float = 60.0) -> list[T]:
    """``work(rank, point)`` of each rank in a thread of its own; the results in rank order.

    ``point`` makes communicators: ``InProcessCommunicator(point, rank, context)``. A rank whose work raises ends the
    waiting of the others; the first error is raised here once all have ended, or ``timeout_s`` after it.
    """
    point = MeetingPoint(size, timeout_s)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, point)
        except BaseException as error:
            errors.append(error)
            point.fail(f"rank {rank}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        while thread.is_alive() and not errors:
            thread.join(_LOOK_S)
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


class InProcessCommunicator(BaseCommunicator):
    """Rank ``rank`` of those that meet at ``point``, on the device of ``context``; each rank in its own thread.

    After a failure ``point.survivors`` gives those that are left a meeting point for a new communicator.
    """

    def __init__(self, point: MeetingPoint, rank: int, context: Context) -> None:
        super().__init__(rank, point.size, context, point.timeout_s)
        self.point = point
        self._grouped: list[_Operation] | None = None

    def abort(self, reason: str) -> None:
        self.point.fail(f"rank {self.rank} aborted: {reason}")

    def _failure(self) -> str:
        return self.point.failure

    def _all_reduce(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        def result(parts: list[Bytes]) -> Bytes:
            return reduced(parts, source.data_type, op)

        call = f"all_reduce of {_facts(source)}, {op.name}"
        self._run(_Collective(*self._here(stream), call, source, target, result))

    def _all_gather(self, source: Operand, target: Operand, stream: Stream) -> None:
        self._run(_Collective(*self._here(stream), f"all_gather of {_facts(source)}", source, target, np.concatenate))

    def _reduce_scatter(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        own = slice(self.rank * target.size_bytes, (self.rank + 1) * target.size_bytes)

        def result(parts: list[Bytes]) -> Bytes:
            return reduced([part[own] for part in parts], source.data_type, op)

        call = f"reduce_scatter of {_facts(source)}, {op.name}"
        self._run(_Collective(*self._here(stream), call, source, target, result))

    def _broadcast(self, buffer: Operand, root: int, stream: Stream) -> None:
        call = f"broadcast of {_facts(buffer)} from {root}"
        source = buffer if self.rank == root else None
        self._run(_Collective(*self._here(stream), call, source, buffer, lambda parts: parts[root]))

    def _send(self, source: Operand, peer: int, stream: Stream) -> None:
        self._run(_Send(*self._here(stream), source, peer))

    def _recv(self, target: Operand, peer: int, stream: Stream) -> None:
        self._run(_Recv(*self._here(stream), target, peer))

    def _barrier(self, stream: Stream) -> None:
        self._run(_Collective(*self._here(stream), "barrier", None, None, lambda parts: parts[0]))

    def _begin_group(self) -> None:
        self._grouped = []

    def _end_group(self, *, is_whole: bool) -> None:
        operations, self._grouped = (self._grouped or []) if is_whole else [], None
        for operation in operations:
            operation.begin()
        # A rank receives before it waits for its own messages to be received.
        for operation in sorted(operations, key=lambda one: isinstance(one, _Send)):
            operation.finish()

    def _end(self) -> None:
        """Owns nothing: the meeting point is everyone's."""

    def _here(self, stream: Stream) -> tuple[MeetingPoint, int, Context, Stream]:
        return self.point, self.rank, self.context, stream

    def _run(self, operation: _Operation) -> None:
        if operation.stream.is_capturing:
            raise CudaGraphNativeApiError.at(
                "InProcessCommunicator.stream",
                expected="a stream that is not captured",
                got="a capture under way",
                hint="the host moves the data between emulated devices; capture the work around it",
            )
        if self._grouped is not None:
            self._grouped.append(operation)
        else:
            operation.begin()
            operation.finish()


@dataclass
class _Operation(ABC):
    """One call of a rank: ``begin`` gives the others what they need and never waits for them; ``finish`` does."""

    point: MeetingPoint
    rank: int
    context: Context
    stream: Stream

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def finish(self) -> None: ...

    def read(self, source: Operand) -> Bytes:
        """The bytes of a buffer, behind the work before this call."""
        return DeviceBuffer(self.context, source.address, source.size_bytes).to_host(self.stream)

    def write(self, target: Operand, content: Bytes) -> None:
        buffer = DeviceBuffer(self.context, target.address, target.size_bytes)
        buffer.copy_from_host(np.ascontiguousarray(content), self.stream)


@dataclass
class _Collective(_Operation):
    """``result``: the bytes of ``target`` from those of the sources of all ranks, in rank order."""

    call: str
    source: Operand | None
    target: Operand | None
    result: Callable[[list[Bytes]], Bytes]
    number: int = -1

    def begin(self) -> None:
        self.stream.synchronize()
        brought = np.empty(0, np.uint8) if self.source is None else self.read(self.source)
        self.number = self.point.bring(self.rank, self.call, brought)

    def finish(self) -> None:
        made = self.result(self.point.collect(self.rank, self.number))
        if self.target is not None:
            self.write(self.target, made)


@dataclass
class _Send(_Operation):
    source: Operand
    peer: int
    letter: Letter | None = None

    def begin(self) -> None:
        self.letter = self.point.post(self.rank, self.peer, self.read(self.source))

    def finish(self) -> None:
        if self.letter is not None:
            self.point.await_taken(self.rank, self.peer, self.letter)


@dataclass
class _Recv(_Operation):
    target: Operand
    peer: int

    def begin(self) -> None:
        """Nothing is given."""

    def finish(self) -> None:
        self.write(self.target, self.point.take(self.peer, self.rank, self.target.size_bytes))


def _facts(operand: Operand) -> str:
    return f"{operand.count} {operand.data_type.name}"
