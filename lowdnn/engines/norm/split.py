"""The axes of group normalisation.

Usually the channels are split into two axes, groups and channels of a group, and a row is a whole group. If a memory
line has channels of several groups, or each channel has numbers of its own, a row is a single channel instead, and the
rows of a group share their statistics ("group rows").
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lowdnn.enums import NormMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.norm import NormShape
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor

#: Bytes of a memory line.
_LINE_BYTES = 128
#: Group rows that a block has side by side at most.
_MAX_GROUP_ROWS = 32


def row_shapes(shape: NormShape, x: Tensor, of_channels: bool = False) -> tuple[tuple[NormShape, int], ...]:
    """Pairs of (the shape with the axes of a row, group rows), the best first; the last one is always possible.

    of_channels: whether each channel has numbers of its own that are read or summed.
    """
    is_image = shape.mode is NormMode.GROUP_NORM and 0 not in x.dims[:2] and prod(x.dims[2:]) > 1
    channels = x.dims[1] // shape.groups if is_image else 1
    if x.strides[1] == 1:
        has_group_rows = channels * x.element_bytes < _LINE_BYTES
    else:
        has_group_rows = of_channels and channels <= _MAX_GROUP_ROWS
    if channels == 1 or not has_group_rows:
        return ((shape, 1),)
    return ((replace(shape, mode=NormMode.INSTANCE_NORM), channels), (shape, 1))


def split_tensor(tensor: Tensor, shape: NormShape) -> Tensor:
    """``tensor`` with the dims that ``shape`` splits it into."""
    dims = shape.split(tensor.dims)
    if dims == tensor.dims:
        return tensor
    return replace(tensor, dims=dims, strides=shape.split_strides(tensor.dims, tensor.strides))


def is_of_rows(tensor: Tensor, shape: NormShape) -> bool:
    """Whether the split ``tensor`` has one element for all that a mean is taken over."""
    return all(tensor.dims[axis] == 1 for axis in shape.axes)


def split_operation(operation: PointwiseOperation, shape: NormShape) -> PointwiseOperation:
    ports = inputs_of(operation) | outputs_of(operation)
    split = {port: split_tensor(tensor, shape) for port, tensor in ports.items()}
    return replace(operation, **split)  # type: ignore[arg-type]


def split_dag(dag: PointwiseDag, shape: NormShape) -> PointwiseDag:
    return replace(
        dag,
        dims=shape.split(dag.dims),
        operations=tuple(split_operation(op, shape) for op in dag.operations),
        result=None if dag.result is None else split_tensor(dag.result, shape),
        loads=tuple(split_tensor(tensor, shape) for tensor in dag.loads),
        stores=tuple(split_tensor(tensor, shape) for tensor in dag.stores),
    )
