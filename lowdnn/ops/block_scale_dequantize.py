"""Block-scale dequantisation: y[i] = x[i] * scale[b(i)], each block b of neighbours having one scale.

The product is that of FLOAT. Blocks: see ``block_scale``.
Source: cudnn_graph.h, OPERATION_BLOCK_SCALE_DEQUANTIZE; OCP Microscaling Formats (MX) Specification 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops import block_scale
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import NotSupportedError


@dataclass(frozen=True)
class BlockScaleDequantize:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_BLOCK_SCALE_DEQUANTIZE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT
    reordered_ports: ClassVar[tuple[str, ...]] = ("scale",)

    x: Tensor = tensor_input(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_XDESC)
    scale: Tensor = tensor_input(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_SCALE_DESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_YDESC)
    compute_type: DataType = attribute(
        AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_MATH_PREC, AttributeType.DATA_TYPE
    )
    block_size: int = attribute(AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_BLOCK_SIZE, AttributeType.INT32)
    is_negative_scale: bool = attribute(
        AttributeName.OPERATION_BLOCK_SCALE_DEQUANTIZE_NEG_SCALE, AttributeType.BOOLEAN, default=False
    )

    def __post_init__(self) -> None:
        block_scale.check("block_scale_dequantize", (self.x, self.y), self.scale, self.block_size, self.compute_type)
        if self.is_negative_scale:
            where, hint = "block_scale_dequantize.is_negative_scale", "negate the result"
            raise NotSupportedError.at(where, expected="False", got=True, hint=hint)

    @property
    def axis(self) -> int:
        return block_scale.block_axis(self.x.dims, self.scale, self.block_size)

    @property
    def flops(self) -> int:
        return self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x = dtypes.rounded(inputs["x"], DataType.FLOAT)
        blocks = block_scale.of_blocks(inputs["scale"], x.shape, self.axis, self.block_size)
        scales = block_scale.of_elements(blocks, self.axis, self.block_size, x.shape[self.axis])
        with np.errstate(all="ignore"):
            return {"y": dtypes.rounded(x * scales, DataType.FLOAT)}
