"""All-reduce, residual and RMS norm in one kernel: the end of a layer in tensor-parallel inference.

    s = sum over ranks of x + residual        y = s * weight / sqrt(average of s^2 + epsilon)

Each rank writes its rows of x into the memory of all others and adds up what it gets, in the order of the ranks, so
that every rank has the same bits. That is fastest for messages of up to about a megabyte; beyond, the links' bandwidth
counts, and ``Communicator.all_reduce`` sends less.
"""

from __future__ import annotations

from math import prod
from typing import Self

from lowdnn import checks
from lowdnn.backend import Handle
from lowdnn.distributed.communicator import Communicator
from lowdnn.distributed.peer_buffers import PeerBuffers
from lowdnn.engines.norm.all_reduce_norm import (
    FIRST_BUFFER,
    NEXT_RESIDUAL,
    RESIDUAL,
    WEIGHT,
    AllReduceNormProblem,
    X,
    Y,
)
from lowdnn.enums import DataType
from lowdnn.runtime.buffer import c_strides
from lowdnn.runtime.interchange import view_of
from lowdnn.runtime.loaded_plan import LoadedPlan
from lowdnn.runtime.process_bound import ProcessBound
from lowdnn.runtime.stream import Stream
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedLayoutError


class AllReduceNorm(ProcessBound):
    """Calls for up to ``rows`` rows of ``columns`` elements of FLOAT, HALF or BFLOAT16; all ranks make it together.

    timeout_s: as of ``PeerBuffers``, which it owns; ``close`` or ``with`` gives them back.
    Raises NotSupportedError and BadParamError, in the class that fits, for a size or a type that the kernel does not
    take, and what ``PeerBuffers`` raises.
    """

    def __init__(
        self,
        communicator: Communicator,
        handle: Handle,
        rows: int,
        columns: int,
        data_type: DataType,
        *,
        epsilon: float = 1e-5,
        timeout_s: float | None = None,
    ) -> None:
        where = "AllReduceNorm"
        self._problem = AllReduceNormProblem(
            communicator.size,
            checks.integer(rows, f"{where}.rows", 1),
            checks.integer(columns, f"{where}.columns", 1),
            checks.instance(data_type, DataType, f"{where}.data_type"),
            float(epsilon),
        )
        self._handle = handle
        self._plans: dict[int, LoadedPlan] = {}
        self._peers = PeerBuffers(
            communicator, self._problem.buffer_bytes, stream=handle.borrowed_stream(), timeout_s=timeout_s
        )
        self._addresses = {uid: one.address for uid, one in enumerate(self._peers.buffers, FIRST_BUFFER)}

    def prepare(self, rows: int) -> None:
        """Loads the kernel for so many rows, which no stream can capture; the first call does it, too."""
        if rows not in self._plans:
            runtime = self._handle.runtime
            self._plans[rows] = runtime.load(self._problem.plan(self._handle.arch, rows))

    def __call__(
        self,
        x: object,
        residual: object,
        weight: object,
        y: object,
        next_residual: object,
        *,
        stream: Stream | None = None,
    ) -> None:
        """Launches into ``stream``, by default the handle's; never waits, and can be captured.

        x, residual, y, next_residual: (rows, columns), packed, with the same rows on every rank; weight: (columns). y
        may be x, and next_residual residual. If a rank is missing, y is NaN and next_residual stays (``check``).
        """
        chosen = self._handle.borrowed_stream() if stream is None else stream
        rows = self._bind(X, "x", x, chosen)
        for uid, name, operand in (
            (RESIDUAL, "residual", residual),
            (Y, "y", y),
            (NEXT_RESIDUAL, "next_residual", next_residual),
        ):
            self._bind(uid, name, operand, chosen, rows)
        self._bind(WEIGHT, "weight", weight, chosen, 1)
        self.prepare(rows)
        self._plans[rows].execute(dict(self._addresses), stream=chosen.handle)

    def check(self, stream: Stream | None = None) -> None:
        """Waits for the stream, and raises CommunicationTimeoutError where a rank was missing."""
        self._peers.check(stream)

    def close(self) -> None:
        """Gives the buffers back once all ranks close theirs."""
        self._peers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, uid: int, name: str, operand: object, stream: Stream, wanted: int | None = None) -> int:
        """Notes the address of an operand, which must have ``wanted`` rows; the number of its rows."""
        where, problem = f"AllReduceNorm.{name}", self._problem
        view = view_of(operand, self._handle.runtime.context, stream.handle, where)
        if view.data_type is not problem.data_type:
            raise UnsupportedDataTypeError.at(where, expected=problem.data_type.name, got=view.data_type)
        shape = view.shape or ()
        if shape[-1:] != (problem.columns,):
            raise ShapeMismatchError.at(where, expected=f"(..., {problem.columns}) elements", got=shape)
        packed = zip(shape, c_strides(shape), view.strides or c_strides(shape), strict=True)
        if any(extent != 1 and stride != given for extent, stride, given in packed):
            raise UnsupportedLayoutError.at(where, expected="packed elements", got=f"strides {view.strides}")
        if view.is_read_only and uid in (Y, NEXT_RESIDUAL):
            raise BadParamError.at(where, expected="memory that may be written", got="a read-only array")
        rows = prod(shape[:-1])
        if wanted is not None and rows != wanted:
            raise ShapeMismatchError.at(where, expected=f"{wanted} rows", got=rows)
        self._addresses[uid] = view.address
        return rows
