"""Common reductions, whose kernels are shipped precompiled."""

from __future__ import annotations

from lowdnn.enums import DataType, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.ops.tensor import Tensor, packed_strides

_DIMS = (8192, 8192)


def samples() -> tuple[OperationGraph, ...]:
    """The sums over rows, over columns and over everything of fp32, fp16 and bf16 matrices, accumulated in fp32."""
    types = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16)
    shapes = ((_DIMS[0], 1), (1, _DIMS[1]), (1, 1))
    return tuple(_sum(data_type, shape) for data_type in types for shape in shapes)


def _sum(data_type: DataType, dims: tuple[int, ...]) -> OperationGraph:
    x = Tensor(1, data_type, _DIMS, packed_strides(_DIMS), alignment_bytes=16)
    y = Tensor(2, data_type, dims, packed_strides(dims), alignment_bytes=16)
    return OperationGraph([ReductionOperation(Reduction(ReduceTensorOp.ADD, DataType.FLOAT), x=x, y=y)])
