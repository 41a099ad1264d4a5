"""A writer of the operations that take the place of another one."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.node_writer import NodeWriter
from lowdnn.ops.base import Operation, with_tensors
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.tensor import Tensor


class ExpansionWriter(NodeWriter):
    """A writer that may put a result into a given tensor (``give``)."""

    def __init__(self, first_uid: int) -> None:
        super().__init__(first_uid=first_uid)
        self._given: dict[int, Tensor] = {}

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations so far, on the given tensors."""
        return tuple(with_tensors(op, self._given) for op in self._operations)

    def give(self, made: Tensor, given: Tensor) -> None:
        """Puts ``given`` in place of ``made`` in all operations."""
        self._given[made.uid] = given

    def index(self, x: Tensor, axis: int, dims: tuple[int, ...] | None = None) -> Tensor:
        """The index along ``axis`` of each element of ``x``, or of ``x`` broadcast to ``dims``, in INT32."""
        return self.pointwise(Pointwise(PointwiseMode.GEN_INDEX, DataType.INT32, axis=axis), x, dims=dims)

    def compared(self, mode: PointwiseMode, left: Tensor, right: Tensor) -> Tensor:
        """``left mode right`` of integers, in BOOLEAN."""
        return self.pointwise(mode, left, right, compute_type=DataType.INT32, virtual=DataType.BOOLEAN)

    def existing(self, x: Tensor, lengths: Tensor, zero: Tensor) -> Tensor:
        """``x`` (batch, heads, rows, size) with zeros in the rows from ``lengths``, (batch, 1, 1, 1), on."""
        row = self.index(zero, 2, (1, 1, x.dims[2], 1))
        exists = self.compared(PointwiseMode.CMP_LT, row, lengths)
        select = Pointwise(PointwiseMode.BINARY_SELECT, zero.data_type)
        return self.pointwise(select, x, zero, exists, virtual=x.data_type)

    def stats_of_weights(self, stats: Tensor) -> Tensor:
        """``stats`` with infinity in place of minus infinity, so that exponents of rows without keys are minus
        infinity, and never the difference of two infinities."""
        lowest, highest = (self.constant(4, DataType.FLOAT, value) for value in (-inf, inf))
        has_keys = self.pointwise(PointwiseMode.CMP_NEQ, stats, lowest, virtual=DataType.BOOLEAN)
        return self.pointwise(PointwiseMode.BINARY_SELECT, stats, highest, has_keys)

    def before_all(self, lengths: Mapping[int, Tensor], dims: tuple[int, ...]) -> Tensor:
        """Whether the indices of ``dims`` along axes are below the lengths there, in BOOLEAN."""
        seen: Tensor | None = None
        for axis, length in lengths.items():
            along = tuple(extent if axis == one else 1 for one, extent in enumerate(dims))
            index = self.index(self.constant(len(dims), DataType.FLOAT, 0.0), axis, along)
            below = self.compared(PointwiseMode.CMP_LT, index, length)
            kind = DataType.BOOLEAN
            seen = below if seen is None else self.pointwise(PointwiseMode.LOGICAL_AND, seen, below, compute_type=kind)
        assert seen is not None
        return seen

    def sink_gradient(self, sink: Tensor, stats: Tensor, total: Tensor, lengths: Tensor | None) -> Tensor:
        """The gradient of ``sink`` (1, heads, 1, 1): minus the sum over batches and queries before ``lengths`` of the
        sink's weight times ``total``, the sum of d_o * o of each query."""
        weight = self.pointwise(PointwiseMode.EXP, self.pointwise(PointwiseMode.SUB, sink, stats))
        terms = self.pointwise(PointwiseMode.MUL, self.pointwise(PointwiseMode.NEG, weight), total)
        if lengths is not None:
            terms = self.existing(terms, lengths, self.constant(4, DataType.FLOAT, 0.0))
        return self.reduction(ReduceTensorOp.ADD, terms, (0, 2))

    def moved(self, index: Tensor, *terms: tuple[int, Tensor | None]) -> Tensor:
        """``index`` plus the sum of sign * number over the terms (sign, number) that are not None."""
        for sign, number in terms:
            if number is not None:
                mode = PointwiseMode.ADD if sign > 0 else PointwiseMode.SUB
                index = self.pointwise(mode, index, number, compute_type=DataType.INT32)
        return index
