"""The gradient of a bias past the lengths of sequences, where a graph writes attention's gradients as products.

The products are 0 there. A mask replaces such scores by a number. Their weights are 0 only where it is minus infinity,
which a graph need not say: the number may be given at execute.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.attention_gradient_core import Core
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.inner_writer import InnerWriter
from lowdnn.graph.product_operands import is_index, length_cut
from lowdnn.ops.base import outputs_of
from lowdnn.ops.tensor import Tensor


def bias_gradient_behind(
    graph: OperationGraph,
    builder: ExpansionWriter,
    core: Core,
    lengths: Mapping[int, Tensor],
    scores: Tensor,
    ds: Tensor,
    axes: tuple[int, ...],
) -> Tensor:
    """The sum over ``axes`` of gradients ``ds`` of scores past ``lengths``, as operations of ``builder``."""
    zero = builder.constant(4, DataType.FLOAT, 0.0)
    stats = core.difference.operands["b"]
    zeros = (scores, core.first.c, core.second.c, core.centred.operands["x"])
    given = {tensor.uid: zero for tensor in zeros} | {stats.uid: builder.stats_of_weights(stats)}
    writer = InnerWriter(graph, builder, ds.dims, zero, given, {}, ())
    values = writer.made(ds)
    for op in writer.operations:
        builder.add(op)
    seen = builder.before_all(lengths, ds.dims)
    behind = builder.pointwise(PointwiseMode.BINARY_SELECT, zero, values, seen)
    return builder.reduction(ReduceTensorOp.ADD, behind, axes) if axes else behind


def is_cut_behind(graph: OperationGraph, product: Tensor, lengths: Mapping[int, Tensor]) -> bool:
    """Whether all that reads ``product`` has zeros past ``lengths``."""
    left = dict(lengths)
    while left:
        readers = [op for op in graph.consumers(product) if not is_index(op)]
        cut = length_cut(graph, readers[0]) if len(readers) == 1 else None
        if cut is None or cut.axis not in left or left.pop(cut.axis).uid != cut.length.uid:
            return False
        product = next(iter(outputs_of(readers[0]).values()))
    return True
