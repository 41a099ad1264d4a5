"""The scale and bias of batch normalisation from channel statistics (``ops.gen_stats``): for each channel

    mean = sum / accum_count        inv_std = 1 / sqrt(sum_of_squares / accum_count - mean^2 + epsilon)
    eq_scale = scale * inv_std      eq_bias = bias - mean * eq_scale

so that y = x * eq_scale + eq_bias. Running statistics are updated as by ``ops.norm_forward``.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, BnFinalizeStatsMode, DataType, DescriptorType
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.norm import check_dims, check_float, check_scalar, unbiased_factor
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, NotSupportedError, UnsupportedDataTypeError

_SCALARS = ("accum_count", "epsilon", "exp_avg_factor")


@dataclass(frozen=True)
class BnFinalize:
    """See the module's docstring. All tensors but the by-value ones have the dims of ``sum``."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_BN_FINALIZE_STATISTICS
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    mode: BnFinalizeStatsMode = attribute(
        AttributeName.OPERATION_BN_FINALIZE_STATS_MODE, AttributeType.BN_FINALIZE_STATS_MODE
    )
    compute_type: DataType = attribute(AttributeName.OPERATION_BN_FINALIZE_MATH_PREC, AttributeType.DATA_TYPE)
    sum: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_Y_SUM_DESC)
    sum_of_squares: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_Y_SQ_SUM_DESC)
    scale: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_SCALE_DESC)
    bias: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_BIAS_DESC)
    accum_count: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_ACCUM_COUNT_DESC)
    epsilon: Tensor = tensor_input(AttributeName.OPERATION_BN_FINALIZE_EPSILON_DESC)
    mean: Tensor = tensor_output(AttributeName.OPERATION_BN_FINALIZE_SAVED_MEAN_DESC)
    inv_std: Tensor = tensor_output(AttributeName.OPERATION_BN_FINALIZE_SAVED_INV_STD_DESC)
    eq_scale: Tensor = tensor_output(AttributeName.OPERATION_BN_FINALIZE_EQ_SCALE_DESC)
    eq_bias: Tensor = tensor_output(AttributeName.OPERATION_BN_FINALIZE_EQ_BIAS_DESC)
    exp_avg_factor: Tensor | None = tensor_input(
        AttributeName.OPERATION_BN_FINALIZE_EXP_AVERATE_FACTOR_DESC, default=None
    )
    input_running_mean: Tensor | None = tensor_input(
        AttributeName.OPERATION_BN_FINALIZE_PREV_RUNNING_MEAN_DESC, default=None
    )
    input_running_var: Tensor | None = tensor_input(
        AttributeName.OPERATION_BN_FINALIZE_PREV_RUNNING_VAR_DESC, default=None
    )
    output_running_mean: Tensor | None = tensor_output(
        AttributeName.OPERATION_BN_FINALIZE_UPDATED_RUNNING_MEAN_DESC, default=None
    )
    output_running_var: Tensor | None = tensor_output(
        AttributeName.OPERATION_BN_FINALIZE_UPDATED_RUNNING_VAR_DESC, default=None
    )

    def __post_init__(self) -> None:
        where = "bn_finalize"
        if self.mode is not BnFinalizeStatsMode.TRAINING:
            raise NotSupportedError.at(f"{where}.mode", expected="TRAINING", got=self.mode.name)
        if self.compute_type not in (DataType.FLOAT, DataType.DOUBLE):
            raise UnsupportedDataTypeError.at(
                f"{where}.compute_type", expected="FLOAT or DOUBLE", got=self.compute_type.name
            )
        ports = inputs_of(self) | outputs_of(self)
        for port in _SCALARS:
            if port in ports:
                check_scalar(f"{where}.{port}", ports.pop(port))
        check_float(where, ports)
        check_dims(where, self.sum.dims, dict(ports))
        running = (*self.running, self.exp_avg_factor)
        if any(running) and not all(running):
            raise BadParamError.at(f"{where}.running statistics", expected="all of them and their factor", got="some")

    @property
    def running(self) -> tuple[Tensor | None, ...]:
        """Mean before and after, variance before and after."""
        return (self.input_running_mean, self.output_running_mean, self.input_running_var, self.output_running_var)

    @property
    def flops(self) -> int:
        return 16 * self.sum.element_count

    def without(self, ports: Collection[str]) -> BnFinalize:
        """The operation without the running statistics, if both are among ``ports``."""
        if not {"output_running_mean", "output_running_var"} <= set(ports):
            return self
        return replace(
            self,
            exp_avg_factor=None,
            input_running_mean=None,
            input_running_var=None,
            output_running_mean=None,
            output_running_var=None,
        )

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        count = inputs["accum_count"].item()
        with np.errstate(all="ignore"):
            mean = inputs["sum"] / np.float64(count)
            variance = inputs["sum_of_squares"] / np.float64(count) - np.square(mean)
            inv_std = 1 / np.sqrt(variance + inputs["epsilon"].item())
            eq_scale = inputs["scale"] * inv_std
            results = {"mean": mean, "inv_std": inv_std, "eq_scale": eq_scale}
            results["eq_bias"] = inputs["bias"] - mean * eq_scale
            if self.exp_avg_factor is not None:
                factor, unbiased = inputs["exp_avg_factor"].item(), variance * unbiased_factor(count)
                for name, now in (("mean", mean), ("var", unbiased)):
                    results[f"output_running_{name}"] = (1 - factor) * inputs[f"input_running_{name}"] + factor * now
        return {port: results[port] for port in outputs_of(self)}
