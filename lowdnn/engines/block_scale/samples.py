"""Common block-scale operations: their kernels are shipped precompiled."""

from __future__ import annotations

from lowdnn.enums import DataType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops import block_scale
from lowdnn.ops.block_scale_quantize import BlockScaleQuantize
from lowdnn.ops.tensor import Tensor, packed_strides

_DIMS = (4096, 4096)
_BLOCK = 32


def samples() -> tuple[OperationGraph, ...]:
    """bf16 to MXFP8 (e4m3 in blocks of 32 with e8m0 scales), blocks along rows and along columns."""
    return tuple(_quantized(axis) for axis in (1, 0))


def _quantized(axis: int) -> OperationGraph:
    x = Tensor(1, DataType.BFLOAT16, _DIMS, packed_strides(_DIMS), 16)
    y = Tensor(2, DataType.FP8_E4M3, _DIMS, packed_strides(_DIMS), 16)
    dims = block_scale.scale_dims(_DIMS, axis, _BLOCK)
    scale = Tensor(3, DataType.FP8_E8M0, dims, packed_strides(dims), 16)
    return OperationGraph([BlockScaleQuantize(x, y, scale, DataType.FLOAT, _BLOCK)])
