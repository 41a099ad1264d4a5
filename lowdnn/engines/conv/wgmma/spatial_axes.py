"""A convolution over fewer spatial axes, or over permuted ones.

Only the tensors' dims and strides change, not their contents in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lowdnn.engines.matmul.pixel_matmul import merged_stride
from lowdnn.enums import PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, with_tensors
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides

#: Index of the first spatial axis.
_FIRST = 2


def with_fewest_axes(graph: OperationGraph) -> OperationGraph:
    """``graph`` with neighbouring axes merged along which each pixel reads only itself (one tap, no stride, no
    padding), and merged into the images if they come first; ``graph`` itself if that is not possible.

    The fewer axes a tensor map has, the faster copies of pixels are and the farther they reach.
    """
    return graph.derive(_with_fewest_axes)


def with_taps_last(graph: OperationGraph) -> OperationGraph | None:
    """The graph with the last axis of several taps moved to the end, for windows of pixels; None if it is there."""
    return graph.derive(_with_taps_last)


def _with_fewest_axes(graph: OperationGraph) -> OperationGraph:
    operation = _convolution(graph)
    if operation is None:
        return graph
    runs: list[tuple[int, ...]] = []
    for axis in range(_FIRST, operation.filter.rank):
        if runs and _is_plain(operation, axis) and _is_plain(operation, runs[-1][-1]):
            runs[-1] += (axis,)
        else:
            runs.append((axis,))
    images: tuple[int, ...] = (0,)
    if len(runs) > 1 and _is_plain(operation, _FIRST):
        images += runs.pop(0)
    if len(runs) == operation.filter.rank - _FIRST:
        return graph
    return _View(images, tuple(runs)).of(graph, operation) or graph


def _with_taps_last(graph: OperationGraph) -> OperationGraph | None:
    operation = _convolution(graph)
    several = (
        [axis for axis, taps in enumerate(operation.filter.dims[_FIRST:], _FIRST) if taps > 1] if operation else []
    )
    if operation is None or not several or several[-1] == operation.filter.rank - 1:
        return None
    others = (axis for axis in range(_FIRST, operation.filter.rank) if axis != several[-1])
    return _View((0,), (*((axis,) for axis in others), (several[-1],))).of(graph, operation)


def _convolution(graph: OperationGraph) -> ConvolutionOperation | None:
    """The one convolution, if all tensors except its filter are over its pixels, and no operation uses their index."""
    found = [op for op in graph.operations if isinstance(op, ConvolutionOperation)]
    if len(found) != 1 or any(graph.producer(tensor) for tensor in inputs_of(found[0]).values()):
        return None
    others = [op for op in graph.operations if op is not found[0]]
    if others and isinstance(found[0], ConvolutionBackwardFilter):
        return None
    for op in others:
        counts = isinstance(op, PointwiseOperation) and op.mode is PointwiseMode.GEN_INDEX
        if counts or not isinstance(op, PointwiseOperation | ReductionOperation | GenStats):
            return None
    return found[0]


def _is_plain(operation: ConvolutionOperation, axis: int) -> bool:
    """Whether each output reads only the pixel at its own position along the axis (one tap, no stride, no padding)."""
    geometry, place = operation.convolution, axis - _FIRST
    padding = geometry.pre_paddings[place] + geometry.post_paddings[place]
    return (operation.filter.dims[axis], geometry.strides[place], padding) == (1, 1, 0)


@dataclass(frozen=True)
class _View:
    """The tensors' axes that make up the images, and those that make up each spatial axis of the view.

    Merged axes are plain, so that image and response have the same extents there and the filter has extent 1.
    """

    images: tuple[int, ...]
    spatial: tuple[tuple[int, ...], ...]

    def of(self, graph: OperationGraph, operation: ConvolutionOperation) -> OperationGraph | None:
        """The graph with these axes merged; None if the axes, strides or broadcasts of a tensor do not allow it."""
        seen: dict[int, Tensor] = {}
        for tensor in graph.tensors.values():
            if tensor.rank not in (1, operation.image.rank):
                return None
            view = self._tensor(tensor, None if tensor.uid == operation.filter.uid else operation.image.dims)
            if view is None:
                return None
            seen[tensor.uid] = view
        return OperationGraph(
            self._convolution(op, seen) if op is operation else with_tensors(op, seen) for op in graph.operations
        )

    def _tensor(self, tensor: Tensor, full: tuple[int, ...] | None) -> Tensor | None:
        """The tensor with merged axes.  full: a pixel tensor's extents along them, if it is not broadcast."""
        if tensor.rank == 1:
            return tensor
        dims: list[int] = []
        strides: list[int] = []
        for group in (self.images, (1,), *self.spatial):
            extents = [tensor.dims[axis] for axis in group]
            if full and len(group) > 1 and prod(extents) > 1 and extents != [full[axis] for axis in group]:
                return None
            stride = 0 if tensor.is_virtual else _stride(tensor, group)
            if stride is None:
                return None
            dims.append(prod(extents))
            strides.append(stride)
        return replace(
            tensor, dims=tuple(dims), strides=packed_strides(tuple(dims)) if tensor.is_virtual else tuple(strides)
        )

    def _convolution(self, operation: ConvolutionOperation, seen: Mapping[int, Tensor]) -> Operation:
        geometry = operation.convolution
        fields = ("pre_paddings", "post_paddings", "strides", "dilations")
        vectors: dict[str, Any] = {
            name: tuple(getattr(geometry, name)[axes[0] - _FIRST] for axes in self.spatial) for name in fields
        }
        changes: dict[str, Any] = {port: seen[getattr(operation, port).uid] for port in operation.roles}
        changes["convolution"] = replace(geometry, spatial_dims=len(self.spatial), **vectors)
        return replace(operation, **changes)  # type: ignore[type-var]


def _stride(tensor: Tensor, axes: tuple[int, ...]) -> int | None:
    """The stride of merged axes; that of the last one if all have extent 1."""
    if len(axes) == 1 or all(tensor.dims[axis] == 1 for axis in axes):
        return tensor.strides[axes[-1]]
    stride = merged_stride(tensor, axes)
    return stride if isinstance(stride, int) else None
