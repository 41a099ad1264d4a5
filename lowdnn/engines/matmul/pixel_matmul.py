"""A forward convolution that reads each pixel once, as the matrix product that it is.

    x (n, c, spatial...) as a (n, pixels, c),  w (k, c, 1...) as b (1, c, k),  y (n, k, spatial...) as c (n, pixels, k)

Only the tensors' dims and strides change: what lies in memory is the same.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides


def as_matmul(graph: OperationGraph) -> OperationGraph | str:
    """``graph`` with its convolutions as matrix products, or why one is none; unchanged where it has none."""
    if not any(isinstance(op, ConvolutionForward) for op in graph.operations):
        return graph
    operations: list[Operation] = []
    for op in graph.operations:
        found = _product(op) if isinstance(op, ConvolutionForward) else _pointwise(op)
        if isinstance(found, str):
            return found
        operations.append(found)
    return OperationGraph(operations)


def _product(op: ConvolutionForward) -> MatmulOperation | str:
    geometry = op.convolution
    taps = (*op.w.dims[2:], *geometry.strides)
    pads = (*geometry.pre_paddings, *geometry.post_paddings)
    if set(taps) != {1} or any(pads) or op.w.dims[1] != op.x.dims[1]:
        got = f"taps {list(op.w.dims[2:])}, strides {list(geometry.strides)}, groups {op.x.dims[1] // op.w.dims[1]}"
        return f"convolution: expected one tap, stride 1, no padding and one group, got {got}, padding {list(pads)}"
    if (op.alpha, op.beta) != (1.0, 0.0):
        return f"convolution_forward.alpha, beta: expected 1 and 0, got {op.alpha} and {op.beta}"
    x, y = _pixels(op.x), _pixels(op.y)
    if isinstance(x, str):
        return x
    if isinstance(y, str):
        return y
    filters, channels = op.w.dims[:2]
    w = replace(op.w, dims=(1, channels, filters), strides=(op.w.element_count, op.w.strides[1], op.w.strides[0]))
    return MatmulOperation(Matmul(geometry.compute_type), a=x, b=w, c=y)


def _pointwise(op: Operation) -> PointwiseOperation | str:
    if not isinstance(op, PointwiseOperation) or op.mode is PointwiseMode.GEN_INDEX:
        return (
            f"operations: expected pointwise operations with the convolution, none GEN_INDEX, got {type(op).__name__}"
        )
    views: dict[str, Any] = {}
    for port, tensor in (inputs_of(op) | outputs_of(op)).items():
        view = _pixels(tensor)
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
    steps = [step for step in zip(spatial, tensor.strides[2:], strict=True) if step[0] > 1]
    for (_, outer), (extent, inner) in pairwise(steps):
        if outer != inner * extent:
            return f"{tensor.label}.strides: expected pixels at equal distances, got {list(tensor.strides)}"
    pixel_stride = steps[-1][1] if steps else 1
    return replace(tensor, dims=dims, strides=(tensor.strides[0], pixel_stride, tensor.strides[1]))
