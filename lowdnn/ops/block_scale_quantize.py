"""Block-scale quantisation: y = x / scale, with a scale for each block that lets its greatest magnitude just fit.

    scale[b] = largest magnitude of block b / largest finite value of y's type, rounded to the scales' type
    y[i] = x[i] / scale[b(i)], 0 where the scale is 0

FP8_E8M0 scales round up, so that nothing saturates. NaN in a block makes its scale and all of it NaN; an infinity
becomes the largest value at the largest scale. The arithmetic is that of FLOAT. Blocks: see ``block_scale``.
Source: cudnn_graph.h, OPERATION_BLOCK_SCALE_QUANTIZE; OCP Microscaling Formats (MX) Specification 1.0.
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
from lowdnn.status import UnsupportedDataTypeError

#: The largest finite value of each type that is quantised to.
LARGEST = {DataType.FP8_E4M3: 448.0, DataType.FP8_E5M2: 57344.0}


@dataclass(frozen=True)
class BlockScaleQuantize:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_BLOCK_SCALE_QUANTIZE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT
    reordered_ports: ClassVar[tuple[str, ...]] = ("scale",)

    x: Tensor = tensor_input(AttributeName.OPERATION_BLOCK_SCALE_QUANTIZE_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_BLOCK_SCALE_QUANTIZE_YDESC)
    scale: Tensor = tensor_output(AttributeName.OPERATION_BLOCK_SCALE_QUANTIZE_SCALE_DESC)
    compute_type: DataType = attribute(AttributeName.OPERATION_BLOCK_SCALE_QUANTIZE_MATH_PREC, AttributeType.DATA_TYPE)
    block_size: int = attribute(AttributeName.OPERATION_BLOCK_SCALE_QUANTIZE_BLOCK_SIZE, AttributeType.INT32)

    def __post_init__(self) -> None:
        block_scale.check("block_scale_quantize", (self.x, self.y), self.scale, self.block_size, self.compute_type)
        if self.y.data_type not in LARGEST:
            raise UnsupportedDataTypeError.at(
                "block_scale_quantize.y.data_type",
                expected=" or ".join(t.name for t in LARGEST),
                got=self.y.data_type.name,
            )

    @property
    def axis(self) -> int:
        return block_scale.block_axis(self.x.dims, self.scale, self.block_size)

    @property
    def flops(self) -> int:
        return 2 * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x = dtypes.rounded(inputs["x"], DataType.FLOAT)
        with np.errstate(all="ignore"):
            largest = self._largest(np.abs(x))
            scale = dtypes.rounded(largest / np.float64(LARGEST[self.y.data_type]), DataType.FLOAT)
            scale = dtypes.rounded(scale, self.scale.data_type)
            divisor = block_scale.of_elements(scale, self.axis, self.block_size, x.shape[self.axis])
            quotient = dtypes.rounded(np.where(divisor == 0, 0.0, x / divisor), DataType.FLOAT)
        return {"y": quotient, "scale": block_scale.in_tiles(scale, self.scale)}

    def _largest(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The greatest of each block; NaN wins."""
        if 0 in magnitudes.shape:
            return np.zeros(block_scale.scale_dims(self.x.dims, self.axis, self.block_size))
        starts = np.arange(0, magnitudes.shape[self.axis], self.block_size)
        return np.asarray(np.maximum.reduceat(magnitudes, starts, self.axis))
