"""Statistics for batch normalisation: for each channel c, over all other axes,

    sum[c] = sum of x[n, c, ...]        sum_of_squares[c] = sum of x[n, c, ...]^2

x is (N, C, spatial...), the results are (1, C, 1...). x is converted to the compute type first; squares and sums are
those of the compute type.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, GenStatsMode
from lowdnn.ops.base import Values
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError


@dataclass(frozen=True)
class GenStats:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_GEN_STATS
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.REDUCTION

    x: Tensor = tensor_input(AttributeName.OPERATION_GENSTATS_XDESC)
    sum: Tensor = tensor_output(AttributeName.OPERATION_GENSTATS_SUMDESC)
    sum_of_squares: Tensor = tensor_output(AttributeName.OPERATION_GENSTATS_SQSUMDESC)
    compute_type: DataType = attribute(AttributeName.OPERATION_GENSTATS_MATH_PREC, AttributeType.DATA_TYPE)
    mode: GenStatsMode = attribute(
        AttributeName.OPERATION_GENSTATS_MODE, AttributeType.GENSTATS_MODE, default=GenStatsMode.SUM_SQSUM
    )

    def __post_init__(self) -> None:
        if self.x.rank < 2:
            raise ShapeMismatchError.at("gen_stats.x.dims", expected="rank >= 2", got=list(self.x.dims))
        expected = output_dims(self.x.dims)
        for port, tensor in (("sum", self.sum), ("sum_of_squares", self.sum_of_squares)):
            if tensor.dims != expected:
                raise ShapeMismatchError.at(f"gen_stats.{port}.dims", expected=list(expected), got=list(tensor.dims))
        if self.compute_type not in (DataType.FLOAT, DataType.DOUBLE):
            raise UnsupportedDataTypeError.at(
                "gen_stats.compute_type", expected="FLOAT or DOUBLE", got=self.compute_type.name
            )

    @property
    def axes(self) -> tuple[int, ...]:
        """The reduced axes: all but the channels with an extent other than 1."""
        return tuple(axis for axis, extent in enumerate(self.x.dims) if axis != 1 and extent != 1)

    @property
    def flops(self) -> int:
        return 3 * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        x = dtypes.rounded(inputs["x"], self.compute_type)
        axes = tuple(axis for axis in range(self.x.rank) if axis != 1)
        with np.errstate(all="ignore"):
            results = {"sum": x, "sum_of_squares": np.square(x)}
            return {port: values.sum(axes, keepdims=True) for port, values in results.items()}


def output_dims(x_dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims of both results."""
    return tuple(extent if axis == 1 else 1 for axis, extent in enumerate(x_dims))
