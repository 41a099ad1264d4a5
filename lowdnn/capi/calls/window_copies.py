"""Copies between a tensor and the windows of it: target = alpha * source + beta * target, with 0 where nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lowdnn import dtypes
from lowdnn.capi.calls.frame import Frame
from lowdnn.capi.descriptors import FilterDescriptor, TensorDescriptor
from lowdnn.capi.graphs import Builder, compute_type_of
from lowdnn.capi.memory import Address, checked
from lowdnn.capi.windows import Axis, Layout, Piece, pieces
from lowdnn.enums import DIM_MAX, PointwiseMode
from lowdnn.ops.tensor import has_overlap
from lowdnn.status import BadParamError, NotSupportedError

#: The descriptor, the address and the argument's name.
Operand = tuple[TensorDescriptor | FilterDescriptor, Address, str]


def copy_windows(
    frame: Frame, source: Operand, target: Operand, scales: tuple[float, float], axes: Sequence[Axis], to_windows: bool
) -> None:
    """Runs the copy. to_windows: the target is the tensor of windows, else that of places."""
    for descriptor, address, argument in (source, target):
        frame.builder.tensor(descriptor, address, f"{frame.name}.{argument}")
    _check_target(frame, target)
    found = [*pieces(axes)]
    rank = max((len(piece.dims) for piece in found), default=0)
    if rank > DIM_MAX:
        raise NotSupportedError.at(f"{frame.name}.dims", expected=f"at most {DIM_MAX} dimensions and folds", got=rank)
    builders = []
    if sum(prod(piece.dims) for piece in found) < prod(target[0].dims):
        if scales[1] != 1:
            builders.append(_scaled(frame, target, scales[1]))
        scales = (scales[0], 0.0 if scales[1] == 0 else 1.0)
    for piece in found:
        layouts = (piece.places, piece.windows) if to_windows else (piece.windows, piece.places)
        builder = Builder()
        x, y = (_part(operand, piece, layout) for operand, layout in zip((source, target), layouts, strict=True))
        read = builder.tensor(*x, f"{frame.name}.{source[2]}")
        builder.assign(read, *y, scales, f"{frame.name}.{target[2]}")
        builders.append(builder)
    frame.run_all(builders)


def _check_target(frame: Frame, target: Operand) -> None:
    """A piece of a tensor whose elements overlap need not overlap itself."""
    descriptor, _, argument = target
    if has_overlap(descriptor.dims, descriptor.strides):
        where = f"{frame.name}.{argument}.strides"
        raise BadParamError.at(where, expected="elements that do not overlap", got=list(descriptor.strides))


def _scaled(frame: Frame, target: Operand, beta: float) -> Builder:
    """target = beta * target, without reading it where beta is 0."""
    descriptor, address, argument = target
    builder = Builder()
    y = builder.result(descriptor, address, f"{frame.name}.{argument}")
    if beta == 0:
        zero = builder.constant(0.0, y.rank, compute_type_of(y.data_type))
        builder.pointwise(PointwiseMode.IDENTITY, y, zero)
    else:
        old = builder.tensor(descriptor, address, f"{frame.name}.{argument}")
        builder.scaled(beta, old, compute_type_of(y.data_type), y)
    return builder


def _part(operand: Operand, piece: Piece, layout: Layout) -> tuple[TensorDescriptor, int]:
    """The descriptor and the address of one piece (a strided block) of the operand."""
    descriptor, address, argument = operand
    begin = checked(address, argument) + layout.offset * dtypes.info(descriptor.data_type).size_bytes
    return TensorDescriptor(descriptor.data_type, piece.dims, layout.strides), begin
