"""Normalisation: y = (x - mean) * inv_variance * scale + bias, with

    mean = the average of x        inv_variance = 1 / sqrt(the average of (x - mean)^2 + epsilon)

over the axes that the mode names (``ops.norm``). RMS_NORM takes the mean as 0 and has none. In the training phase mean
and inv_variance are outputs; BATCH_NORM may carry running statistics on,

    output_running = (1 - exp_avg_factor) * input_running + exp_avg_factor * this batch's

with the variance of the batch divided by count - 1, or by 1 where a channel has one element. The inference phase has no
statistics; that of BATCH_NORM, whose statistics are inputs, is another operation (``norm_inference``).
Elements may be of any size: squares that FLOAT cannot hold do not show in y, except with peers.

BATCH_NORM may have peers (``ops.peer_stats``): ranks that run the same operation at the same time on equal parts of one
batch. mean and variance are then those of the whole batch, the same bits on every rank.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR. GROUP_NORM is defined as by Wu and He, "Group
normalization", 2018.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.enums import AttributeName, AttributeType, DataType, DescriptorType, NormFwdPhase, NormMode
from lowdnn.ops.base import Values, inputs_of, outputs_of
from lowdnn.ops.norm import (
    NormShape,
    average,
    check_dims,
    check_float,
    check_scalar,
    compute_type_of,
    unbiased_factor,
)
from lowdnn.ops.peer_stats import check_peer_stats, refuse_peers
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute, tensor_input, tensor_inputs, tensor_output
from lowdnn.status import BadParamError, NotSupportedError


@dataclass(frozen=True)
class NormForward:
    """See the module's docstring. ``groups``: of GROUP_NORM; 0 where the statistics' dims say it."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_NORM_FORWARD
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.ROWS

    mode: NormMode = attribute(AttributeName.OPERATION_NORM_FWD_MODE, AttributeType.NORM_MODE)
    phase: NormFwdPhase = attribute(AttributeName.OPERATION_NORM_FWD_PHASE, AttributeType.NORM_FWD_PHASE)
    x: Tensor = tensor_input(AttributeName.OPERATION_NORM_FWD_XDESC)
    epsilon: Tensor = tensor_input(AttributeName.OPERATION_NORM_FWD_EPSILON_DESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_NORM_FWD_YDESC)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_SCALE_DESC, default=None)
    bias: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_BIAS_DESC, default=None)
    mean: Tensor | None = tensor_output(AttributeName.OPERATION_NORM_FWD_MEAN_DESC, default=None)
    inv_variance: Tensor | None = tensor_output(AttributeName.OPERATION_NORM_FWD_INV_VARIANCE_DESC, default=None)
    exp_avg_factor: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, default=None)
    input_running_mean: Tensor | None = tensor_input(
        AttributeName.OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC, default=None
    )
    input_running_var: Tensor | None = tensor_input(
        AttributeName.OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC, default=None
    )
    output_running_mean: Tensor | None = tensor_output(
        AttributeName.OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC, default=None
    )
    output_running_var: Tensor | None = tensor_output(
        AttributeName.OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC, default=None
    )
    groups: int = 0
    peer_stats: tuple[Tensor, ...] = tensor_inputs(AttributeName.OPERATION_NORM_FWD_PEER_STAT_DESCS, is_optional=True)

    def __post_init__(self) -> None:
        where = "norm_forward"
        self.shape.check(where)
        check_dims(where, self.x.dims, {"y": self.y})
        check_dims(where, self.shape.scale_dims or (), {"scale": self.scale, "bias": self.bias})
        check_dims(where, self.shape.stats_dims, {"mean": self.mean, "inv_variance": self.inv_variance})
        check_float(where, inputs_of(self) | outputs_of(self))
        check_scalar(f"{where}.epsilon", self.epsilon)
        self._check_statistics(where)
        self._check_running(where)
        check_peer_stats(where, self.peer_stats, self.mode, self.x.dims[1], self.compute_type)

    @property
    def shape(self) -> NormShape:
        parameter = self.scale or self.bias
        groups = self.groups
        if self.mode is NormMode.GROUP_NORM and not groups:
            stats = self.mean or self.inv_variance
            groups = stats.dims[1] if stats is not None and stats.rank > 1 else 0
        return NormShape(self.mode, self.x.dims, None if parameter is None else parameter.dims, groups)

    @property
    def compute_type(self) -> DataType:
        return compute_type_of(self.x)

    @property
    def has_extremes(self) -> bool:
        """Whether squares of x can leave the range of the arithmetic, as those of HALF and FP8 cannot in FLOAT."""
        bits = dtypes.info(self.x.data_type).exponent_bits
        return (
            len(self.peer_stats) < 2
            and self.compute_type is DataType.FLOAT
            and bits >= dtypes.info(DataType.FLOAT).exponent_bits
        )

    @property
    def running(self) -> tuple[Tensor, ...]:
        """The running statistics and their factor, if there are any."""
        return tuple(tensor for tensor in self._running.values() if tensor is not None)

    @property
    def flops(self) -> int:
        return 8 * self.x.element_count

    def without(self, ports: Collection[str]) -> NormForward:
        """The operation without running statistics and without mean and inv_variance, where no operation reads them.

        Without the latter it is of the inference phase, which BATCH_NORM does not have.
        """
        kept = self
        if self.running and {"output_running_mean", "output_running_var"} <= set(ports):
            absent: dict[str, Any] = dict.fromkeys(self._running)
            kept = replace(kept, **absent)
        statistics = outputs_of(self).keys() & {"mean", "inv_variance"}
        if self.mode is not NormMode.BATCH_NORM and statistics and statistics <= set(ports):
            groups = self.shape.groups
            kept = replace(kept, phase=NormFwdPhase.INFERENCE, mean=None, inv_variance=None, groups=groups)
        return kept

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        refuse_peers(self.peer_stats)
        shape = self.shape
        x = inputs["x"].reshape(shape.split(self.x.dims))
        with np.errstate(all="ignore"):
            mean = np.zeros(()) if self.mode is NormMode.RMS_NORM else average(x, shape.axes)
            centred = x - mean
            variance = average(np.square(centred), shape.axes)
            inv_variance = 1 / np.sqrt(variance + inputs["epsilon"].item())
            y = (centred * inv_variance).reshape(self.x.dims)
            y = y * inputs.get("scale", 1.0) + inputs.get("bias", 0.0)
            results = {"y": y, "inv_variance": inv_variance.reshape(shape.stats_dims)}
            if self.mode is not NormMode.RMS_NORM:
                results["mean"] = mean.reshape(shape.stats_dims)
            if self.running:
                factor = inputs["exp_avg_factor"].item()
                unbiased = variance.reshape(shape.stats_dims) * unbiased_factor(shape.count)
                for name, now in (("mean", results["mean"]), ("var", unbiased)):
                    results[f"output_running_{name}"] = (1 - factor) * inputs[f"input_running_{name}"] + factor * now
        return {port: results[port] for port in outputs_of(self)}

    @property
    def _running(self) -> dict[str, Tensor | None]:
        return {
            "exp_avg_factor": self.exp_avg_factor,
            "input_running_mean": self.input_running_mean,
            "input_running_var": self.input_running_var,
            "output_running_mean": self.output_running_mean,
            "output_running_var": self.output_running_var,
        }

    def _check_statistics(self, where: str) -> None:
        if self.phase is NormFwdPhase.INFERENCE:
            if self.mode is NormMode.BATCH_NORM:
                raise NotSupportedError.at(
                    f"{where}.phase", expected="TRAINING for BATCH_NORM", got="INFERENCE", hint="use BatchNormInference"
                )
            if self.mean is not None or self.inv_variance is not None:
                raise BadParamError.at(f"{where}.mean, inv_variance", expected="none for INFERENCE", got="a tensor")
            return
        wanted = (
            {"inv_variance": self.inv_variance}
            if self.mode is NormMode.RMS_NORM
            else {
                "mean": self.mean,
                "inv_variance": self.inv_variance,
            }
        )
        for port, tensor in wanted.items():
            if tensor is None:
                raise BadParamError.at(f"{where}.{port}", expected="a tensor for TRAINING", got="none")
        if self.mode is NormMode.RMS_NORM and self.mean is not None:
            raise BadParamError.at(f"{where}.mean", expected="none for RMS_NORM", got=self.mean.label)

    def _check_running(self, where: str) -> None:
        if not self.running:
            return
        if self.mode is not NormMode.BATCH_NORM:
            raise BadParamError.at(f"{where}.running statistics", expected="BATCH_NORM", got=self.mode.name)
        for port, tensor in self._running.items():
            if tensor is None:
                raise BadParamError.at(f"{where}.{port}", expected="all running statistics or none", got="none")
            if port == "exp_avg_factor":
                check_scalar(f"{where}.{port}", tensor)
            else:
                check_dims(where, self.shape.stats_dims, {port: tensor})
