"""Convolution forward: y = alpha * conv(x, w) + beta * y.

For every output position o and filter tap r (each a vector over 1 to 3 spatial dimensions), with group g of filter k:

    y[n, k, o] = alpha * sum over (c, r) of x[n, g * Cg + c, o * stride + r * dilation - pre_padding] * w[k, c, r']
                 + beta * y[n, k, o]

x is (N, C, spatial...), w is (K, Cg, taps...), y is (N, K, outputs...); roles, r' and y's extents: see ``convolution``.
Source: cudnn_graph.h, OPERATION_CONVOLUTION_FORWARD.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output


@dataclass(frozen=True)
class ConvolutionForward(ConvolutionOperation):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_FORWARD
    label: ClassVar[str] = "convolution_forward"
    roles: ClassVar[tuple[str, str, str]] = ("x", "w", "y")

    convolution: Convolution = attribute(
        AttributeName.OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.CONVOLUTION,
    )
    x: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_FORWARD_X)
    w: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_FORWARD_W)
    y: Tensor = tensor_output(AttributeName.OPERATION_CONVOLUTION_FORWARD_Y)
    alpha: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_FORWARD_ALPHA, AttributeType.FLOAT, AttributeType.DOUBLE, default=1.0
    )
    beta: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_FORWARD_BETA, AttributeType.FLOAT, AttributeType.DOUBLE, default=0.0
    )

    def __post_init__(self) -> None:
        self._check()
        check_compute_type(self.label, self.convolution.compute_type, (self.x, self.w))

    def _product(self, inputs: Values) -> NDArray[Any]:
        """The sum over taps, one strided view of the padded image for each; exact for integer-valued data."""
        x, w = inputs["x"], inputs["w"]
        geometry = self.convolution
        padded = geometry.padded(x)
        images, filters, *outputs = self.y.dims
        groups, group_channels = self.groups, w.shape[1]
        result = np.zeros((images, groups, filters // groups, prod(outputs)), np.result_type(x, w))
        for weights, elements in geometry.windows(w.shape[2:], self.y.dims[2:]):
            pixels = padded[elements].reshape(images, groups, group_channels, prod(outputs))
            result += w[weights].reshape(groups, filters // groups, group_channels) @ pixels
        return result.reshape(self.y.dims)
