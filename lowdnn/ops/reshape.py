"""Reshape: x's elements under other dims.

LOGICAL    y has x's elements in row-major order of their coordinates, wherever they lie in memory.
VIEW_ONLY  y's dims and strides name the elements that x's dims and strides name: y[i] is the element of x at the offset
           sum(i[d] * y.strides[d]). So a view may transpose.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, cudnnBackendReshapeMode_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DescriptorType, ReshapeMode
from lowdnn.ops.base import Values
from lowdnn.ops.memory import viewed
from lowdnn.ops.tensor import Tensor, has_overlap
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class Reshape:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_RESHAPE
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    x: Tensor = tensor_input(AttributeName.OPERATION_RESHAPE_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_RESHAPE_YDESC)
    mode: ReshapeMode = attribute(
        AttributeName.OPERATION_RESHAPE_MODE, AttributeType.RESHAPE_MODE, default=ReshapeMode.VIEW_ONLY
    )

    def __post_init__(self) -> None:
        if self.x.element_count != self.y.element_count:
            raise ShapeMismatchError.at(
                "reshape.y.dims", expected=f"{self.x.element_count} elements as x", got=list(self.y.dims)
            )
        if self.mode is ReshapeMode.VIEW_ONLY and self.x.element_count:
            self._check_view()

    @property
    def placed(self) -> tuple[Tensor, ...]:
        """A view names elements by where they lie."""
        return (self.x, self.y) if self.mode is ReshapeMode.VIEW_ONLY else ()

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        if self.mode is ReshapeMode.VIEW_ONLY:
            return {"y": viewed(inputs["x"], self.x.strides, self.y.dims, self.y.strides)}
        return {"y": inputs["x"].reshape(self.y.dims)}

    def _check_view(self) -> None:
        if has_overlap(self.x.dims, self.x.strides):
            raise BadParamError.at(
                "reshape.x.strides", expected="elements that do not overlap, for a view", got=list(self.x.strides)
            )
        if memory_axes(self.x.dims, self.x.strides) != memory_axes(self.y.dims, self.y.strides):
            raise BadParamError.at(
                "reshape.y.strides",
                expected=f"a view of the elements of x, which has dims {list(self.x.dims)} and strides "
                f"{list(self.x.strides)}",
                got=f"{list(self.y.strides)} for dims {list(self.y.dims)}",
                hint="RESHAPE_LOGICAL moves elements",
            )


def memory_axes(dims: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(extent, stride) of the fewest axes with the same elements, the outermost first."""
    merged: list[tuple[int, int]] = []
    for stride, extent in sorted(zip(strides, dims, strict=True), reverse=True):
        if extent == 1:
            continue
        if merged and merged[-1][1] == stride * extent:
            merged[-1] = (merged[-1][0] * extent, stride)
        else:
            merged.append((extent, stride))
    return tuple(merged)
