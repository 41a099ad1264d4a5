"""Pointwise operations of a graph, written again for the inside of another operation (``ops.subgraph``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.product_operands import is_plain, lengths_seen
from lowdnn.ops.base import inputs_of, with_tensors
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation, output_dims
from lowdnn.ops.subgraph import InnerOperation
from lowdnn.ops.tensor import Tensor


class InnerWriter:
    """Writes the operations that compute tensors of ``graph`` again, on new virtual tensors.

    dims: the tensors' dims; they may have extents of 1 instead.  indexed: the operand of GEN_INDEX, whose values do not
    count.  given: tensors by the uids of those that they replace.
    lengths: by axis; elements past them do not count, so that operations which select something there are left out.
    outside: uids of tensors whose operations are not written.
    """

    def __init__(
        self,
        graph: OperationGraph,
        builder: ExpansionWriter,
        dims: tuple[int, ...],
        indexed: Tensor,
        given: Mapping[int, Tensor],
        lengths: Mapping[int, Tensor],
        outside: Collection[int],
    ) -> None:
        self._graph = graph
        self._builder = builder
        self._dims = dims
        self._indexed = indexed
        self._known = dict(given)
        self._lengths = {axis: length.uid for axis, length in lengths.items()}
        self._outside = outside
        self.operations: list[InnerOperation] = []

    def made(self, tensor: Tensor) -> Tensor:
        """``tensor`` as the written operations make it; itself where it comes from outside."""
        if tensor.uid not in self._known:
            self._known[tensor.uid] = self._written(tensor)
        return self._known[tensor.uid]

    def read_from_outside(self) -> frozenset[int]:
        """The uids of the tensors that the written operations read and none of them writes."""
        made = {op.output.uid for op in self.operations}
        return frozenset(t.uid for op in self.operations for t in inputs_of(op).values() if t.uid not in made)

    def pointwise(self, like: PointwiseOperation, **operands: Tensor) -> Tensor:
        """The result of ``like`` for other operands."""
        output = self._virtual(like.output)
        ports = {port: operands.get(port, getattr(like, port)) for port in ("x", "b", "t")}
        self.operations.append(PointwiseOperation(like.pointwise, **ports, y=output))
        return output

    def sum(self, x: Tensor, b: Tensor) -> Tensor:
        return self._applied(PointwiseMode.ADD, x, b)

    def product(self, x: Tensor, b: Tensor) -> Tensor:
        return self._applied(PointwiseMode.MUL, x, b)

    def is_behind_lengths(self, operation: PointwiseOperation) -> bool:
        """Whether it selects something behind lengths alone."""
        if not is_plain(operation, PointwiseMode.BINARY_SELECT):
            return False
        seen = lengths_seen(self._graph, operation.operands["t"], operation.output.dims)
        return seen is not None and all(self._lengths.get(axis) == length.uid for axis, length in seen.items())

    def _written(self, tensor: Tensor) -> Tensor:
        operation = self._graph.producer(tensor)
        if tensor.uid in self._outside or not isinstance(operation, InnerOperation) or not self._fits(tensor):
            return tensor
        if isinstance(operation, PointwiseOperation):
            if self.is_behind_lengths(operation):
                return self.made(operation.operands["x"])
            if operation.mode is PointwiseMode.GEN_INDEX and tensor.dims == self._dims:
                return self.pointwise(operation, x=self._indexed)
        operands = {x.uid: self.made(x) for x in inputs_of(operation).values()}
        output = self._virtual(tensor)
        self.operations.append(with_tensors(operation, operands | {tensor.uid: output}))
        return output

    def _applied(self, mode: PointwiseMode, x: Tensor, b: Tensor) -> Tensor:
        """``x mode b`` in FLOAT."""
        dims = output_dims({"x": x.dims, "b": b.dims})
        y = self._builder.tensor(dims, DataType.FLOAT, is_virtual=True)
        self.operations.append(PointwiseOperation(Pointwise(mode, DataType.FLOAT), x=x, b=b, y=y))
        return y

    def _fits(self, tensor: Tensor) -> bool:
        if tensor.rank != len(self._dims):
            return False
        return all(own in (1, extent) for own, extent in zip(tensor.dims, self._dims, strict=True))

    def _virtual(self, like: Tensor) -> Tensor:
        return self._builder.tensor(like.dims, like.data_type, is_virtual=True, name=like.name)
