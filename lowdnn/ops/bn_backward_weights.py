"""The gradients of batch normalisation's scale and bias, and what dx is made of: with xhat = (x - mean) * inv_std,

    dscale = sum of dy * xhat        dbias = sum of dy        dx = eq_dy_scale * dy + eq_x_scale * x + eq_bias

over all axes but the channels, count elements each:

    eq_dy_scale = scale * inv_std        eq_x_scale = -eq_dy_scale * inv_std * dscale / count
    eq_bias = -eq_dy_scale * dbias / count - eq_x_scale * mean

Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR; dx is that of ``ops.norm_backward``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType
from lowdnn.ops import gen_stats
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.norm import check_dims, check_float
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import ShapeMismatchError, UnsupportedDataTypeError


@dataclass(frozen=True)
class BnBackwardWeights:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_BN_BWD_WEIGHTS
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.REDUCTION

    compute_type: DataType = attribute(AttributeName.OPERATION_BN_BWD_WEIGHTS_MATH_PREC, AttributeType.DATA_TYPE)
    mean: Tensor = tensor_input(AttributeName.OPERATION_BN_BWD_WEIGHTS_MEAN_DESC)
    inv_std: Tensor = tensor_input(AttributeName.OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC)
    scale: Tensor = tensor_input(AttributeName.OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC)
    x: Tensor = tensor_input(AttributeName.OPERATION_BN_BWD_WEIGHTS_X_DESC)
    dy: Tensor = tensor_input(AttributeName.OPERATION_BN_BWD_WEIGHTS_DY_DESC)
    dscale: Tensor = tensor_output(AttributeName.OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC)
    dbias: Tensor = tensor_output(AttributeName.OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC)
    eq_dy_scale: Tensor = tensor_output(AttributeName.OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC)
    eq_x_scale: Tensor = tensor_output(AttributeName.OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC)
    eq_bias: Tensor = tensor_output(AttributeName.OPERATION_BN_BWD_WEIGHTS_EQ_BIAS)

    def __post_init__(self) -> None:
        where = "bn_backward_weights"
        if self.compute_type not in (DataType.FLOAT, DataType.DOUBLE):
            raise UnsupportedDataTypeError.at(
                f"{where}.compute_type", expected="FLOAT or DOUBLE", got=self.compute_type.name
            )
        if self.x.rank < 2:
            raise ShapeMismatchError.at(f"{where}.x.dims", expected="rank >= 2", got=list(self.x.dims))
        check_dims(where, self.x.dims, {"dy": self.dy})
        ports = inputs_of(self) | outputs_of(self)
        check_float(where, ports)
        of_channels = {port: tensor for port, tensor in ports.items() if port not in ("x", "dy")}
        check_dims(where, gen_stats.output_dims(self.x.dims), dict(of_channels))

    @property
    def count(self) -> int:
        """Elements of a channel."""
        return self.x.element_count // max(self.x.dims[1], 1)

    @property
    def flops(self) -> int:
        return 6 * self.x.element_count

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        axes = tuple(axis for axis in range(self.x.rank) if axis != 1)
        mean, inv_std, dy = inputs["mean"], inputs["inv_std"], inputs["dy"]
        with np.errstate(all="ignore"):
            dscale = (dy * (inputs["x"] - mean) * inv_std).sum(axes, keepdims=True)
            dbias = dy.sum(axes, keepdims=True)
            eq_dy_scale = inputs["scale"] * inv_std
            eq_x_scale = -eq_dy_scale * inv_std * dscale / np.float64(self.count)
            eq_bias = -eq_dy_scale * dbias / np.float64(self.count) - eq_x_scale * mean
        return {
            "dscale": dscale,
            "dbias": dbias,
            "eq_dy_scale": eq_dy_scale,
            "eq_x_scale": eq_x_scale,
            "eq_bias": eq_bias,
        }
