"""The Communicator protocol: what ranks exchange, in stream order.

A collective call is made by every rank of a communicator, in the same order, with buffers of the same type and size.
It goes into a stream and is ordered there as a kernel is, and it can be captured into a CUDA graph. Buffers are those
of ``runtime.buffer``, or anything with DLPack; their elements lie without gaps, in any order of the axes that all ranks
share. Wrong arguments raise before anything is sent.

Two implementations: ``nccl.NcclCommunicator``, a process or a thread for each GPU, over any number of nodes, where the
host does not wait for a call; and ``in_process.InProcessCommunicator``, a thread for each emulated device, where it
waits for those that are not captured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol

from lowdnn.runtime.context import Context
from lowdnn.runtime.stream import Stream


class ReduceOp(Enum):
    """How the elements of all ranks become one. AVG is SUM divided by the number of ranks, for float types alone."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class Communicator(Protocol):
    """``size`` ranks, of which this is ``rank``, on the device of ``context``.

    A failure of any rank ends the communicator: every later call raises CommunicationError with the reason, and the
    ranks that are left form a new one. A rank hears of another's failure from ``wait``, which raises once ``timeout_s``
    are over, and from ``check``.
    """

    rank: int
    size: int
    context: Context
    timeout_s: float

    def all_reduce(self, source: object, target: object, *, stream: Stream, op: ReduceOp = ReduceOp.SUM) -> None:
        """target = op over the ranks of source; both may be one buffer."""

    def all_gather(self, source: object, target: object, *, stream: Stream) -> None:
        """target = the sources of all ranks in rank order; source may be this rank's part of target."""

    def reduce_scatter(self, source: object, target: object, *, stream: Stream, op: ReduceOp = ReduceOp.SUM) -> None:
        """target = this rank's part, of ``size`` equal ones, of op over the ranks of source; target may be that part of
        source."""

    def broadcast(self, buffer: object, *, root: int, stream: Stream) -> None:
        """buffer = that of rank ``root``."""

    def send(self, source: object, *, peer: int, stream: Stream) -> None:
        """Sends to rank ``peer``, which receives as many bytes; the stream goes on once it does."""

    def recv(self, target: object, *, peer: int, stream: Stream) -> None:
        """Receives what rank ``peer`` sends."""

    def group(self) -> AbstractContextManager[None]:
        """Calls in the ``with`` block become one: they run together behind it, so that ranks may send to each other at
        the same time. Groups do not nest. An error in the block aborts the communicator."""

    def barrier(self, *, stream: Stream) -> None:
        """Work behind it begins once the work before it is done on all ranks."""

    def wait(self, stream: Stream) -> None:
        """Waits for the stream. Raises CommunicationTimeoutError after ``timeout_s``, and CommunicationError where a
        rank has failed; either way the communicator is aborted first. A stream that is captured is refused with
        CudaGraphNativeApiError, and its capture goes on."""

    def check(self) -> None:
        """Raises CommunicationError where the communicator has failed; never waits."""

    def abort(self, reason: str) -> None:
        """Ends the communicator at once, and collectives under way with it; later calls raise with ``reason``."""

    def close(self) -> None:
        """Ends the communicator once its work is done; closing twice does nothing."""
