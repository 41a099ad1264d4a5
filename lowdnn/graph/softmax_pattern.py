"""The gradient of softmax in a graph: a sum over rows between pointwise operations,

dx = (dy - sum of dy * y) * y        or, of its logarithm,        dx = dy - exp(y) * sum of dy
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.graph.row_pattern import surroundings
from lowdnn.ops.base import Operation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.tensor import Tensor

_COMPUTE_TYPES = (DataType.FLOAT, DataType.DOUBLE)


@dataclass(frozen=True)
class SoftmaxGradient:
    """y: an input of the graph.  before: over y's dims; its result is dy.  after: its anchor is dx."""

    y: Tensor
    axes: tuple[int, ...]
    is_log: bool
    compute_type: DataType
    before: PointwiseDag
    after: PointwiseDag


def match_softmax_gradient(graph: OperationGraph) -> SoftmaxGradient | str:
    """The graph as one gradient with pointwise operations before dy and behind dx, or why it is not one."""
    sums = [op for op in graph.operations if isinstance(op, ReductionOperation)]
    if len(sums) != 1:
        return f"operations: expected one Softmax, or one sum in its gradient, got {len(sums)} reductions"
    total = sums[0]
    core = _gradient(graph, total) or _log_gradient(graph, total)
    if core is None:
        return "operations: expected dx = (dy - sum of dy * y) * y or dx = dy - exp(y) * sum of dy, got others"
    if graph.producer(core.y) is not None or core.y.is_scalar_value or core.y.dims != core.dy.dims:
        return f"y: expected an input of the graph with the dims of dy, got {core.y.label}"
    around = surroundings(graph, core.operations, core.dy, core.dx)
    if isinstance(around, str):
        return around
    before, behind = around
    after = dag_of(core.dx.dims, behind, anchor=core.dx)
    return SoftmaxGradient(core.y, total.axes, core.is_log, total.reduction.compute_type, before, after)


@dataclass(frozen=True)
class _Core:
    """The operations of the gradient itself."""

    operations: tuple[Operation, ...]
    y: Tensor
    dy: Tensor
    dx: Tensor
    is_log: bool


def _gradient(graph: OperationGraph, total: ReductionOperation) -> _Core | None:
    product = _made_by(graph, total.x, PointwiseMode.MUL, total)
    difference = _reader(graph, total.y, PointwiseMode.SUB, total)
    if product is None or difference is None:
        return None
    result = _reader(graph, difference.output, PointwiseMode.MUL, total)
    if result is None:
        return None
    dy, y = difference.operands["x"], _other(result, difference.output)
    if y is None or {t.uid for t in product.operands.values()} != {dy.uid, y.uid} or dy.uid == total.y.uid:
        return None
    return _Core((total, product, difference, result), y, dy, result.output, is_log=False)


def _log_gradient(graph: OperationGraph, total: ReductionOperation) -> _Core | None:
    product = _reader(graph, total.y, PointwiseMode.MUL, total)
    shares = None if product is None else _other(product, total.y)
    exponential = None if shares is None else _made_by(graph, shares, PointwiseMode.EXP, total)
    if product is None or exponential is None:
        return None
    result = _reader(graph, product.output, PointwiseMode.SUB, total)
    if result is None or result.operands["x"].uid != total.x.uid:
        return None
    y = exponential.operands["x"]
    return _Core((total, product, exponential, result), y, total.x, result.output, is_log=True)


def _made_by(
    graph: OperationGraph, tensor: Tensor, mode: PointwiseMode, total: ReductionOperation
) -> PointwiseOperation | None:
    """The operation of ``mode`` that makes ``tensor`` for one reader alone, in the arithmetic of ``total``."""
    producer = graph.producer(tensor)
    if len(graph.consumers(tensor)) != 1 or not _is_exact(tensor, total):
        return None
    return producer if isinstance(producer, PointwiseOperation) and _is_plain(producer, mode, total) else None


def _reader(
    graph: OperationGraph, tensor: Tensor, mode: PointwiseMode, total: ReductionOperation
) -> PointwiseOperation | None:
    """The one operation that reads ``tensor``, if it is of ``mode`` and in the arithmetic of ``total``."""
    readers = graph.consumers(tensor)
    if len(readers) != 1 or not _is_exact(tensor, total):
        return None
    return readers[0] if isinstance(readers[0], PointwiseOperation) and _is_plain(readers[0], mode, total) else None


def _is_exact(tensor: Tensor, total: ReductionOperation) -> bool:
    """Whether a kernel that computes without storing ``tensor`` gives what the graph says."""
    return tensor.is_virtual and tensor.data_type is total.reduction.compute_type


def _is_plain(operation: PointwiseOperation, mode: PointwiseMode, total: ReductionOperation) -> bool:
    arithmetic = total.reduction
    is_sum = arithmetic.operator is ReduceTensorOp.ADD and arithmetic.compute_type in _COMPUTE_TYPES
    is_same = operation.pointwise.compute_type is arithmetic.compute_type
    return is_sum and is_same and operation.mode is mode and (operation.alpha1, operation.alpha2) == (1.0, 1.0)


def _other(operation: PointwiseOperation, tensor: Tensor) -> Tensor | None:
    """The operand beside ``tensor``."""
    others = [operand for operand in operation.operands.values() if operand.uid != tensor.uid]
    return others[0] if len(others) == 1 else None
