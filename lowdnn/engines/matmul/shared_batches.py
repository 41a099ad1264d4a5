"""Matrices that groups of batches share, as batch axes over which they are broadcast.

If one operand of a product has n / g batches and the other has n, each matrix of the first serves g of them. Their
batch axis becomes two, n / g and g, and the operand has extent 1 along the second; the tensors of the prologue and
epilogue are split likewise. Only the tensors' dims and strides change, not their contents in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowdnn.enums import DIM_MAX, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, match_anchored
from lowdnn.ops.base import Operation, with_tensors
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.tensor import Tensor

#: (Matrices, batches that share one) by batch axis.
_Splits = Mapping[int, tuple[int, int]]


def split_batches(graph: OperationGraph) -> OperationGraph | str:
    """``graph`` with the batch axes of its product split where matrices are shared, or why they cannot be.

    It is unchanged if no matrices are shared, or if it does not have exactly one product.
    """
    return graph.derive(_split_batches)


def match_matmul(graph: OperationGraph) -> Anchored[MatmulOperation] | str:
    """``split_batches(graph)`` as one product with a pointwise epilogue, or why it is not one."""
    split = split_batches(graph)
    return split if isinstance(split, str) else match_anchored(split, MatmulOperation)


def _split_batches(graph: OperationGraph) -> OperationGraph | str:
    products = [op for op in graph.operations if isinstance(op, MatmulOperation)]
    splits = _splits(products[0]) if len(products) == 1 else {}
    if not splits:
        return graph
    rank = products[0].c.rank
    if rank + len(splits) > DIM_MAX:
        return f"matmul.c.dims: expected at most {DIM_MAX - len(splits)} axes where batches share matrices, got {rank}"
    views: dict[int, Tensor] = {}
    for tensor in graph.tensors.values():
        view = _view(tensor, rank, splits)
        if isinstance(view, str):
            return view
        views[tensor.uid] = view
    operations: list[Operation] = []
    for op in graph.operations:
        found = _operation(op, views, splits)
        if isinstance(found, str):
            return found
        operations.append(found)
    return OperationGraph(operations)


def _splits(product: MatmulOperation) -> _Splits:
    pairs = enumerate(zip(product.a.dims[:-2], product.b.dims[:-2], strict=True))
    return {
        axis: (min(extents), max(extents) // min(extents))
        for axis, extents in pairs
        if extents[0] != extents[1] and 1 not in extents
    }


def _view(tensor: Tensor, rank: int, splits: _Splits) -> Tensor | str:
    if tensor.element_count == 1 and tensor.rank != rank:
        return tensor
    if tensor.rank != rank:
        return f"{tensor.label}.dims: expected {rank} axes as the product has, or one element, got {list(tensor.dims)}"
    dims: list[int] = []
    strides: list[int] = []
    for axis, (extent, stride) in enumerate(zip(tensor.dims, tensor.strides, strict=True)):
        if axis not in splits:
            dims.append(extent)
            strides.append(stride)
            continue
        matrices, sharing = splits[axis]
        inner = {1: 1, matrices: 1, matrices * sharing: sharing}.get(extent)
        if inner is None:
            return f"{tensor.label}.dims[{axis}]: expected 1, {matrices} or {matrices * sharing}, got {extent}"
        dims += (extent // inner, inner)
        strides += (inner * stride, stride)
    return replace(tensor, dims=tuple(dims), strides=tuple(strides))


def _operation(op: Operation, views: Mapping[int, Tensor], splits: _Splits) -> Operation | str:
    if not isinstance(op, MatmulOperation | PointwiseOperation | ReductionOperation):
        return (
            "operations: expected pointwise operations and reductions with a product whose batches share matrices, "
            f"got {type(op).__name__}"
        )
    viewed = with_tensors(op, views)
    if not isinstance(viewed, PointwiseOperation) or viewed.mode is not PointwiseMode.GEN_INDEX:
        return viewed
    axis = viewed.pointwise.axis
    if axis in splits:
        return f"pointwise.axis: expected no index along batches that share matrices, got axis {axis}"
    shifted = axis + sum(split < axis for split in splits)
    return replace(viewed, pointwise=replace(viewed.pointwise, axis=shifted))
