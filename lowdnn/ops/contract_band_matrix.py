"""Contraction of a matrix to its band: y[i, d] = x[i, i + d - lower], the pad value where x has no such column.

Layout of bands: see ``band_matrix``.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops import band_matrix
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output


@dataclass(frozen=True)
class ContractBandMatrix:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONTRACT_BAND_MATRIX
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input(AttributeName.OPERATION_CONTRACT_BAND_MATRIX_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_CONTRACT_BAND_MATRIX_YDESC)
    lower: int = attribute(
        AttributeName.OPERATION_CONTRACT_BAND_MATRIX_LOWER_BANDWIDTH, AttributeType.INT64, AttributeType.INT32
    )
    upper: int = attribute(
        AttributeName.OPERATION_CONTRACT_BAND_MATRIX_UPPER_BANDWIDTH, AttributeType.INT64, AttributeType.INT32
    )
    axis: int = attribute(AttributeName.OPERATION_CONTRACT_BAND_MATRIX_AXIS, AttributeType.INT64, AttributeType.INT32)
    pad: float = attribute(
        AttributeName.OPERATION_CONTRACT_BAND_MATRIX_PAD_VALUE, AttributeType.DOUBLE, AttributeType.FLOAT, default=0.0
    )

    def __post_init__(self) -> None:
        band_matrix.check("contract_band_matrix.y", self.x, self.y, self.axis, self.lower, self.upper)

    @property
    def skew(self) -> tuple[int, int]:
        """(slope, shift): the column of x is that of y + slope * row + shift."""
        return 1, -self.lower

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": band_matrix.skewed(inputs["x"], self.axis, self.y.dims[self.axis], *self.skew, self.pad)}
