"""The communicator of emulated devices: each rank is a thread of one process with a device of its own.

The host moves the data. A call copies its buffer to the host, meets the other ranks' calls, and copies the result back;
reductions are added up in rank order (``arithmetic``). Calls that do not fit together, over which NCCL would hang, are
reported with what each rank called.

A call waits for the work before it in its stream and for the other ranks, as its stream would on a GPU, and raises what
goes wrong. In a stream that is captured it becomes four nodes of the graph, two copies and two host functions. These
wait for the other ranks whenever the graph runs, and ``wait`` and ``check`` tell what goes wrong, as with NCCL.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lowdnn.distributed.arithmetic import reduced
from lowdnn.distributed.base import BaseCommunicator
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationError
from lowdnn.distributed.meeting_point import Bytes, Letter, MeetingPoint
from lowdnn.distributed.operands import Operand
from lowdnn.driver.base import HostFunctions, HostWait
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream
from lowdnn.status import CudaGraphNativeApiError

T = TypeVar("T")

#: Seconds between looks at whether a rank has failed.
_LOOK_S = 0.1
_NOTHING: Bytes = np.empty(0, np.uint8)


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

    def _missing(self) -> str:
        return self.point.waits() or super()._missing()

    def _all_reduce(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        def result(parts: list[Bytes]) -> Bytes:
            return reduced(parts, source.data_type, op)

        call = f"all_reduce of {_facts(source)}, {op.name}"
        self._run(_Collective(*self._here(stream), source, target, call, result))

    def _all_gather(self, source: Operand, target: Operand, stream: Stream) -> None:
        self._run(_Collective(*self._here(stream), source, target, f"all_gather of {_facts(source)}", np.concatenate))

    def _reduce_scatter(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        own = slice(self.rank * target.size_bytes, (self.rank + 1) * target.size_bytes)

        def result(parts: list[Bytes]) -> Bytes:
            return reduced([part[own] for part in parts], source.data_type, op)

        call = f"reduce_scatter of {_facts(source)}, {op.name}"
        self._run(_Collective(*self._here(stream), source, target, call, result))

    def _broadcast(self, buffer: Operand, root: int, stream: Stream) -> None:
        call = f"broadcast of {_facts(buffer)} from {root}"
        source = buffer if self.rank == root else None
        self._run(_Collective(*self._here(stream), source, buffer, call, lambda parts: parts[root]))

    def _send(self, source: Operand, peer: int, stream: Stream) -> None:
        self._run(_Send(*self._here(stream), source, None, peer))

    def _recv(self, target: Operand, peer: int, stream: Stream) -> None:
        self._run(_Recv(*self._here(stream), None, target, peer))

    def _barrier(self, stream: Stream) -> None:
        self._run(_Collective(*self._here(stream), None, None, "barrier", lambda parts: parts[0]))

    def _begin_group(self) -> None:
        self._grouped = []

    def _end_group(self, *, is_whole: bool) -> None:
        operations, self._grouped = (self._grouped or []) if is_whole else [], None
        # A rank receives before it waits for its own messages to be received.
        self._run_all(sorted(operations, key=lambda one: isinstance(one, _Send)))

    def _end(self) -> None:
        """Owns nothing: the meeting point is everyone's."""

    def _here(self, stream: Stream) -> tuple[MeetingPoint, int, Stream]:
        return self.point, self.rank, stream

    def _run(self, operation: _Operation) -> None:
        if self._grouped is None:
            self._run_all([operation])
        else:
            self._grouped.append(operation)

    def _run_all(self, operations: list[_Operation]) -> None:
        """Gives everything to the other ranks before it waits for theirs."""
        moves = [self._move(operation) for operation in operations]
        for move in moves:
            move.begin()
        for move in moves:
            move.finish()

    def _move(self, operation: _Operation) -> _Move:
        if not operation.stream.is_capturing:
            return _Move(self.context, operation)
        functions = self.context.driver.host_functions
        if functions is None:
            raise CudaGraphNativeApiError.at(
                "InProcessCommunicator.stream",
                expected="a stream that is not captured",
                got="a capture under way",
                hint="between GPUs NcclCommunicator can be captured",
            )
        return _CapturedMove(self.context, operation, functions)


