"""Rotary position embedding: y is x with its pairs rotated by the angles freqs.

See ``rope``. Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR.
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
class RopeForward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_ROPE_FWD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    x: Tensor = tensor_input(AttributeName.OPERATION_ROPE_FWD_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_ROPE_FWD_YDESC)
    freqs: Tensor = tensor_input(AttributeName.OPERATION_ROPE_FWD_FREQSDESC)
    output_scale: float = attribute(AttributeName.OPERATION_ROPE_FWD_OUTPUT_SCALE, AttributeType.FLOAT, default=1.0)
    rope_dim: int = attribute(AttributeName.OPERATION_ROPE_FWD_ROPE_DIM, AttributeType.INT64, default=0)

    def __post_init__(self) -> None:
        _ = self.rotation

    @cached_property
    def rotation(self) -> Rotation:
        tensors = (self.x, self.y, self.freqs)
        return rotation("rope_forward", ("x", "y"), tensors, self.output_scale, self.rope_dim, 1)

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def flops(self) -> int:
        return self.rotation.flops

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": self.rotation.of(inputs["x"], inputs["freqs"])}
