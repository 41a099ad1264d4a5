"""Common pointwise graphs, whose kernels are shipped precompiled."""

from __future__ import annotations

from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides

#: Dims with which the default knobs are those of large tensors; multiples of every vector.
_DIMS = (64, 1 << 20)


def samples() -> tuple[OperationGraph, ...]:
    """y = x and y = relu(x + b) over packed tensors in fp32, fp16 and bf16."""
    types = (DataType.FLOAT, DataType.HALF, DataType.BFLOAT16)
    return tuple(graph for data_type in types for graph in (_copy(data_type), _add_relu(data_type)))


def _copy(data_type: DataType) -> OperationGraph:
    x, y = _tensor(1, data_type), _tensor(2, data_type)
    return OperationGraph([PointwiseOperation(Pointwise(PointwiseMode.IDENTITY, DataType.FLOAT), x=x, y=y)])


def _add_relu(data_type: DataType) -> OperationGraph:
    x, b, y = (_tensor(uid, data_type) for uid in (1, 2, 3))
    total = _tensor(4, DataType.FLOAT, is_virtual=True)
    return OperationGraph(
        [
            PointwiseOperation(Pointwise(PointwiseMode.ADD, DataType.FLOAT), x=x, b=b, y=total),
            PointwiseOperation(Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT), x=total, y=y),
        ]
    )


def _tensor(uid: int, data_type: DataType, is_virtual: bool = False) -> Tensor:
    return Tensor(uid, data_type, _DIMS, packed_strides(_DIMS), alignment_bytes=16, is_virtual=is_virtual)
