"""The communicator of GPUs: NCCL through nccl4py's bindings, whose functions are those of ``nccl.h``.

NCCL's communicators do not block here: what NCCL prepares in the background is waited for with a timeout, so that a
rank that never comes is an error and no hang. Data that is only moved is moved as bytes.
Source: NCCL's documentation, "NCCL API" and "Fault tolerance".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from lowdnn.distributed.base import BaseCommunicator
from lowdnn.distributed.communicator import ReduceOp
from lowdnn.distributed.errors import CommunicationError
from lowdnn.distributed.operands import Operand
from lowdnn.distributed.rendezvous import Members, identifier
from lowdnn.distributed.store import Store
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import DeviceBuffer
from lowdnn.runtime.context import Context
from lowdnn.runtime.dlpack import CUDA_DEVICE_TYPES
from lowdnn.runtime.stream import Stream
from lowdnn.status import NotSupportedError, RuntimePrerequisiteMissingError

#: The members of the bindings' ``DataType`` and ``RedOp``.
DATA_TYPES = {
    DataType.DOUBLE: "Float64",
    DataType.FLOAT: "Float32",
    DataType.HALF: "Float16",
    DataType.BFLOAT16: "Bfloat16",
    DataType.INT8: "Int8",
    DataType.UINT8: "Uint8",
    DataType.INT32: "Int32",
    DataType.INT64: "Int64",
}
OPERATIONS = {
    ReduceOp.SUM: "Sum",
    ReduceOp.PROD: "Prod",
    ReduceOp.MIN: "Min",
    ReduceOp.MAX: "Max",
    ReduceOp.AVG: "Avg",
}


def bindings() -> Any:
    """nccl4py's module of bindings. Raises RuntimePrerequisiteMissingError where it or NCCL's library is missing."""
    try:
        found = importlib.import_module("nccl.bindings.nccl")
        found.get_version()
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimePrerequisiteMissingError.at(
            "nccl", expected="nccl4py and NCCL's library", got=error, hint="pip install 'lowdnn[distributed]'"
        ) from error
    return found


def connect(
    store: Store, members: Members, context: Context, *, name: str = "world", timeout_s: float = 60.0
) -> NcclCommunicator:
    """The communicator of ``members``, each on the device of its ``context``; made by all of them together.

    ``name``: new for each communicator in the store. ``timeout_s``: for the others to come, and for ``wait`` later.
    Raises CommunicationTimeoutError where one does not come, CommunicationError where NCCL fails, and
    NotSupportedError for an emulated device.
    """
    if context.driver.dlpack_device_type not in CUDA_DEVICE_TYPES:
        raise NotSupportedError.at(
            "connect.context", expected="a GPU's", got="an emulated device's", hint="run_in_threads joins those"
        )
    nccl = bindings()
    token = identifier(store, members, f"nccl/{name}", lambda: bytes(nccl.get_unique_id()), timeout_s)
    return NcclCommunicator(token, members.rank, members.size, context, timeout_s=timeout_s)


class NcclCommunicator(BaseCommunicator):
    """Rank ``rank`` of ``size``. ``token``: NCCL's identifier, the 128 bytes that one rank made for all."""

    def __init__(self, token: bytes, rank: int, size: int, context: Context, *, timeout_s: float = 60.0) -> None:
        super().__init__(rank, size, context, timeout_s)
        self._nccl = bindings()
        self._reason = ""
        self._types = {one: int(getattr(self._nccl.DataType, name)) for one, name in DATA_TYPES.items()}
        self._operations = {one: int(getattr(self._nccl.RedOp, name)) for one, name in OPERATIONS.items()}
        self._bytes = self._types[DataType.UINT8]
        config = self._nccl.Config()
        config.blocking = 0
        # ``barrier`` adds this up.
        self._token = DeviceBuffer.allocate(context, 4, label="barrier")
        with context.activated():
            self._comm = self._called(
                "ncclCommInitRankScalable",
                lambda: self._nccl.comm_init_rank_scalable(size, rank, 1, bytearray(token), config.ptr),
            )
            self._settle("ncclCommInitRankScalable")

    def abort(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            with self.context.activated():
                self._called("ncclCommAbort", lambda: self._nccl.comm_abort(self._comm))

    def _failure(self) -> str:
        if self._reason:
            return self._reason
        result = self._nccl.comm_get_async_error(self._comm)
        if result in (self._nccl.Result.Success, self._nccl.Result.InProgress):
            return ""
        text = self._nccl.get_error_string(int(result))
        self.abort(f"{text}: {self._nccl.get_last_error(self._comm)}")
        return self._reason

    def _all_reduce(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        facts = source.count, self._types[source.data_type], self._operations[op]
        self._enqueue("ncclAllReduce", self._nccl.all_reduce, source.address, target.address, *facts, stream=stream)

    def _all_gather(self, source: Operand, target: Operand, stream: Stream) -> None:
        facts = source.size_bytes, self._bytes
        self._enqueue("ncclAllGather", self._nccl.all_gather, source.address, target.address, *facts, stream=stream)

    def _reduce_scatter(self, source: Operand, target: Operand, op: ReduceOp, stream: Stream) -> None:
        facts = target.count, self._types[source.data_type], self._operations[op]
        call = self._nccl.reduce_scatter
        self._enqueue("ncclReduceScatter", call, source.address, target.address, *facts, stream=stream)

    def _broadcast(self, buffer: Operand, root: int, stream: Stream) -> None:
        facts = buffer.size_bytes, self._bytes, root
        self._enqueue("ncclBroadcast", self._nccl.broadcast, buffer.address, buffer.address, *facts, stream=stream)

    def _send(self, source: Operand, peer: int, stream: Stream) -> None:
        self._enqueue("ncclSend", self._nccl.send, source.address, source.size_bytes, self._bytes, peer, stream=stream)

    def _recv(self, target: Operand, peer: int, stream: Stream) -> None:
        self._enqueue("ncclRecv", self._nccl.recv, target.address, target.size_bytes, self._bytes, peer, stream=stream)

    def _barrier(self, stream: Stream) -> None:
        facts = 1, self._types[DataType.INT32], self._operations[ReduceOp.SUM]
        address = self._token.address
        self._enqueue("ncclAllReduce", self._nccl.all_reduce, address, address, *facts, stream=stream)

    def _begin_group(self) -> None:
        with self.context.activated():
            self._called("ncclGroupStart", self._nccl.group_start)

    def _end_group(self, *, is_whole: bool) -> None:
        # NCCL has no call that drops a group.
        with self.context.activated():
            self._called("ncclGroupEnd", self._nccl.group_end)
            self._settle("ncclGroupEnd")

    def _end(self) -> None:
        with self.context.activated():
            if not self._reason:
                self._finish()
        self._token.close()

    def _finish(self) -> None:
        """Lets NCCL end what is under way, together with the other ranks; aborts where they do not."""
        try:
            self._called("ncclCommFinalize", lambda: self._nccl.comm_finalize(self._comm))
            self._settle("ncclCommFinalize")
            self._called("ncclCommDestroy", lambda: self._nccl.comm_destroy(self._comm))
            self._reason = "it is closed"
        except CommunicationError as error:
            self.abort(str(error))

    def _enqueue(self, name: str, call: Callable[..., object], *arguments: int, stream: Stream) -> None:
        with self.context.activated():
            self._called(name, lambda: call(*arguments, self._comm, stream.handle))
            if not self._is_grouped:
                self._settle(name)

    def _called(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._nccl.NCCLError as error:
            raise CommunicationError.at(name, expected="success", got=error) from error

    def _settle(self, name: str) -> None:
        """Waits until NCCL has taken a call over; its work in the stream is another matter."""
        busy = self._nccl.Result.InProgress
        self._poll(name, lambda: self._nccl.comm_get_async_error(self._comm) != busy)
