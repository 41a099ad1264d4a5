"""A convolution that reads each pixel once, as a matrix product.

    forward          y (n, pixels, k)  = x (n, pixels, c) * w (1, c, k)
    data gradient    dx (n, pixels, c) = dy (n, pixels, k) * w (1, k, c)
    filter gradient  dw (1, k, c)      = dy (1, k, all pixels) * x (1, all pixels, c)

Only the tensors' dims and strides change, not their contents in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from lowdnn.engines.matmul.shared_batches import split_batches
from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import AnchoredWithReductions, match_anchored_with_reductions
from lowdnn.graph.reduction_pattern import ancestors
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import Matmul, MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides

#: Makes a tensor a matrix, or says why it cannot be one.
_View = Callable[[Tensor], Tensor | str]
#: The tensor of each port of the product, and its view.
_Roles = Mapping[str, tuple[Tensor, _View]]


def as_matmul(graph: OperationGraph) -> OperationGraph | str:
    """``graph`` with its convolution as a matrix product, or why it cannot be one.

    In a graph without convolutions, batch axes are split where they share matrices (``shared_batches``).
    """
    return graph.derive(_as_matmul)


def match_product(graph: OperationGraph) -> AnchoredWithReductions[MatmulOperation] | str:
    """``as_matmul(graph)`` as one product with a pointwise epilogue and reductions, or why it is not one."""
    product = as_matmul(graph)
    return product if isinstance(product, str) else match_anchored_with_reductions(product, MatmulOperation)


def _as_matmul(graph: OperationGraph) -> OperationGraph | str:
    convolutions = [op for op in graph.operations if isinstance(op, ConvolutionOperation)]
    if not convolutions:
        return split_batches(graph)
    if len(convolutions) > 1:
        return f"operations: expected exactly one ConvolutionOperation, got {len(convolutions)}"
    (convolution,) = convolutions
    if refused := _refuse_geometry(convolution):
        return refused
    matrices = _Matrices()
    views = _views_of_steps(graph, convolution)
    operations: list[Operation] = []
    for op in graph.operations:
        is_product = op is convolution
        found = _product(convolution, matrices) if is_product else _pointwise(op, matrices, views[id(op)])
        if isinstance(found, str):
            return found
        operations.append(found)
    return OperationGraph(operations)


class _Matrices:
    """The tensors as matrices; each tensor is the same matrix in all operations."""

    def __init__(self) -> None:
        self._by_uid: dict[int, Tensor] = {}

    def of(self, roles: _Roles) -> dict[str, Any] | str:
        """The matrices by port, or why a tensor cannot be one."""
        found = {}
        for port, (tensor, view) in roles.items():
            matrix = view(tensor)
            if isinstance(matrix, str):
                return matrix
            known = self._by_uid.setdefault(tensor.uid, matrix)
            if known != matrix:
                return f"{tensor.label}: expected one matrix, got dims {[list(known.dims), list(matrix.dims)]}"
            found[port] = known
        return found


def _refuse_geometry(op: ConvolutionOperation) -> str:
    """Why it is not a matrix product, or an empty string."""
    geometry, taps = op.convolution, op.filter.dims[2:]
    pads = (*geometry.pre_paddings, *geometry.post_paddings)
    if {*taps, *geometry.strides} != {1} or any(pads) or op.groups != 1:
        got = f"taps {list(taps)}, strides {list(geometry.strides)}, groups {op.groups}, padding {list(pads)}"
        return f"convolution: expected one tap, stride 1, no padding and one group, got {got}"
    if (op.alpha, op.beta) != (1.0, 0.0):
        return f"{op.label}.alpha, beta: expected 1 and 0, got {op.alpha} and {op.beta}"
    return ""


def _roles(op: ConvolutionOperation) -> _Roles:
    """The tensors and views of the product's ports."""
    if isinstance(op, ConvolutionBackwardFilter):
        return {
            "a": (op.response, _all_pixels_as_columns),
            "b": (op.image, _all_pixels),
            "c": (op.filter, _filter),
        }
    if isinstance(op, ConvolutionForward):
        return {"a": (op.image, _pixels), "b": (op.filter, _filters_as_columns), "c": (op.response, _pixels)}
    return {"a": (op.response, _pixels), "b": (op.filter, _filter), "c": (op.image, _pixels)}


