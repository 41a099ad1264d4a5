"""Operands and results of matrix products behind views, conversions and the zeros past lengths.

Products of sequences of several lengths have zeros in place of operands' elements from a length on, and of their
results':

    y = index < length ? x : 0        index: GEN_INDEX along an axis; length: one number for each batch
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, ReshapeMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, outputs_of
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.sdpa import INDEX_TYPES
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.transpose import Transpose

#: The permutation of the last two axes of four.
EXCHANGED = (0, 1, 3, 2)


@dataclass(frozen=True)
class Operand:
    """An operand of four axes: ``base``, with the last two axes exchanged where it ``is_transposed``.

    lengths: by axis of the operand, the tensor of the lengths behind which it has zeros.  types: the data types of the
    tensors between ``base`` and the operand.
    """

    base: Tensor
    is_transposed: bool = False
    lengths: Mapping[int, Tensor] = field(default_factory=dict)
    types: frozenset[DataType] = frozenset()

    @property
    def exchanged(self) -> Operand:
        """The transposed operand, without lengths."""
        return Operand(self.base, not self.is_transposed, types=self.types)

    def is_view_of(self, other: Operand) -> bool:
        """Whether both have the same elements in the same places, lengths apart."""
        return (self.base.uid, self.is_transposed) == (other.base.uid, other.is_transposed)


def operand_of(graph: OperationGraph, tensor: Tensor) -> Operand:
    """``tensor`` as views, conversions and zeros behind lengths make it."""
    lengths: dict[int, Tensor] = {}
    types: set[DataType] = set()
    is_transposed = False
    while (producer := graph.producer(tensor)) is not None:
        cut = length_cut(graph, producer)
        if cut is not None:
            axis = EXCHANGED[cut.axis] if is_transposed else cut.axis
            if axis in lengths:
                break
            lengths[axis] = cut.length
            x = cut.x
        elif (exchanged := exchanged_of(producer)) is not None:
            is_transposed, x = not is_transposed, exchanged
        elif isinstance(producer, PointwiseOperation) and is_plain(producer, PointwiseMode.IDENTITY):
            x = producer.operands["x"]
        else:
            break
        types.add(tensor.data_type)
        tensor = x
    return Operand(tensor, is_transposed, lengths, frozenset(types))


@dataclass(frozen=True)
class LengthCut:
    """x with zeros behind ``length`` along ``axis``."""

    x: Tensor
    axis: int
    length: Tensor


def length_cut(graph: OperationGraph, operation: Operation) -> LengthCut | None:
    """The operation as one that puts zeros behind lengths, or None."""
    if not isinstance(operation, PointwiseOperation) or not is_plain(operation, PointwiseMode.BINARY_SELECT):
        return None
    if operation.operands["b"].constant_value != 0:
        return None
    lengths = lengths_seen(graph, operation.operands["t"], operation.output.dims)
    if lengths is None or len(lengths) != 1:
        return None
    ((axis, length),) = lengths.items()
    return LengthCut(operation.operands["x"], axis, length)


def lengths_seen(graph: OperationGraph, seen: Tensor, dims: tuple[int, ...]) -> dict[int, Tensor] | None:
    """By axis, the lengths below which indices of ``dims`` are where ``seen`` is true, and nowhere else.

    None where something else makes ``seen`` true or false.
    """
    producer = graph.producer(seen)
    if not isinstance(producer, PointwiseOperation):
        return None
    operands = producer.operands
    if producer.mode is PointwiseMode.LOGICAL_AND:
        left, right = (lengths_seen(graph, operands[port], dims) for port in ("x", "b"))
        return None if left is None or right is None or not left.keys().isdisjoint(right) else left | right
    index = graph.producer(operands["x"])
    if producer.mode is not PointwiseMode.CMP_LT or (producer.alpha1, producer.alpha2) != (1.0, 1.0):
        return None
    if not isinstance(index, PointwiseOperation) or index.mode is not PointwiseMode.GEN_INDEX:
        return None
    axis, length, kinds = index.pointwise.axis, operands["b"], (*INDEX_TYPES, DataType.BOOLEAN)
    are_integers = {index.output.data_type, length.data_type} <= set(INDEX_TYPES)
    are_integers = are_integers and producer.pointwise.compute_type in kinds
    if not are_integers or length.dims[1:] != (1, 1, 1) or index.output.dims[axis] != dims[axis]:
        return None
    return {axis: length}


def exchanged_of(operation: Operation) -> Tensor | None:
    """The tensor whose last two of four axes ``operation`` exchanges; None where it does something else."""
    if isinstance(operation, Transpose) and operation.permutation == EXCHANGED:
        return operation.x
    if not isinstance(operation, Reshape) or operation.mode is not ReshapeMode.VIEW_ONLY or operation.x.rank != 4:
        return None
    x, y = operation.x, operation.y
    views = ((x.dims, y.dims), (x.strides, y.strides))
    return x if all(of_y == tuple(of_x[axis] for axis in EXCHANGED) for of_x, of_y in views) else None


def is_index(operation: Operation) -> bool:
    """Whether it makes indices, for which no value of its operand counts."""
    return isinstance(operation, PointwiseOperation) and operation.mode is PointwiseMode.GEN_INDEX


def is_plain(operation: PointwiseOperation, mode: PointwiseMode) -> bool:
    """Whether it is of ``mode``, in FLOAT, without factors."""
    is_exact = operation.pointwise.compute_type is DataType.FLOAT
    return operation.mode is mode and is_exact and (operation.alpha1, operation.alpha2) == (1.0, 1.0)


def result_of(graph: OperationGraph, product: Tensor, length: Tensor | None, heads: int) -> Tensor | None:
    """The tensor that ``product`` (batch, heads, rows, size) becomes: with zeros in the rows behind ``length``, summed
    over neighbouring heads to ``heads`` of them, and converted where it is virtual. None where a step is missing.
    """
    found: Tensor | None = product
    if length is not None:
        found = _cut_rows(graph, product, length)
    if found is not None and found.dims[1] != heads:
        found = _summed(graph, found, heads)
    while found is not None and found.is_virtual and len(readers := graph.consumers(found)) == 1:
        reader = readers[0]
        if not isinstance(reader, PointwiseOperation) or not is_plain(reader, PointwiseMode.IDENTITY):
            break
        if not dtypes.holds(found.data_type, reader.output.data_type):
            break
        found = reader.output
    return found


def is_sum(operation: Operation) -> TypeGuard[ReductionOperation]:
    """Whether it adds up in FLOAT."""
    kind = operation.reduction if isinstance(operation, ReductionOperation) else None
    return kind is not None and (kind.operator, kind.compute_type) == (ReduceTensorOp.ADD, DataType.FLOAT)


def _cut_rows(graph: OperationGraph, product: Tensor, length: Tensor) -> Tensor | None:
    """``product`` with zeros in the rows behind ``length``, where an operation puts them there."""
    for reader in graph.consumers(product):
        cut = length_cut(graph, reader)
        if cut is not None and (cut.x.uid, cut.axis, cut.length.uid) == (product.uid, 2, length.uid):
            return next(iter(outputs_of(reader).values()))
    return None


def _summed(graph: OperationGraph, product: Tensor, heads: int) -> Tensor | None:
    """The sum of ``product`` over neighbouring heads, of which ``heads`` are left, where operations form it."""
    batch, all_heads, rows, size = product.dims
    if heads == 1 and (whole := _sum_over(graph, product, (1,))) is not None:
        return whole
    groups = (batch, heads, all_heads // heads, rows, size)
    for grouped in _reshaped(graph, product, groups):
        summed = _sum_over(graph, grouped, (2,))
        results = () if summed is None else _reshaped(graph, summed, (batch, heads, rows, size))
        if results:
            return results[0]
    return None


def _reshaped(graph: OperationGraph, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The results of operations that give ``x`` the dims ``dims``, its elements in their order."""
    reshapes = (op for op in graph.consumers(x) if isinstance(op, Reshape) and op.mode is ReshapeMode.LOGICAL)
    return tuple(op.y for op in reshapes if op.y.dims == dims)


def _sum_over(graph: OperationGraph, x: Tensor, axes: tuple[int, ...]) -> Tensor | None:
    return next((op.y for op in graph.consumers(x) if is_sum(op) and op.axes == axes), None)
