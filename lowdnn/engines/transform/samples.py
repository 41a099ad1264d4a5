"""Common moves, whose kernels are shipped precompiled."""

from __future__ import annotations

from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.ops.transpose import Transpose

_NCHW = (32, 256, 56, 56)


def samples() -> tuple[OperationGraph, ...]:
    """Transposes from NCHW to NHWC and back, for elements of two and of four bytes."""
    return tuple(
        _transposed(dims, permutation, data_type)
        for data_type in (DataType.BFLOAT16, DataType.FLOAT)
        for dims, permutation in ((_NCHW, (0, 2, 3, 1)), (tuple(_NCHW[a] for a in (0, 2, 3, 1)), (0, 3, 1, 2)))
    )


def _transposed(dims: tuple[int, ...], permutation: tuple[int, ...], data_type: DataType) -> OperationGraph:
    y_dims = tuple(dims[axis] for axis in permutation)
    x = Tensor(1, data_type, dims, packed_strides(dims), 16)
    y = Tensor(2, data_type, y_dims, packed_strides(y_dims), 16)
    return OperationGraph([Transpose(x, y, permutation)])
