"""Cumulative sum: y[..., i, ...] = sum of x[..., j, ...] over j <= i, along one axis.

The arithmetic is DOUBLE where x is, otherwise FLOAT. A NaN, or infinities of both signs, make all later sums NaN.
cuDNN has no descriptor of this operation.
Source: Blelloch, "Prefix sums and their applications", 1990.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_float_operands
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class CumulativeSum:
    """See the module's docstring. axis: the axis of the sums, from 0 on."""

    descriptor_type: ClassVar[DescriptorType | None] = None
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.REDUCTION

    axis: int
    x: Tensor = tensor_input()
    y: Tensor = tensor_output()

    def __post_init__(self) -> None:
        if not 0 <= self.axis < self.x.rank:
            raise BadParamError.at("cumulative_sum.axis", expected=f"0 to {self.x.rank - 1}", got=self.axis)
        if self.y.dims != self.x.dims:
            raise ShapeMismatchError.at("cumulative_sum.y.dims", expected=list(self.x.dims), got=list(self.y.dims))
        check_float_operands("cumulative_sum", (self.x, self.y))

    @property
    def compute_type(self) -> DataType:
        """The type of the sums."""
        return DataType.DOUBLE if self.x.data_type is DataType.DOUBLE else DataType.FLOAT

    @property
    def flops(self) -> int:
        return self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": np.cumsum(inputs["x"], axis=self.axis)}
