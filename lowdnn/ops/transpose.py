"""Transpose: y has x's elements with its axes in another order, y's axis a being x's axis permutation[a].

Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DIM_MAX, AttributeName, AttributeType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class Transpose:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_TRANSPOSE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input(AttributeName.OPERATION_TRANSPOSE_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_TRANSPOSE_YDESC)
    permutation: tuple[int, ...] = attribute(
        AttributeName.OPERATION_TRANSPOSE_PERMUTATION, AttributeType.INT64, max_count=DIM_MAX
    )

    def __post_init__(self) -> None:
        expected = output_dims(self.x.dims, self.permutation)
        if self.y.dims != expected:
            raise ShapeMismatchError.at("transpose.y.dims", expected=list(expected), got=list(self.y.dims))

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": np.transpose(inputs["x"], self.permutation)}


def output_dims(x_dims: tuple[int, ...], permutation: tuple[int, ...]) -> tuple[int, ...]:
    """y's dims; raises BadParamError where ``permutation`` is none of x's axes."""
    if sorted(permutation) != list(range(len(x_dims))):
        raise BadParamError.at(
            "transpose.permutation", expected=f"each axis of 0 to {len(x_dims) - 1} once", got=list(permutation)
        )
    return tuple(x_dims[axis] for axis in permutation)