@dataclass
class _Operation(ABC):
    """One call of a rank: ``give`` hands on the bytes of ``source`` and never waits; ``take`` waits for the other ranks
    and returns those of ``target``."""

    point: MeetingPoint
    rank: int
    stream: Stream
    source: Operand | None
    target: Operand | None

    @abstractmethod
    def give(self, content: Bytes) -> None: ...

    @abstractmethod
    def is_met(self) -> bool:
        """Whether ``take`` no longer waits."""

    @abstractmethod
    def missing(self) -> str:
        """The call, and who has not come to it."""

    @abstractmethod
    def take(self) -> Bytes: ...


@dataclass
class _Collective(_Operation):
    """``result``: the bytes of ``target`` from those of the sources of all ranks, in rank order."""

    call: str
    result: Callable[[list[Bytes]], Bytes]
    number: int = -1

    def give(self, content: Bytes) -> None:
        self.number = self.point.bring(self.rank, self.call, content)

    def is_met(self) -> bool:
        return self.point.all_brought(self.number)

    def missing(self) -> str:
        return self.point.missing(self.rank, self.number)

    def take(self) -> Bytes:
        return self.result(self.point.collect(self.rank, self.number))


@dataclass
class _Send(_Operation):
    peer: int
    letter: Letter | None = None

    def give(self, content: Bytes) -> None:
        self.letter = self.point.post(self.rank, self.peer, content)

    def is_met(self) -> bool:
        return bool(self.point.failure) or self.letter is None or self.letter.is_taken

    def missing(self) -> str:
        return f"rank {self.rank}: send to {self.peer}, no recv of it"

    def take(self) -> Bytes:
        if self.letter is not None:
            self.point.await_taken(self.rank, self.peer, self.letter)
        return _NOTHING


@dataclass
class _Recv(_Operation):
    peer: int

    def give(self, content: Bytes) -> None:
        """Nothing is given."""

    def is_met(self) -> bool:
        return self.point.is_posted(self.peer, self.rank)

    def missing(self) -> str:
        return f"rank {self.rank}: recv from {self.peer}, no send of it"

    def take(self) -> Bytes:
        size_bytes = 0 if self.target is None else self.target.size_bytes
        return self.point.take(self.peer, self.rank, size_bytes)


@dataclass
class _Move:
    """The data of an operation on their way, now."""

    context: Context
    operation: _Operation

    def begin(self) -> None:
        one = self.operation
        one.stream.synchronize()
        one.give(_NOTHING if one.source is None else self._memory(one.source).to_host(one.stream))

    def finish(self) -> None:
        one = self.operation
        made = one.take()
        if one.target is not None:
            self._memory(one.target).copy_from_host(np.ascontiguousarray(made), one.stream)

    def _memory(self, operand: Operand) -> DeviceBuffer:
        return DeviceBuffer(self.context, operand.address, operand.size_bytes)


@dataclass
class _CapturedMove(_Move):
    """The nodes of a graph that do so in each replay; a target is zero where a rank has failed."""

    functions: HostFunctions

    def begin(self) -> None:
        one, driver = self.operation, self.context.driver
        staged = np.zeros(0 if one.source is None else one.source.size_bytes, np.uint8)
        with self.context.activated():
            if one.source is not None:
                driver.memcpy_dtoh_async(staged.ctypes.data, one.source.address, staged.size, one.stream.handle)
            self.functions.launch(one.stream.handle, lambda: one.give(staged.copy()))

    def finish(self) -> None:
        one, driver = self.operation, self.context.driver
        staged = np.zeros(0 if one.target is None else one.target.size_bytes, np.uint8)

        def take() -> None:
            staged[:] = 0
            with suppress(CommunicationError):
                staged[:] = one.take()

        with self.context.activated():
            self.functions.launch(one.stream.handle, take, HostWait(one.is_met, one.missing, one.point.fail))
            if one.target is not None:
                driver.memcpy_htod_async(one.target.address, staged.ctypes.data, staged.size, one.stream.handle)


def _facts(operand: Operand) -> str:
    return f"{operand.count} {operand.data_type.name}"
