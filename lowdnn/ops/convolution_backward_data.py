"""Convolution backward data: dx = alpha * (gradient of conv(x, w) with respect to x, applied to dy) + beta * dx.

Each image element collects the outputs that read it. With group g of channel c, sums over the group's filters k, the
outputs o and the taps r that meet at i:

    dx[n, g * Cg + c, i] = alpha * sum over (k, o, r) with o * stride + r * dilation - pre_padding = i
                                   of dy[n, k, o] * w[k, c, r']
                           + beta * dx[n, g * Cg + c, i]

w is (K, Cg, taps...), dy is (N, K, outputs...), dx is (N, C, spatial...); dy has the dims of the forward response to
dx and w. With a stride several extents of dx give the same dy, so dx's dims cannot be inferred. Float types only.
A position o outside dy may count as 0 and meet its weight: with infinite weights dx may be NaN at its border.
Source: cudnn_graph.h, OPERATION_CONVOLUTION_BACKWARD_DATA.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type, check_float_operands
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output


@dataclass(frozen=True)
class ConvolutionBackwardData(ConvolutionOperation):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA
    label: ClassVar[str] = "convolution_backward_data"
    roles: ClassVar[tuple[str, str, str]] = ("dx", "w", "dy")

    convolution: Convolution = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.CONVOLUTION,
    )
    w: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_BWD_DATA_W)
    dy: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_BWD_DATA_DY)
    dx: Tensor = tensor_output(AttributeName.OPERATION_CONVOLUTION_BWD_DATA_DX)
    alpha: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_DATA_ALPHA, AttributeType.FLOAT, AttributeType.DOUBLE, default=1.0
    )
    beta: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_DATA_BETA, AttributeType.FLOAT, AttributeType.DOUBLE, default=0.0
    )

    def __post_init__(self) -> None:
        self._check()
        check_float_operands(self.label, (self.dy, self.w))
        check_compute_type(self.label, self.convolution.compute_type, (self.dy, self.w))

    def _product(self, inputs: Values) -> NDArray[Any]:
        """The sum over taps, each added to one strided view of the padded image; exact for integer-valued data."""
        dy, w = inputs["dy"], inputs["w"]
        geometry = self.convolution
        images, channels, *extents = self.dx.dims
        padded = geometry.padded(np.zeros(self.dx.dims, np.result_type(dy, w)))
        groups, group_channels = self.groups, w.shape[1]
        filters, outputs = w.shape[0] // groups, dy.shape[2:]
        gradients = dy.reshape(images, groups, filters, prod(outputs))
        for weights, elements in geometry.windows(w.shape[2:], outputs):
            terms = w[weights].reshape(groups, filters, group_channels).swapaxes(1, 2) @ gradients
            padded[elements] += terms.reshape(images, channels, *outputs)
        inside = (slice(before, before + extent) for before, extent in zip(geometry.pre_paddings, extents, strict=True))
        return padded[(slice(None), slice(None), *inside)]
