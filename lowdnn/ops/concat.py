"""Concatenation: y has the inputs one after the other along ``axis``.

in_place_index: the input with this number is part of y already: the caller has placed it there, and nothing of it is
read or written.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_inputs, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError


@dataclass(frozen=True)
class Concat:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONCAT
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.EXACT

    axis: int = attribute(AttributeName.OPERATION_CONCAT_AXIS, AttributeType.INT64)
    inputs: tuple[Tensor, ...] = tensor_inputs(AttributeName.OPERATION_CONCAT_INPUT_DESCS)
    y: Tensor = tensor_output(AttributeName.OPERATION_CONCAT_OUTPUT_DESC)
    in_place_index: int | None = attribute(
        AttributeName.OPERATION_CONCAT_INPLACE_INDEX, AttributeType.INT64, default=None
    )

    def __post_init__(self) -> None:
        expected = output_dims([tensor.dims for tensor in self.inputs], self.axis)
        if self.y.dims != expected:
            raise ShapeMismatchError.at("concat.y.dims", expected=list(expected), got=list(self.y.dims))
        if self.in_place_index is not None:
            self._check_in_place(self.in_place_index)

    @property
    def starts(self) -> tuple[int, ...]:
        """The index along ``axis`` of y at which each input begins."""
        return tuple(accumulate((tensor.dims[self.axis] for tensor in self.inputs[:-1]), initial=0))

    @property
    def flops(self) -> int:
        return 0

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        return {"y": np.concatenate([inputs[f"inputs[{n}]"] for n in range(len(self.inputs))], self.axis)}

    def _check_in_place(self, index: int) -> None:
        if not 0 <= index < len(self.inputs):
            raise BadParamError.at("concat.in_place_index", expected=f"0 to {len(self.inputs) - 1}", got=index)
        tensor = self.inputs[index]
        if (tensor.strides, tensor.data_type) != (self.y.strides, self.y.data_type):
            raise BadParamError.at(
                f"concat.inputs[{index}]",
                expected=f"y's strides {list(self.y.strides)} and type {self.y.data_type.name}, being a part of it",
                got=f"{list(tensor.strides)}, {tensor.data_type.name}",
            )


def output_dims(inputs: Sequence[tuple[int, ...]], axis: int) -> tuple[int, ...]:
    """y's dims; raises BadParamError and ShapeMismatchError."""
    if not inputs:
        raise BadParamError.at("concat.inputs", expected="at least one tensor", got="none")
    first = inputs[0]
    if not 0 <= axis < len(first):
        raise BadParamError.at("concat.axis", expected=f"0 to {len(first) - 1}", got=axis)
    for number, dims in enumerate(inputs):
        if len(dims) != len(first) or dims[:axis] + dims[axis + 1 :] != first[:axis] + first[axis + 1 :]:
            raise ShapeMismatchError.at(
                f"concat.inputs[{number}].dims", expected=f"{list(first)} but for axis {axis}", got=list(dims)
            )
    return (*first[:axis], sum(dims[axis] for dims in inputs), *first[axis + 1 :])
