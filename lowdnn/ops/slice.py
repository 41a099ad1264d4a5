"""Slice: y[i] = x[start + i * stride] along every axis, for the places from start up to, but not including, limit.

Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_SLICE_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import DIM_MAX, AttributeName, AttributeType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class Slice:
    """See the module's docstring. start, limit, strides: one for each axis; strides left out are 1."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_SLICE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input(AttributeName.OPERATION_SLICE_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_SLICE_YDESC)
    start: tuple[int, ...] = attribute(
        AttributeName.OPERATION_SLICE_START_INDICES, AttributeType.INT64, max_count=DIM_MAX
    )
    limit: tuple[int, ...] = attribute(
        AttributeName.OPERATION_SLICE_LIMIT_INDICES, AttributeType.INT64, max_count=DIM_MAX
    )
    strides: tuple[int, ...] = attribute(
        AttributeName.OPERATION_SLICE_STRIDES, AttributeType.INT64, max_count=DIM_MAX, default=()
    )

    def __post_init__(self) -> None:
        expected = output_dims(self.x.dims, self.start, self.limit, self.steps)
        if self.y.dims != expected:
            raise ShapeMismatchError.at("slice.y.dims", expected=list(expected), got=list(self.y.dims))

    @property
    def steps(self) -> tuple[int, ...]:
        """The stride along every axis."""
        return self.strides or (1,) * self.x.rank

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": inputs["x"][tuple(map(slice, self.start, self.limit, self.steps))]}


def output_dims(
    x_dims: tuple[int, ...], start: tuple[int, ...], limit: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[int, ...]:
    """y's dims; raises BadParamError for places that x does not have."""
    for field, values in (("start", start), ("limit", limit), ("strides", steps)):
        if len(values) != len(x_dims):
            raise BadParamError.at(f"slice.{field}", expected=f"{len(x_dims)} values, as x's rank", got=list(values))
    for axis, (extent, first, end, step) in enumerate(zip(x_dims, start, limit, steps, strict=True)):
        if not 0 <= first <= end <= extent:
            raise BadParamError.at(
                f"slice axis {axis}", expected=f"0 <= start <= limit <= {extent}", got=f"start {first}, limit {end}"
            )
        if step < 1:
            raise BadParamError.at(f"slice.strides[{axis}]", expected="1 or more", got=step)
    return tuple(-(-(end - first) // step) for first, end, step in zip(start, limit, steps, strict=True))
