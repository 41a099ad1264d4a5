"""The three convolutions: their geometry, and the roles that tensors play in it.

A convolution joins an image (x or its gradient dx), a filter (w or dw) and a response (y or dy); forward computes the
response, backward data the image, backward filter the filter. With groups g = C / w.dims[1]:

    image     (N, C, spatial...)
    filter    (K, C / g, taps...)
    response  (N, K, outputs...), outputs[s] = 1 + (image + pre + post - (1 + (taps - 1) * dilation)) // stride

Output o and tap r meet the image at o * stride + r * dilation - pre_padding; positions outside count as 0. The tap's
place in the filter is r for cross-correlation, R - 1 - r for (mathematical) convolution.
Source: cudnn_graph.h, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import AttributeName, AttributeType, ConvolutionMode, DataType, DescriptorType
from lowdnn.ops.base import Values, outputs_of
from lowdnn.ops.compute import wrap_accumulator
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.schema import attribute
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

    def output_dims(
        self, x_dims: tuple[int, ...], w_dims: tuple[int, ...], x: str = "convolution.x", w: str = "convolution.w"
    ) -> tuple[int, ...]:
        """The dims of the response to an image and a filter; ``x`` and ``w`` are their names in messages.

        Raises ShapeMismatchError where ranks disagree, channels or filters do not divide into groups, or the filter has
        no taps or, dilated, is larger than the padded image.
        """
        rank = self.spatial_dims + 2
        for name, dims in ((x, x_dims), (w, w_dims)):
            if len(dims) != rank:
                raise ShapeMismatchError.at(
                    f"{name}.dims", expected=f"rank {rank} for {self.spatial_dims} spatial dimensions", got=list(dims)
                )
        _check_channels(x_dims[1], w_dims[0], w_dims[1], w)
        spatial = []
        for axis in range(self.spatial_dims):
            extent, taps = x_dims[2 + axis], w_dims[2 + axis]
            padded = extent + self.pre_paddings[axis] + self.post_paddings[axis]
            reach = 1 + (taps - 1) * self.dilations[axis]
            if taps < 1 or reach > padded:
                raise ShapeMismatchError.at(
                    f"{w}.dims[{2 + axis}]",
                    expected=f"a dilated filter of 1 to {padded} (image {extent} and its padding)",
                    got=f"{taps} taps reaching {reach}",
                )
            spatial.append(1 + (padded - reach) // self.strides[axis])
        return (x_dims[0], w_dims[0], *spatial)

    def padded(self, x: NDArray[Any]) -> NDArray[Any]:
        """The image ``x`` with its padding of zeros."""
        return np.pad(x, [(0, 0), (0, 0), *zip(self.pre_paddings, self.post_paddings, strict=True)])

    def windows(
        self, taps: tuple[int, ...], outputs: tuple[int, ...]
    ) -> Iterator[tuple[tuple[Any, ...], tuple[slice, ...]]]:
        """For each tap: the index of its weights in the filter, and that of the padded image's elements it meets.

        Both are complete indices, channels included; the elements are one for each of the ``outputs``.
        """
        every = (slice(None), slice(None))
        for tap in np.ndindex(*taps):
            place = (
                tap
                if self.mode is ConvolutionMode.CROSS_CORRELATION
                else tuple(extent - 1 - position for extent, position in zip(taps, tap, strict=True))
            )
            starts = [position * dilation for position, dilation in zip(tap, self.dilations, strict=True)]
            elements = (
                slice(start, start + (extent - 1) * stride + 1, stride)
                for start, extent, stride in zip(starts, outputs, self.strides, strict=True)
            )
            yield (*every, *place), (*every, *elements)


class ConvolutionOperation:
    """The base of the three convolutions; each is a frozen dataclass with fields of its own names.

    label: how messages name the operation.  roles: the ports of image, filter and response.
    """

    descriptor_type: ClassVar[DescriptorType]
    tolerance_class: ClassVar[ToleranceClass] = ToleranceClass.CONTRACTION
    label: ClassVar[str]
    roles: ClassVar[tuple[str, str, str]]
    convolution: Convolution
    alpha: float
    beta: float

    @property
    def compute_type(self) -> DataType:
        return self.convolution.compute_type

    @cached_property
    def image(self) -> Tensor:
        """x or dx."""
        return self._at(0)

    @cached_property
    def filter(self) -> Tensor:
        """w or dw."""
        return self._at(1)

    @cached_property
    def response(self) -> Tensor:
        """y or dy."""
        return self._at(2)

    @cached_property
    def output(self) -> Tensor:
        """The one of the three that the operation computes."""
        return next(iter(outputs_of(self).values()))

    @property
    def output_port(self) -> str:
        """Its name."""
        return next(iter(outputs_of(self)))

    @cached_property
    def groups(self) -> int:
        return self.image.dims[1] // self.filter.dims[1]

    @property
    def is_over_nothing(self) -> bool:
        """Whether one of the tensors is empty, so that there is no product."""
        return 0 in (*self.image.dims, *self.filter.dims, *self.response.dims)

    @property
    def flops(self) -> int:
        """Two operations for each tap, channel and output; taps that fall on padding count too."""
        return 2 * self.response.element_count * prod(self.filter.dims[1:])

    def reference(self, inputs: Values) -> dict[str, NDArray[Any]]:
        """alpha * product + beta * the output's old values, which are an input where beta is not 0."""
        port = self.output_port
        result = wrap_accumulator(self._product(inputs), self.convolution.compute_type)
        if self.alpha != 1:
            result = self.alpha * result
        if self.beta != 0:
            if port not in inputs:
                raise BadParamError.at(f"{self.label}.{port}", expected="old values where beta is not 0", got="none")
            result = result + self.beta * inputs[port]
        return {port: result}

    def _check(self) -> None:
        """The response's dims follow from those of image and filter; beta needs old values in memory."""
        image, weights, response = (f"{self.label}.{port}" for port in self.roles)
        expected = self.convolution.output_dims(self.image.dims, self.filter.dims, image, weights)
        if self.response.dims != expected:
            raise ShapeMismatchError.at(f"{response}.dims", expected=list(expected), got=list(self.response.dims))
        if self.beta != 0 and self.output.is_virtual:
            raise BadParamError.at(
                f"{self.label}.beta", expected=f"0 where {self.output_port} is virtual", got=self.beta
            )

    def _product(self, inputs: Values) -> NDArray[Any]:
        """The result of this direction, before alpha and beta."""
        raise NotImplementedError

    def _at(self, role: int) -> Tensor:
        tensor: Tensor = getattr(self, self.roles[role])
        return tensor


def _check_channels(channels: int, filters: int, group_channels: int, w: str) -> None:
    if group_channels < 1 or channels % group_channels:
        raise ShapeMismatchError.at(
            f"{w}.dims[1]", expected=f"a divisor of the image's {channels} channels", got=group_channels
        )
    groups = channels // group_channels
    if groups < 1 or filters % groups:
        raise ShapeMismatchError.at(f"{w}.dims[0]", expected=f"a multiple of the {groups} groups", got=filters)
