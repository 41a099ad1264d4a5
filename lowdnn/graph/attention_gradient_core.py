"""The core of attention's gradients in a graph: its two products of (B, H, S_q, S_kv), and what makes
weights and gradients of scores of them,

    weights = exp(masked(scores(q k^T) - stats))        d_scores = weights * (factors * (d_o v^T) - d)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.product_operands import Operand, is_index, is_plain, is_sum, operand_of
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor

QUERY, KEY = 2, 3
FLOAT = DataType.FLOAT


@dataclass(frozen=True)
class Core:
    """The operations of one attention around its weights.

    first, second: the products q k^T and d_o v^T.  difference: scores - stats.  masks: behind it, the last one first.
    weights: their exponential.  centred: dp - d.  d_scores: weights times that.  total: the sum of d_o * o.
    """

    first: MatmulOperation
    difference: PointwiseOperation
    masks: tuple[PointwiseOperation, ...]
    weights: PointwiseOperation
    second: MatmulOperation
    total: Tensor
    centred: PointwiseOperation
    d_scores: PointwiseOperation


def is_exponential(operation: Operation) -> TypeGuard[PointwiseOperation]:
    """Whether it may make weights."""
    if not isinstance(operation, PointwiseOperation) or not is_plain(operation, PointwiseMode.EXP):
        return False
    return operation.output.rank == 4


def core_of(graph: OperationGraph, weights: PointwiseOperation) -> Core | None:
    masks: list[PointwiseOperation] = []
    step = graph.producer(weights.operands["x"])
    while isinstance(step, PointwiseOperation) and is_plain(step, PointwiseMode.BINARY_SELECT):
        masks.append(step)
        step = graph.producer(step.operands["x"])
    if not isinstance(step, PointwiseOperation) or not is_plain(step, PointwiseMode.SUB):
        return None
    stats, dims = step.operands["b"], weights.output.dims
    if stats.dims != (*dims[:3], 1) or step.output.dims != dims or stats.is_scalar_value:
        return None
    first = _product_before(graph, step)
    for d_scores in graph.consumers(weights.output):
        centred = other_maker(graph, d_scores, weights.output, PointwiseMode.SUB)
        second = None if centred is None else _product_before(graph, centred)
        sums = () if centred is None else _sums_before(graph, centred.operands["b"])
        if first and second and centred and len(sums) == 1 and isinstance(d_scores, PointwiseOperation):
            return Core(first, step, tuple(masks), weights, second, sums[0], centred, d_scores)
    return None


def _product_before(graph: OperationGraph, operation: PointwiseOperation) -> MatmulOperation | None:
    """The one product from which pointwise operations compute x of ``operation``, if its result has x's dims."""
    x = operation.operands["x"]
    products = [op for op in _behind_pointwise(graph, x) if isinstance(op, MatmulOperation)]
    return products[0] if len(products) == 1 and products[0].c.dims == x.dims else None


def _behind_pointwise(graph: OperationGraph, tensor: Tensor) -> tuple[Operation, ...]:
    """The other operations from whose results pointwise operations compute ``tensor``."""
    found: dict[int, Operation] = {}
    waiting, seen = [tensor], {tensor.uid}
    while waiting:
        maker = graph.producer(waiting.pop())
        if isinstance(maker, PointwiseOperation):
            new = [x for x in maker.operands.values() if x.uid not in seen]
            seen.update(x.uid for x in new)
            waiting += new
        elif maker is not None:
            found[id(maker)] = maker
    return tuple(found.values())


def other_maker(
    graph: OperationGraph, product: Operation, factor: Tensor, mode: PointwiseMode
) -> PointwiseOperation | None:
    """The operation of ``mode`` that computes the other factor of ``product``; None where there is none."""
    if not isinstance(product, PointwiseOperation) or not is_plain(product, PointwiseMode.MUL):
        return None
    others = [tensor for tensor in product.operands.values() if tensor.uid != factor.uid]
    maker = graph.producer(others[0]) if len(others) == 1 else None
    return maker if isinstance(maker, PointwiseOperation) and is_plain(maker, mode) else None


def _sums_before(graph: OperationGraph, centres: Tensor) -> tuple[Tensor, ...]:
    makers = _behind_pointwise(graph, centres)
    return tuple(op.y for op in makers if is_sum(op) and op.axes == (KEY,))


def dependent_on(graph: OperationGraph, operation: Operation) -> frozenset[int]:
    """The uids of the operation's results, and of all that are computed from them without another product between.

    Indices do not depend on values.
    """
    found = {tensor.uid for tensor in outputs_of(operation).values()}
    for op in graph.operations:
        is_apart = is_index(op) or isinstance(op, MatmulOperation)
        if not is_apart and any(tensor.uid in found for tensor in inputs_of(op).values()):
            found.update(tensor.uid for tensor in outputs_of(op).values())
    return frozenset(found)


@dataclass(frozen=True)
class Product:
    """A product and its operands."""

    operation: MatmulOperation
    a: Operand
    b: Operand

    @staticmethod
    def of(graph: OperationGraph, operation: MatmulOperation) -> Product:
        return Product(operation, operand_of(graph, operation.a), operand_of(graph, operation.b))

    def reads(self, a: Tensor | None, b: Tensor | None) -> bool:
        """Whether its operands have zeros past these lengths where the sums run, and nowhere else."""
        return all(
            {axis: length.uid for axis, length in operand.lengths.items()} == ({} if own is None else {at: own.uid})
            for operand, own, at in ((self.a, a, KEY), (self.b, b, QUERY))
        )

    def is_exact(self, own: DataType) -> bool:
        """Whether it is in FLOAT, of operands in FLOAT or ``own`` alone."""
        types = {self.a.base.data_type, self.b.base.data_type, *self.a.types, *self.b.types}
        return self.operation.matmul.compute_type is FLOAT and types <= {FLOAT, own}
