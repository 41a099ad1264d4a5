"""Reduction: y = op over the axes that x has and y has not (extent 1 in y).

ADD, MUL, MIN, MAX; AMAX = max |x|; AVG = sum / count; NORM1 = sum |x|; NORM2 = sqrt(sum x^2);
MUL_NO_ZEROS = product of the non-zero elements. An empty reduction gives the neutral element
(0, 1, +inf, -inf, 0, NaN, 0, 0, 1; integer types give their largest and smallest value for MIN and MAX, 0 for AVG).
MIN, MAX and AMAX propagate NaN.
Source: cudnn_graph.h, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, OPERATION_REDUCTION, cudnnReduceTensorOp_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, ReduceTensorOp
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError

_COMPUTE_TYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class Reduction:
    """Operator and arithmetic of a reduction; every engine of lowdnn is deterministic, asked for or not."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.REDUCTION

    operator: ReduceTensorOp = attribute(AttributeName.REDUCTION_OPERATOR, AttributeType.REDUCTION_OPERATOR_TYPE)
    compute_type: DataType = attribute(AttributeName.REDUCTION_COMP_TYPE, AttributeType.DATA_TYPE)
    is_deterministic: bool = attribute(AttributeName.REDUCTION_IS_DETERMINISTIC, AttributeType.BOOLEAN, default=True)

    def __post_init__(self) -> None:
        if self.compute_type not in _COMPUTE_TYPES:
            raise UnsupportedDataTypeError.at(
                "reduction.compute_type",
                expected="one of " + ", ".join(t.name for t in _COMPUTE_TYPES),
                got=self.compute_type.name,
            )


@dataclass(frozen=True)
class ReductionOperation:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_REDUCTION

    reduction: Reduction = attribute(
        AttributeName.OPERATION_REDUCTION_DESC, AttributeType.BACKEND_DESCRIPTOR, descriptor=DescriptorType.REDUCTION
    )
    x: Tensor = tensor_input(AttributeName.OPERATION_REDUCTION_XDESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_REDUCTION_YDESC)

    def __post_init__(self) -> None:
        if self.x.rank != self.y.rank:
            raise ShapeMismatchError.at("reduction.y.dims", expected=f"rank {self.x.rank} as x", got=list(self.y.dims))
        for axis, (source, target) in enumerate(zip(self.x.dims, self.y.dims, strict=True)):
            if target not in (1, source):
                raise ShapeMismatchError.at(f"reduction.y.dims[{axis}]", expected=f"1 or {source} as x", got=target)

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced axes: those with an extent other than 1 in x and 1 in y."""
        return tuple(
            axis
            for axis, (source, target) in enumerate(zip(self.x.dims, self.y.dims, strict=True))
            if target == 1 and source != 1
        )

    @property
    def flops(self) -> int:
        return self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        raise NotImplementedError
