"""Convolution backward data as forward convolutions over parts of its tensors, without groups.

Pixel i of dx reads tap r if i + padding - r * dilation is a multiple of the stride. So the pixels of one residue class
modulo the stride, i = start + j * stride, read every ``period``-th tap, r = first_tap + t * period with period = stride
/ gcd(stride, dilation), at dy's position j + first - t * step with step = dilation / gcd. That is a forward convolution
of stride 1 and dilation ``step`` with a part of the filter, whose result is a strided part of dx. Where the positions
begin or end inside dy, the forward convolution has a part of dy; where they lie outside, padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, prod

from lowdnn.engines.conv.implicit_gemm.forward_views import ForwardView, dag_over, exchanged, has_index, tensors_of
from lowdnn.enums import ConvolutionMode
from lowdnn.graph.pattern import Anchored
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor

#: Most classes, each of which takes a launch or more.
_MAX_CLASSES = 64


def data_gradient_views(matched: Anchored[ConvolutionBackwardData]) -> tuple[ForwardView, ...] | str:
    """The forward convolutions that make up ``matched``, or why they do not exist."""
    operation = matched.anchor
    if operation.groups > 1:
        return f"{operation.label}.w.dims: expected one group, got {operation.groups}"
    count = class_count(operation)
    if count > _MAX_CLASSES:
        return f"convolution.strides: expected at most {_MAX_CLASSES} residue classes of pixels, got {count}"
    if count > 1 and has_index(matched.epilogue):
        return "pointwise.mode: expected no GEN_INDEX after a gradient with strides, got GEN_INDEX"
    views = []
    for residues in product(*_residues(operation)):
        view = _view(matched, [_Axis.of(operation, axis, residue) for axis, residue in enumerate(residues)])
        if isinstance(view, str):
            return view
        views.append(view)
    return tuple(views)


def class_count(operation: ConvolutionBackwardData) -> int:
    """Residue classes of pixels, each of which is a forward convolution."""
    return prod(map(len, _residues(operation)))


def _residues(operation: ConvolutionBackwardData) -> list[range]:
    """Residues by spatial axis."""
    pairs = zip(operation.convolution.strides, operation.dx.dims[2:], strict=True)
    return [range(min(pair)) for pair in pairs]


@dataclass(frozen=True)
class _Axis:
    """One residue class along one spatial axis: the parts of dx, of the filter and of dy, and dy's padding."""

    pixels: _Part
    taps: _Part
    positions: _Part
    dilation: int
    padding: int

    @classmethod
    def of(cls, operation: ConvolutionBackwardData, axis: int, residue: int) -> _Axis:
        geometry = operation.convolution
        stride, dilation = geometry.strides[axis], geometry.dilations[axis]
        common = gcd(stride, dilation)
        period, step = stride // common, dilation // common
        extent, taps, outputs = (tensor.dims[2 + axis] for tensor in (operation.dx, operation.w, operation.dy))
        pixels = _Part(residue, stride, -(-(extent - residue) // stride))
        reach = residue + geometry.pre_paddings[axis]
        met = [tap for tap in range(min(period, taps)) if (reach - tap * dilation) % stride == 0]
        if not met:  # an empty sum: one tap that reads only padding
            return cls(pixels, _Part(0, 1, 1), _Part(0, 1, 0), 1, 0)
        count = -(-(taps - met[0]) // period)
        begin = (reach - met[0] * dilation) // stride - (count - 1) * step  # the first position that pixel 0 reads
        needed = pixels.extent + (count - 1) * step
        padding = min(max(-begin, 0), needed)
        start = min(max(begin, 0), outputs)
        positions = _Part(start, 1, min(outputs - start, needed - padding))
        last = met[0] + (count - 1) * period
        is_flipped = geometry.mode is ConvolutionMode.CONVOLUTION
        return cls(pixels, _Part(taps - 1 - last if is_flipped else met[0], period, count), positions, step, padding)


@dataclass(frozen=True)
class _Part:
    """The elements start, start + step, ... of an axis, ``extent`` of them."""

    start: int
    step: int
    extent: int


def _view(matched: Anchored[ConvolutionBackwardData], axes: list[_Axis]) -> ForwardView | str:
    operation, dag = matched.anchor, matched.epilogue
    pixels = [axis.pixels for axis in axes]
    views = {tensor.uid: _part_of(tensor, pixels, dag.dims) for tensor in tensors_of(dag)}
    dx = views[operation.dx.uid][0]
    w, w_offset = _part_of(exchanged(operation.w), [axis.taps for axis in axes])
    dy, dy_offset = _part_of(operation.dy, [axis.positions for axis in axes])
    offsets = {uid: offset for uid, (_, offset) in views.items()}
    for operand, offset in ((w, w_offset), (dy, dy_offset)):
        if offsets.setdefault(operand.uid, offset) != offset:
            return f"pointwise: expected operands other than w and dy after the gradient, got {operand.label}"
    forward = ConvolutionForward(_geometry(operation, axes), x=dy, w=w, y=dx)
    parts = {uid: part for uid, (part, _) in views.items()}
    names = (f"{operation.label}.dy", f"{operation.label}.w")
    return ForwardView(*names, Anchored(forward, dag_over(dag, parts, dx.dims)), offsets)


def _geometry(operation: ConvolutionBackwardData, axes: list[_Axis]) -> Convolution:
    """The convolution's geometry; taps ascend where positions descend, so the mode is the opposite one."""
    geometry = operation.convolution
    is_flipped = geometry.mode is ConvolutionMode.CONVOLUTION
    needed = (axis.pixels.extent + (axis.taps.extent - 1) * axis.dilation for axis in axes)
    behind = (length - axis.padding - axis.positions.extent for length, axis in zip(needed, axes, strict=True))
    return Convolution(
        geometry.compute_type,
        geometry.spatial_dims,
        tuple(axis.padding for axis in axes),
        tuple(behind),
        (1,) * geometry.spatial_dims,
        tuple(axis.dilation for axis in axes),
        ConvolutionMode.CROSS_CORRELATION if is_flipped else ConvolutionMode.CONVOLUTION,
    )


def _part_of(tensor: Tensor, parts: Iterable[_Part], space: tuple[int, ...] | None = None) -> tuple[Tensor, int]:
    """The part of ``tensor`` along its spatial axes, and its offset in bytes.

    space: the dims to which the tensor is broadcast along axes of extent 1; a tensor of another rank stays whole.
    """
    if space and tensor.rank != len(space):
        return tensor, 0
    dims, strides, offset = list(tensor.dims), list(tensor.strides), 0
    for axis, part in enumerate(parts, 2):
        if space and tensor.dims[axis] != space[axis]:
            continue
        offset += part.start * strides[axis]
        dims[axis], strides[axis] = part.extent, part.step * strides[axis]
    offset_bytes = offset * tensor.element_bytes
    alignment = gcd(tensor.alignment_bytes, offset_bytes)
    return replace(tensor, dims=tuple(dims), strides=tuple(strides), alignment_bytes=alignment), offset_bytes
