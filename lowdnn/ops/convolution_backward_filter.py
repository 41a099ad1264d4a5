"""Convolution backward filter: dw = alpha * (gradient of conv(x, w) with respect to w, applied to dy) + beta * dw.

Each weight collects every product that it took part in. With group g of filter k:

    dw[k, c, r'] = alpha * sum over (n, o) of x[n, g * Cg + c, o * stride + r * dilation - pre_padding] * dy[n, k, o]
                   + beta * dw[k, c, r']

x is (N, C, spatial...), dy is (N, K, outputs...), dw is (K, Cg, taps...); dy has the dims of the forward response to x
and dw. With a stride several extents of dw give the same dy, so dw's dims cannot be inferred. Float types only.
Source: cudnn_graph.h, OPERATION_CONVOLUTION_BACKWARD_FILTER.
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
class ConvolutionBackwardFilter(ConvolutionOperation):
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER
    label: ClassVar[str] = "convolution_backward_filter"
    roles: ClassVar[tuple[str, str, str]] = ("x", "dw", "dy")

    convolution: Convolution = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        AttributeType.BACKEND_DESCRIPTOR,
        descriptor=DescriptorType.CONVOLUTION,
    )
    x: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_X)
    dy: Tensor = tensor_input(AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_DY)
    dw: Tensor = tensor_output(AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_DW)
    alpha: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, AttributeType.FLOAT, AttributeType.DOUBLE, default=1.0
    )
    beta: float = attribute(
        AttributeName.OPERATION_CONVOLUTION_BWD_FILTER_BETA, AttributeType.FLOAT, AttributeType.DOUBLE, default=0.0
    )

    def __post_init__(self) -> None:
        self._check()
        check_float_operands(self.label, (self.x, self.dy))
        check_compute_type(self.label, self.convolution.compute_type, (self.x, self.dy))

    def _product(self, inputs: Values) -> NDArray[Any]:
        """One product over images and outputs for each tap; exact for integer-valued data."""
        x, dy = inputs["x"], inputs["dy"]
        geometry = self.convolution
        padded = geometry.padded(x)
        filters, group_channels, *taps = self.dw.dims
        groups, pixels = self.groups, dy.shape[0] * prod(dy.shape[2:])
        gradients = dy.swapaxes(0, 1).reshape(groups, filters // groups, pixels)
        result = np.zeros(self.dw.dims, np.result_type(x, dy))
        for weights, elements in geometry.windows(tuple(taps), dy.shape[2:]):
            met = padded[elements].swapaxes(0, 1).reshape(groups, group_channels, pixels)
            result[weights] = (gradients @ met.swapaxes(1, 2)).reshape(filters, group_channels)
        return result
