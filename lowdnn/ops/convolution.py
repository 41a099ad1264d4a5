"""Convolution forward: y = alpha * conv(x, w) + beta * y.

For every output position o and filter tap r (each a vector over 1 to 3 spatial dimensions), with group g of channel k:

    y[n, k, o] = alpha * sum over (c, r) of x[n, g * Cg + c, o * stride + r * dilation - pre_padding] * w[k, c, r']
                 + beta * y[n, k, o]

where positions outside x count as 0, and r' = r for cross-correlation, r' = R - 1 - r for (mathematical) convolution.
x is (N, C, spatial...), w is (K, C / groups, filter...), y is (N, K, spatial...); there are C / w.dims[1] groups.
Source: cudnn_graph.h, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, OPERATION_CONVOLUTION_FORWARD.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, ConvolutionMode, DataType, DescriptorType
from lowdnn.ops.base import Values
from lowdnn.ops.compute import check_compute_type, wrap_accumulator
from lowdnn.ops.tensor import Tensor
from lowdnn.schema import attribute, tensor_input, tensor_output
from lowdnn.status import BadParamError, ShapeMismatchError

_MAX_SPATIAL = 3


@dataclass(frozen=True)
class Convolution:
    """Geometry and arithmetic of a convolution; tuples have one entry for each spatial dimension (1 to 3)."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.CONVOLUTION

    compute_type: DataType = attribute(AttributeName.CONVOLUTION_COMP_TYPE, AttributeType.DATA_TYPE)
    spatial_dims: int = attribute(AttributeName.CONVOLUTION_SPATIAL_DIMS, AttributeType.INT64)
    pre_paddings: tuple[int, ...] = attribute(
        AttributeName.CONVOLUTION_PRE_PADDINGS, AttributeType.INT64, max_count=_MAX_SPATIAL
    )
    post_paddings: tuple[int, ...] = attribute(
        AttributeName.CONVOLUTION_POST_PADDINGS, AttributeType.INT64, max_count=_MAX_SPATIAL
    )
    strides: tuple[int, ...] = attribute(
        AttributeName.CONVOLUTION_FILTER_STRIDES, AttributeType.INT64, max_count=_MAX_SPATIAL
    )
    dilations: tuple[int, ...] = attribute(
        AttributeName.CONVOLUTION_DILATIONS, AttributeType.INT64, max_count=_MAX_SPATIAL
    )
    mode: ConvolutionMode = attribute(
        AttributeName.CONVOLUTION_CONV_MODE,
        AttributeType.CONVOLUTION_MODE,
        default=ConvolutionMode.CROSS_CORRELATION,
    )

    def __post_init__(self) -> None:
        if not 1 <= self.spatial_dims <= _MAX_SPATIAL:
            raise BadParamError.at("convolution.spatial_dims", expected="1, 2 or 3", got=self.spatial_dims)
        for field, least in (("pre_paddings", 0), ("post_paddings", 0), ("strides", 1), ("dilations", 1)):
            values: tuple[int, ...] = getattr(self, field)
            if len(values) != self.spatial_dims or any(value < least for value in values):
                raise BadParamError.at(
                    f"convolution.{field}", expected=f"{self.spatial_dims} integers >= {least}", got=list(values)
                )

    def output_dims(self, x_dims: tuple[int, ...], w_dims: tuple[int, ...]) -> tuple[int, ...]:
        """The dims of y: spatial extent = 1 + (x + pre + post - (1 + (r - 1) * dilation)) // stride.

        Raises ShapeMismatchError where ranks disagree, channels do not divide into groups, or the filter, dilated,
        is larger than the padded input.
        """
        rank = self.spatial_dims + 2
        for name, dims in (("x", x_dims), ("w", w_dims)):
            if len(dims) != rank:
                raise ShapeMismatchError.at(
                    f"convolution_forward.{name}.dims",
                    expected=f"rank {rank} for {self.spatial_dims} spatial dimensions",
                    got=list(dims),
                )
        self._check_channels(x_dims[1], w_dims[0], w_dims[1])
        spatial = []
        for axis in range(self.spatial_dims):
            extent, taps = x_dims[2 + axis], w_dims[2 + axis]
            padded = extent + self.pre_paddings[axis] + self.post_paddings[axis]
            reach = 1 + (taps - 1) * self.dilations[axis]
            if taps < 1 or reach > padded:
                raise ShapeMismatchError.at(
                    f"convolution_forward.w.dims[{2 + axis}]",
                    expected=f"a dilated filter of 1 to {padded} (input {extent} and its padding)",
                    got=f"{taps} taps reaching {reach}",
                )
            spatial.append(1 + (padded - reach) // self.strides[axis])
        return (x_dims[0], w_dims[0], *spatial)

    @staticmethod
    def _check_channels(channels: int, filters: int, group_channels: int) -> None:
        if group_channels < 1 or channels % group_channels:
            raise ShapeMismatchError.at(
                "convolution_forward.w.dims[1]", expected=f"a divisor of x's {channels} channels", got=group_channels
            )
        groups = channels // group_channels
        if groups < 1 or filters % groups:
            raise ShapeMismatchError.at(
                "convolution_forward.w.dims[0]", expected=f"a multiple of the {groups} groups", got=filters
            )


@dataclass(frozen=True)
class ConvolutionForward:
    """See the module's docstring."""

    descriptor_type: ClassVar[DescriptorType] = DescriptorType.OPERATION_CONVOLUTION_FORWARD

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
        expected = self.convolution.output_dims(self.x.dims, self.w.dims)
        if self.y.dims != expected:
            raise ShapeMismatchError.at("convolution_forward.y.dims", expected=list(expected), got=list(self.y.dims))
        check_compute_type("convolution_forward", self.convolution.compute_type, (self.x, self.w))
        if self.beta != 0 and self.y.is_virtual:
            raise BadParamError.at("convolution_forward.beta", expected="0 where y is virtual", got=self.beta)

    @property
    def groups(self) -> int:
        return self.x.dims[1] // self.w.dims[1]

    @property
    def flops(self) -> int:
        return 2 * self.y.element_count * prod(self.w.dims[1:])

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """y from x and w (and, where beta is not 0, the old y as input ``y``)."""
        result = wrap_accumulator(_convolve(inputs["x"], inputs["w"], self), self.convolution.compute_type)
        if self.alpha != 1:
            result = self.alpha * result
        if self.beta != 0:
            if "y" not in inputs:
                raise BadParamError.at("convolution_forward.y", expected="old values where beta is not 0", got="none")
            result = result + self.beta * inputs["y"]
        return {"y": result}


def _convolve(x: NDArray[Any], w: NDArray[Any], operation: ConvolutionForward) -> NDArray[Any]:
    """The sum over taps, one strided view of the padded input for each tap; exact for integer-valued data."""
    geometry = operation.convolution
    padding = [(0, 0), (0, 0), *zip(geometry.pre_paddings, geometry.post_paddings, strict=True)]
    padded = np.pad(x, padding)
    groups, group_channels = operation.groups, w.shape[1]
    filters = w.shape[0] // groups
    outputs = operation.y.dims[2:]
    dtype = np.result_type(x, w)
    result = np.zeros((x.shape[0], groups, filters, *outputs), dtype)
    for tap in np.ndindex(*w.shape[2:]):
        flipped = geometry.mode is ConvolutionMode.CONVOLUTION
        source = tuple(r - 1 - t for r, t in zip(w.shape[2:], tap, strict=True)) if flipped else tap
        window = tuple(
            slice(t * dilation, t * dilation + (extent - 1) * stride + 1, stride)
            for t, dilation, extent, stride in zip(tap, geometry.dilations, outputs, geometry.strides, strict=True)
        )
        pixels = padded[(slice(None), slice(None), *window)]
        pixels = pixels.reshape(x.shape[0], groups, group_channels, prod(outputs))
        taps = w[(slice(None), slice(None), *source)].reshape(groups, filters, group_channels)
        result += (taps[None] @ pixels).reshape(result.shape)
    return result.reshape(operation.y.dims)
