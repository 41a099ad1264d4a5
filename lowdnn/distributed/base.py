"""The base of the communicators: checks of arguments, groups, and the end after a failure."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from lowdnn import checks
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationTimeoutError, PeerFailedError
from lowdnn.distributed.operands import Checks, Operand
from lowdnn.distributed.store import seconds
from lowdnn.runtime.context import Context
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.stream import Stream
from lowdnn.status import BadParamError, CudaGraphNativeApiError, NotInitializedError

#: Seconds in which what is awaited is looked at without a pause, as the shortest one takes Linux some 70 us.
_BUSY_S = 200e-6
#: Seconds between later looks: the first, and the most; each look doubles it.
_FIRST_LOOK_S = 20e-6
_LAST_LOOK_S = 2e-3


class BaseCommunicator(ProcessBound, ABC):
    """A Communicator whose subclass only moves data: the underscored methods get arguments that are checked."""

    def __init__(self, rank: int, size: int, context: Context, timeout_s: float) -> None:
        self.size = checks.integer(size, "Communicator.size", 1)
        self.rank = checks.integer(rank, "Communicator.rank", 0, size - 1)
        self.context = checks.instance(context, Context, "Communicator.context")
        self.timeout_s = seconds(timeout_s, "Communicator.timeout_s")
        self._checks = Checks(rank, size, context)
        self._is_open = True
        self._is_grouped = False

    def all_reduce(self, source: object, target: object, *, stream: Stream, op: ReduceOp = ReduceOp.SUM) -> None:
        self.check()
        self._all_reduce(*self._checks.all_reduce(source, target, op, stream), op, stream)

    def all_gather(self, source: object, target: object, *, stream: Stream) -> None:
        self.check()
        self._all_gather(*self._checks.all_gather(source, target, stream), stream)

    def reduce_scatter(self, source: object, target: object, *, stream: Stream, op: ReduceOp = ReduceOp.SUM) -> None:
        self.check()
        self._reduce_scatter(*self._checks.reduce_scatter(source, target, op, stream), op, stream)

    def broadcast(self, buffer: object, *, root: int, stream: Stream) -> None:
        self.check()
        self._broadcast(self._checks.broadcast(buffer, root, stream), root, stream)

    def send(self, source: object, *, peer: int, stream: Stream) -> None:
        self.check()
        self._send(self._checks.moved("send", "source", source, peer, stream), peer, stream)

    def recv(self, target: object, *, peer: int, stream: Stream) -> None:
        self.check()
        self._recv(self._checks.moved("recv", "target", target, peer, stream), peer, stream)

    def barrier(self, *, stream: Stream) -> None:
        self.check()
        self._checks.check_stream("barrier", stream)
        self._barrier(stream)

    @contextmanager
    def group(self) -> Iterator[None]:
        self.check()
        if self._is_grouped:
            raise BadParamError.at("Communicator.group", expected="no group inside of a group", got="one")
        self._is_grouped = True
        self._begin_group()
        try:
            yield
        except BaseException:
            self._end_group(is_whole=False)
            self.abort("a call of a group failed")
            raise
        finally:
            self._is_grouped = False
        self._end_group(is_whole=True)

    def wait(self, stream: Stream) -> None:
        self.check()
        self._checks.check_stream("wait", stream)
        if stream.is_capturing:
            raise CudaGraphNativeApiError.at(
                "Communicator.wait.stream",
                expected="a stream that is not captured",
                got="a capture under way",
                hint="end the capture, launch its graph, and wait for that",
            )
        self._poll(f"wait for stream {stream.handle:#x}", stream.is_done)
        self._check_failure()

    def check(self) -> None:
        if not self._is_open:
            raise NotInitializedError.at("Communicator", expected="an open communicator", got="a closed one")
        self._check_failure()

    def _check_failure(self) -> None:
        reason = self._failure()
        if reason:
            raise PeerFailedError.at(
                f"Communicator of rank {self.rank}",
                expected="ranks that all take part",
                got=reason,
                hint="form a new communicator of the ranks that are left",
            )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _poll(self, where: str, is_done: Callable[[], bool]) -> None:
        """Waits until ``is_done``. Raises CommunicationError once a rank has failed, or after the timeout, which aborts
        the communicator."""
        begin, look_s = time.monotonic(), _FIRST_LOOK_S
        while not is_done():
            waited_s = time.monotonic() - begin
            if waited_s < _BUSY_S:
                time.sleep(0)  # other threads of Python may run
                continue
            self._check_failure()
            if waited_s > self.timeout_s:
                missing = self._missing()
                self.abort(f"{where} timed out after {self.timeout_s:g} s")
                raise CommunicationTimeoutError.at(
                    where, expected=f"the other ranks within {self.timeout_s:g} s", got=missing
                )
            time.sleep(look_s)
            look_s = min(2 * look_s, _LAST_LOOK_S)

    @abstractmethod
    def abort(self, reason: str) -> None: ...

    @abstractmethod
    def _failure(self) -> str:
        """Why the communicator has failed; "" as long as it has not."""

    def _missing(self) -> str:
        """Which calls wait for which ranks, as far as that is known."""
        return f"{self.size} ranks, not all"

    @abstractmethod
    def _all_reduce(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None: ...

    @abstractmethod
    def _all_gather(self, source: Operand, target: Operand, stream: Stream) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None: ...

    @abstractmethod
    def _broadcast(self, buffer: Operand, root: int, stream: Stream) -> None: ...

    @abstractmethod
    def _send(self, source: Operand, peer: int, stream: Stream) -> None: ...

    @abstractmethod
    def _recv(self, target: Operand, peer: int, stream: Stream) -> None: ...

    @abstractmethod
    def _barrier(self, stream: Stream) -> None: ...

    @abstractmethod
    def _begin_group(self) -> None: ...

    @abstractmethod
    def _end_group(self, *, is_whole: bool) -> None:
        """Runs the calls of the group, which may be left out where the group is not whole."""

    @abstractmethod
    def _end(self) -> None:
        """Gives back what the communicator owns."""
