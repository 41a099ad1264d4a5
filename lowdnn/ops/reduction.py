"""Reduction: y = op over the axes that x has and y lacks (extent 1 in y).

ADD, MUL, MIN, MAX; AMAX = max |x|; AVG = sum / count; NORM1 = sum |x|; NORM2 = sqrt(sum x^2);
MUL_NO_ZEROS = product of the non-zero elements. An empty reduction gives the neutral element
(0, 1, +inf, -inf, 0, NaN, 0, 0, 1; integer types give their largest and smallest value for MIN and MAX, 0 for AVG).
MIN, MAX and AMAX propagate NaN. x is converted to the compute type first and the result rounded to it. Integer sums and
products wrap at the compute type's width, AVG truncates toward zero, and NORM2 needs a float compute type.
Source: cudnn_graph.h, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, OPERATION_REDUCTION, cudnnReduceTensorOp_t.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, ReduceTensorOp
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError

_COMPUTE_TYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class Reduction:
    """Operator and arithmetic of a reduction; every engine that takes one is deterministic, asked for or not."""

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
        if self.operator is ReduceTensorOp.NORM2 and self.is_integer:
            raise UnsupportedDataTypeError.at(
                "reduction.compute_type", expected="FLOAT or DOUBLE for NORM2", got=self.compute_type.name
            )

    @property
    def is_integer(self) -> bool:
        """True for integer arithmetic."""
        return self.compute_type in (DataType.INT32, DataType.INT64)


@dataclass(frozen=True)
class ReductionOperation:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_REDUCTION
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.REDUCTION

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
                raise ShapeMismatchError.at(
                    f"reduction.y.dims[{axis}]", expected=f"1, {source} as x, or a part of it", got=target
                )

    @property
    def compute_type(self) -> DataType:
        return self.reduction.compute_type

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
        compute = self.reduction.compute_type
        values = dtypes.rounded(inputs["x"], compute)
        with np.errstate(all="ignore"):
            result = _reduce(values, self.axes, self.reduction)
            return {"y": (dtypes.wrapped if self.reduction.is_integer else dtypes.rounded)(result, compute)}


def _reduce(values: NDArray[Any], axes: tuple[int, ...], reduction: Reduction) -> NDArray[Any]:
    """The operator over ``axes``, which stay with extent 1; ``values`` are float64 or int64."""
    if reduction.operator is ReduceTensorOp.AVG:
        return _average(np.add.reduce(values, axes, keepdims=True, initial=0), values, reduction)
    prepare = _PREPARE.get(reduction.operator)
    combine, neutral = _combination(reduction)
    result = combine.reduce(prepare(values) if prepare else values, axes, keepdims=True, initial=neutral)
    return np.asarray(np.sqrt(result) if reduction.operator is ReduceTensorOp.NORM2 else result)


def _combination(reduction: Reduction) -> tuple[np.ufunc, float]:
    """The function that joins two elements, and its neutral element."""
    smallest, largest = _extremes(reduction.compute_type)
    match reduction.operator:
        case ReduceTensorOp.MUL | ReduceTensorOp.MUL_NO_ZEROS:
            return np.multiply, 1
        case ReduceTensorOp.MIN:
            return np.minimum, largest
        case ReduceTensorOp.MAX:
            return np.maximum, smallest
        case ReduceTensorOp.AMAX:
            return np.maximum, 0
        case _:
            return np.add, 0


#: The function of each element before it is joined to the others.
_PREPARE: Mapping[ReduceTensorOp, Callable[[NDArray[Any]], NDArray[Any]]] = {
    ReduceTensorOp.AMAX: lambda values: np.abs(values),
    ReduceTensorOp.NORM1: lambda values: np.abs(values),
    ReduceTensorOp.NORM2: lambda values: np.square(values),
    ReduceTensorOp.MUL_NO_ZEROS: lambda values: np.asarray(np.where(values == 0, 1, values)),
}


def _average(total: NDArray[Any], values: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
    count = values.size // total.size if total.size else 0
    if not reduction.is_integer:
        return total / count if count else np.full_like(total, np.nan)
    total = dtypes.wrapped(total, reduction.compute_type)
    return (total - np.fmod(total, count)) // count if count else np.zeros_like(total)


def _extremes(compute_type: DataType) -> tuple[float, float]:
    """The smallest and the largest value of a compute type."""
    storage = dtypes.info(compute_type).storage
    if storage.kind == "f":
        return -np.inf, np.inf
    return int(np.iinfo(storage).min), int(np.iinfo(storage).max)
