"""A convolution that reads each pixel once, as the matrix product that it is.

    forward          y (n, pixels, k)  = x (n, pixels, c) * w (1, c, k)
    data gradient    dx (n, pixels, c) = dy (n, pixels, k) * w (1, k, c)
    filter gradient  dw (1, k, c)      = dy (1, k, all pixels) * x (1, all pixels, c)

Only the tensors' dims and strides change: what lies in memory is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

from lowdnn.engines.matmul.shared_batches import split_batches
from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import AnchoredWithExits, match_anchored_with_exits
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides

_View = Callable[[Tensor], Tensor | str]


def as_matmul(graph: OperationGraph) -> OperationGraph | str:
    """``graph`` with its convolutions as matrix products, or why one is none.

    Of a graph without any, the batch axes are split where they share matrices (``shared_batches``).
    """
    return graph.derive(_as_matmul)


def match_product(graph: OperationGraph) -> AnchoredWithExits[MatmulOperation] | str:
    """``as_matmul(graph)`` as one product with a pointwise epilogue and exits, or why it is none."""
    product = as_matmul(graph)
    return product if isinstance(product, str) else match_anchored_with_exits(product, MatmulOperation)


def _as_matmul(graph: OperationGraph) -> OperationGraph | str:
    convolutions = [op for op in graph.operations if isinstance(op, ConvolutionOperation)]
    if not convolutions:
        return split_batches(graph)
    gives_filter = any(isinstance(op, ConvolutionBackwardFilter) for op in convolutions)
    view_of = cache(_filter if gives_filter else _pixels)
    operations: list[Operation] = []
    for op in graph.operations:
        found = _product(op) if isinstance(op, ConvolutionOperation) else _pointwise(op, view_of)
        if isinstance(found, str):
            return found
        operations.append(found)
    return OperationGraph(operations)


def _product(op: ConvolutionOperation) -> Operation | str:
    geometry, taps = op.convolution, op.filter.dims[2:]
    pads = (*geometry.pre_paddings, *geometry.post_paddings)
    if {*taps, *geometry.strides} != {1} or any(pads) or op.groups != 1:
        got = f"taps {list(taps)}, strides {list(geometry.strides)}, groups {op.groups}, padding {list(pads)}"
        return f"convolution: expected one tap, stride 1, no padding and one group, got {got}"
    if (op.alpha, op.beta) != (1.0, 0.0):
        return f"{op.label}.alpha, beta: expected 1 and 0, got {op.alpha} and {op.beta}"
    gives_filter = isinstance(op, ConvolutionBackwardFilter)
    view_of = _all_pixels if gives_filter else _pixels
    image, weights, response = view_of(op.image), _filter(op.filter), view_of(op.response)
    if isinstance(image, str):
        return image
    if isinstance(response, str):
        return response
    matmul = Matmul(geometry.compute_type)
    if gives_filter:
        return MatmulOperation(matmul, a=_transposed(response), b=image, c=weights)
    if isinstance(op, ConvolutionForward):
        return MatmulOperation(matmul, a=image, b=_transposed(weights), c=response)
    return MatmulOperation(matmul, a=response, b=weights, c=image)


def _pointwise(op: Operation, view_of: _View) -> PointwiseOperation | str:
    if not isinstance(op, PointwiseOperation) or op.mode is PointwiseMode.GEN_INDEX:
        return (
            f"operations: expected pointwise operations with the convolution, none GEN_INDEX, got {type(op).__name__}"
        )
    views: dict[str, Any] = {}
    for port, tensor in (inputs_of(op) | outputs_of(op)).items():
        view = view_of(tensor)
        if isinstance(view, str):
            return view
        views[port] = view
    return replace(op, **views)


def _pixels(tensor: Tensor) -> Tensor | str:
    """``tensor`` as (batch, pixels, channels); a number, of one dimension, stays one."""
    if tensor.rank == 1:
        return tensor
    batch, channels, *spatial = tensor.dims
    dims = (batch, prod(spatial), channels)
    if tensor.is_virtual:
        return replace(tensor, dims=dims, strides=packed_strides(dims))
    pixel_stride = merged_stride(tensor, range(2, tensor.rank))
    if isinstance(pixel_stride, str):
        return pixel_stride
    return replace(tensor, dims=dims, strides=(tensor.strides[0], pixel_stride, tensor.strides[1]))


def _all_pixels(tensor: Tensor) -> Tensor | str:
    """``tensor`` as (1, pixels of all images, channels)."""
    pixel_stride = merged_stride(tensor, (0, *range(2, tensor.rank)))
    if isinstance(pixel_stride, str):
        return pixel_stride
    dims = (1, prod((tensor.dims[0], *tensor.dims[2:])), tensor.dims[1])
    return replace(tensor, dims=dims, strides=(tensor.element_count, pixel_stride, tensor.strides[1]))


def _filter(tensor: Tensor) -> Tensor:
    """``tensor``, which has one tap, as (1, filters, channels)."""
    dims = (1, *tensor.dims[:2])
    strides = packed_strides(dims) if tensor.is_virtual else (tensor.element_count, *tensor.strides[:2])
    return replace(tensor, dims=dims, strides=strides)


def _transposed(matrix: Tensor) -> Tensor:
    (batch, rows, columns), (batch_stride, row_stride, column_stride) = matrix.dims, matrix.strides
    return replace(matrix, dims=(batch, columns, rows), strides=(batch_stride, column_stride, row_stride))


def merged_stride(tensor: Tensor, axes: Iterable[int]) -> int | str:
    """The stride of ``axes`` as one, or why they are not one."""
    steps = [(tensor.dims[axis], tensor.strides[axis]) for axis in axes if tensor.dims[axis] > 1]
    for (_, outer), (extent, inner) in pairwise(steps):
        if outer != inner * extent:
            return f"{tensor.label}.strides: expected pixels at equal distances, got {list(tensor.strides)}"
    return steps[-1][1] if steps else 1
