"""Batch normalisation by statistics that are given: y = (x - mean) * inv_variance * scale + bias.

It is what the descriptor of normalisation is for BATCH_NORM in the inference phase, where mean and inv_variance are
inputs. A number for epsilon may be given and does not count, since inv_variance has it.
It stands for pointwise operations, which ``graph.expansion`` puts in its place.
Source: cudnn_graph.h, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lowdnn.enums import AttributeName, AttributeType, DescriptorType, NormFwdPhase, NormMode
from lowdnn.ops.base import inputs_of, outputs_of
from lowdnn.ops.norm import NormShape, check_dims, check_float
from lowdnn.ops.norm_forward import NormForward
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output

_WHERE = "norm_forward"


@dataclass(frozen=True)
class BatchNormInference:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_NORM_FORWARD
    form_of: ClassVar[type] = NormForward

    mode: NormMode = attribute(AttributeName.OPERATION_NORM_FWD_MODE, AttributeType.NORM_MODE)
    phase: NormFwdPhase = attribute(AttributeName.OPERATION_NORM_FWD_PHASE, AttributeType.NORM_FWD_PHASE)
    x: Tensor = tensor_input(AttributeName.OPERATION_NORM_FWD_XDESC)
    mean: Tensor = tensor_input(AttributeName.OPERATION_NORM_FWD_MEAN_DESC)
    inv_variance: Tensor = tensor_input(AttributeName.OPERATION_NORM_FWD_INV_VARIANCE_DESC)
    y: Tensor = tensor_output(AttributeName.OPERATION_NORM_FWD_YDESC)
    scale: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_SCALE_DESC, default=None)
    bias: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_BIAS_DESC, default=None)
    epsilon: Tensor | None = tensor_input(AttributeName.OPERATION_NORM_FWD_EPSILON_DESC, default=None)

    @classmethod
    def fits(cls, given: Mapping[AttributeName, Any]) -> bool:
        """Whether a descriptor with these values is of this form."""
        wanted = {
            AttributeName.OPERATION_NORM_FWD_MODE: NormMode.BATCH_NORM,
            AttributeName.OPERATION_NORM_FWD_PHASE: NormFwdPhase.INFERENCE,
        }
        return all(given.get(name) is value for name, value in wanted.items())

    def __post_init__(self) -> None:
        check_dims(_WHERE, self.x.dims, {"y": self.y})
        per_channel = {"mean": self.mean, "inv_variance": self.inv_variance, "scale": self.scale, "bias": self.bias}
        check_dims(_WHERE, NormShape(self.mode, self.x.dims, None, 0).stats_dims, per_channel)
        check_float(_WHERE, inputs_of(self) | outputs_of(self))
