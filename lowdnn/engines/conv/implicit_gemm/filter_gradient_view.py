"""Convolution backward filter as a forward convolution over its tensors with exchanged axes, without groups.

    dw[k, c, r] = sum over n, o of x[n, c, o * stride + r * dilation - padding] * dy[n, k, o]

is a forward convolution of x, with its channels as images and its images as channels. Its filters are dy, and their
taps the outputs o: stride and dilation change roles, and so do k and c in the result. Elements of x after the last
tap's last output are left out.
"""

from __future__ import annotations

from dataclasses import replace

from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView, dag_over, exchanged, has_index, tensors_of
from lowdnn.enums import ConvolutionMode
from lowdnn.graph.pattern import Anchored
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward


def filter_gradient_view(matched: Anchored[ConvolutionBackwardFilter]) -> ForwardView | str:
    """The forward convolution that equals ``matched``, or why there is none."""
    operation, dag = matched.anchor, matched.epilogue
    if operation.groups > 1:
        return f"{operation.label}.dw.dims: expected one group, got {operation.groups}"
    if operation.convolution.mode is ConvolutionMode.CONVOLUTION:
        return f"{operation.label}.convolution.mode: expected CROSS_CORRELATION, got CONVOLUTION"
    if has_index(dag):
        return "pointwise.mode: expected no GEN_INDEX after a filter's gradient, got GEN_INDEX"
    views = {t.uid: exchanged(t) if t.rank == len(dag.dims) else t for t in tensors_of(dag)}
    dw = views[operation.dw.uid]
    spans = tuple(_span(operation, axis) for axis in range(len(operation.x.dims) - 2))
    x = exchanged(operation.x)
    x = replace(x, dims=(*x.dims[:2], *(extent for _, extent, _ in spans)))
    forward = ConvolutionForward(_geometry(operation, spans), x=x, w=exchanged(operation.dy), y=dw)
    names = (f"{operation.label}.x", f"{operation.label}.dy")
    return ForwardView(*names, Anchored(forward, dag_over(dag, views, dw.dims)))


def _span(operation: ConvolutionBackwardFilter, axis: int) -> tuple[int, int, int]:
    """(padding at the front, elements of x, padding at the back) that the taps read along a spatial axis."""
    geometry = operation.convolution
    taps, outputs = operation.dw.dims[2 + axis], operation.dy.dims[2 + axis]
    met = 1 + (taps - 1) * geometry.dilations[axis] + (outputs - 1) * geometry.strides[axis]
    before = min(geometry.pre_paddings[axis], met)
    extent = min(operation.x.dims[2 + axis], met - before)
    return before, extent, met - before - extent


def _geometry(operation: ConvolutionBackwardFilter, spans: tuple[tuple[int, int, int], ...]) -> Convolution:
    geometry = operation.convolution
    return replace(
        geometry,
        pre_paddings=tuple(before for before, _, _ in spans),
        post_paddings=tuple(behind for _, _, behind in spans),
        strides=geometry.dilations,
        dilations=geometry.strides,
    )