def _views_of_steps(graph: OperationGraph, convolution: ConvolutionOperation) -> dict[int, _View]:
    """The view that makes an operation's tensors matrices, by the operation's ``id``.

    It is operand a's or b's for the operations that compute that operand, and c's for all others.
    """
    roles = _roles(convolution)
    views = dict.fromkeys(map(id, graph.operations), roles["c"][1])
    for name in "ab":
        operand, view = roles[name]
        producer = graph.producer(operand)
        if producer is not None:
            views |= dict.fromkeys((id(producer), *ancestors(graph, producer)), view)
    return views


def _product(op: ConvolutionOperation, matrices: _Matrices) -> MatmulOperation | str:
    found = matrices.of(_roles(op))
    return found if isinstance(found, str) else MatmulOperation(Matmul(op.convolution.compute_type), **found)


def _pointwise(op: Operation, matrices: _Matrices, view: _View) -> PointwiseOperation | str:
    if not isinstance(op, PointwiseOperation) or op.mode is PointwiseMode.GEN_INDEX:
        return (
            f"operations: expected pointwise operations with the convolution, none GEN_INDEX, got {type(op).__name__}"
        )
    found = matrices.of({port: (tensor, view) for port, tensor in (inputs_of(op) | outputs_of(op)).items()})
    if isinstance(found, str):
        return found
    *operands, output = found.values()
    for matrix in operands:
        repeats = all(extent in (1, full) for extent, full in zip(matrix.dims, output.dims, strict=False))
        if matrix.element_count > 1 and not repeats:
            return f"{matrix.label}.dims: expected a tensor that repeats over all axes of pixels or none, got others"
    return replace(op, **found)


def _pixels(tensor: Tensor) -> Tensor | str:
    """``tensor`` as (batch, pixels, channels); a scalar tensor, of one dimension, is kept."""
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
    """``tensor`` as (1, pixels of all images, channels); a scalar tensor, of one dimension, is kept."""
    if tensor.rank == 1:
        return tensor
    dims = (1, prod((tensor.dims[0], *tensor.dims[2:])), tensor.dims[1])
    if tensor.is_virtual:
        return replace(tensor, dims=dims, strides=packed_strides(dims))
    pixel_stride = merged_stride(tensor, (0, *range(2, tensor.rank)))
    if isinstance(pixel_stride, str):
        return pixel_stride
    return replace(tensor, dims=dims, strides=(tensor.element_count, pixel_stride, tensor.strides[1]))


def _all_pixels_as_columns(tensor: Tensor) -> Tensor | str:
    pixels = _all_pixels(tensor)
    return pixels if isinstance(pixels, str) else _transposed(pixels)


def _filter(tensor: Tensor) -> Tensor:
    """``tensor``, which has one tap, as (1, filters, channels); a scalar tensor, of one dimension, is kept."""
    if tensor.rank == 1:
        return tensor
    dims = (1, *tensor.dims[:2])
    strides = packed_strides(dims) if tensor.is_virtual else (tensor.element_count, *tensor.strides[:2])
    return replace(tensor, dims=dims, strides=strides)


def _filters_as_columns(tensor: Tensor) -> Tensor:
    return _transposed(_filter(tensor))


def _transposed(matrix: Tensor) -> Tensor:
    if matrix.rank == 1:
        return matrix
    (batch, rows, columns), (batch_stride, row_stride, column_stride) = matrix.dims, matrix.strides
    return replace(matrix, dims=(batch, columns, rows), strides=(batch_stride, column_stride, row_stride))


def merged_stride(tensor: Tensor, axes: Iterable[int]) -> int | str:
    """The stride of ``axes`` merged into one axis, or why they do not merge."""
    steps = [(tensor.dims[axis], tensor.strides[axis]) for axis in axes if tensor.dims[axis] > 1]
    for (_, outer), (extent, inner) in pairwise(steps):
        if outer != inner * extent:
            return f"{tensor.label}.strides: expected pixels at equal distances, got {list(tensor.strides)}"
    return steps[-1][1] if steps else 1
