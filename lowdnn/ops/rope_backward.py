"""The gradient of rotary position embedding: dx is dy with its pairs rotated back by the angles freqs.

See ``rope``. Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.norm import compute_type_of
from lowdnn.ops.rope import Rotation, rotation
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output


@dataclass(frozen=True)
class RopeBackward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_ROPE_BWD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    dy: Tensor = tensor_input(AttributeName.OPERATION_ROPE_BWD_DYDESC)
    dx: Tensor = tensor_output(AttributeName.OPERATION_ROPE_BWD_DXDESC)
    freqs: Tensor = tensor_input(AttributeName.OPERATION_ROPE_BWD_FREQSDESC)
    output_scale: float = attribute(AttributeName.OPERATION_ROPE_BWD_OUTPUT_SCALE, AttributeType.FLOAT, default=1.0)
    rope_dim: int = attribute(AttributeName.OPERATION_ROPE_BWD_ROPE_DIM, AttributeType.INT64, default=0)

    def __post_init__(self) -> None:
        _ = self.rotation

    @cached_property
    def rotation(self) -> Rotation:
        tensors = (self.dy, self.dx, self.freqs)
        return rotation("rope_backward", ("dy", "dx"), tensors, self.output_scale, self.rope_dim, -1)

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.dy)

    @property
    def flops(self) -> int:
        return self.rotation.flops

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"dx": self.rotation.of(inputs["dy"], inputs["freqs"])}
