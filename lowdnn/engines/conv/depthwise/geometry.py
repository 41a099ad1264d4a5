"""A depthwise convolution as the kernels see it: three axes (planes, rows, columns), strides, limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.engines.conv.depthwise.axes import AxisGeometry
from lowdnn.engines.indices import INT32_MAX
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.tensor import Tensor

#: Data types that convert to f32 exactly.
DATA_TYPES = (DataType.BFLOAT16, DataType.HALF, DataType.FLOAT)

#: Most taps for which a line is walked along as rows: that takes a weight and a sum for each tap.
_MAX_LINE_ROWS = 32

#: Positions are 32-bit in the kernels, with room for a window past the end.
_MAX_POSITION = 2**29


@dataclass(frozen=True)
class DepthwiseGeometry:
    """One of the three operations with its pointwise epilogue.

    placed: the spatial axes that are the planes, the rows and the columns; None where the tensors lack one.
    axes: their geometry; a missing one has one position and one tap.
    """

    operation: ConvolutionOperation
    dag: PointwiseDag
    placed: tuple[int | None, int | None, int | None]
    axes: tuple[AxisGeometry, AxisGeometry, AxisGeometry]

    @classmethod
    def of(cls, matched: Anchored[ConvolutionOperation]) -> DepthwiseGeometry:
        operation = matched.anchor
        placed = _placed(operation)
        planes, rows, columns = (_axis(operation, axis) for axis in placed)
        return cls(operation, matched.epilogue, placed, (planes, rows, columns))

    @property
    def has_single_planes(self) -> bool:
        """Whether the tensors have rows and columns, but no planes."""
        return self.placed == (None, 0, 1)

    @property
    def images(self) -> int:
        return self.operation.image.dims[0]

    @property
    def channels(self) -> int:
        """Channels of the image."""
        return self.operation.image.dims[1]

    @cached_property
    def filters(self) -> int:
        """Channels of the response."""
        return self.operation.filter.dims[0]

    @property
    def multiplier(self) -> int:
        """Filters of one channel."""
        return self.filters // self.channels

    @property
    def tap_count(self) -> int:
        return prod(self.operation.filter.dims[2:])

    def strides(self, tensor: Tensor) -> tuple[int, ...]:
        """Strides of an image or response, in elements: n, c, planes, rows, columns."""
        return (*tensor.strides[:2], *self.spatial_strides(tensor))

    def spatial_strides(self, tensor: Tensor) -> tuple[int, int, int]:
        """Strides of planes, rows and columns; 0 for a missing axis."""
        planes, rows, columns = (0 if axis is None else tensor.strides[2 + axis] for axis in self.placed)
        return planes, rows, columns

    def neighbours(self, tensor: Tensor) -> int:
        """Neighbouring channels that one access of up to 16 bytes reads, a power of two."""
        if tensor.strides[1] != 1 or self.multiplier != 1:
            return 1
        width = min(16, tensor.alignment_bytes) // tensor.element_bytes
        steps = [s for axis, s in enumerate(tensor.strides) if axis != 1 and tensor.dims[axis] > 1]
        while any(step % width for step in (*steps, tensor.dims[1])):
            width //= 2
        return width

    @cached_property
    def along_columns(self) -> DepthwiseGeometry:
        """The geometry with the one axis of a line as columns."""
        if self.placed != (None, 0, None):
            return self
        planes, rows, columns = self.axes
        return replace(self, placed=(None, None, 0), axes=(planes, columns, rows))

    def refuse(self) -> str:
        """Why the kernels cannot take the operation, or an empty string."""
        operation = self.operation
        image, weights, response = (f"{operation.label}.{role}" for role in operation.roles)
        if operation.groups == 1 or operation.filter.dims[1] != 1:
            got = f"{operation.filter.dims[1]} channels in each of {operation.groups} groups"
            return f"{weights}.dims: expected several groups of one channel, got {got}"
        for name, tensor in ((image, operation.image), (weights, operation.filter), (response, operation.response)):
            if tensor is not operation.output and tensor.data_type not in DATA_TYPES:
                names = ", ".join(t.name for t in DATA_TYPES)
                return f"{name}.data_type: expected one of {names}, got {tensor.data_type.name}"
        compute_type = operation.convolution.compute_type
        if compute_type not in (DataType.FLOAT, DataType.HALF):
            return f"convolution.compute_type: expected FLOAT or HALF, got {compute_type.name}"
        for axis in self.axes:
            reach = max(axis.image, axis.response * axis.stride) + axis.padding + axis.taps * axis.dilation
            if reach > _MAX_POSITION:
                return f"{image}.dims: expected padded spatial extents of at most {_MAX_POSITION}, got {reach}"
        for name, tensor in ((image, operation.image), (response, operation.response)):
            step = self.spatial_strides(tensor)[2] * tensor.element_bytes * self.axes[2].dilation
            if step > INT32_MAX:
                return f"{name}.strides: expected at most {INT32_MAX} bytes between taps, got {step}"
        return ""


@dataclass(frozen=True)
class DataPass:
    """A pass from sources to targets: x to y, or dy to dx."""

    geometry: DepthwiseGeometry

    @cached_property
    def is_backward(self) -> bool:
        return isinstance(self.geometry.operation, ConvolutionBackwardData)

    @cached_property
    def source(self) -> Tensor:
        operation = self.geometry.operation
        return operation.response if self.is_backward else operation.image

    @cached_property
    def target(self) -> Tensor:
        operation = self.geometry.operation
        return operation.image if self.is_backward else operation.response


def _placed(operation: ConvolutionOperation) -> tuple[int | None, int | None, int | None]:
    """The spatial axes as planes, rows and columns: a line is rows if channels are contiguous, columns if positions
    are.
    """
    taps = operation.filter.dims[2:]
    if len(taps) == 3:
        return 0, 1, 2
    if len(taps) == 2:
        return None, 0, 1
    is_walked = taps[0] <= _MAX_LINE_ROWS and operation.image.strides[1] == 1
    return (None, 0, None) if is_walked else (None, None, 0)


def _axis(operation: ConvolutionOperation, axis: int | None) -> AxisGeometry:
    if axis is None:
        return AxisGeometry(image=1, taps=1, response=1, stride=1, dilation=1, padding=0, is_flipped=False)
    convolution = operation.convolution
    return AxisGeometry(
        image=operation.image.dims[2 + axis],
        taps=operation.filter.dims[2 + axis],
        response=operation.response.dims[2 + axis],
        stride=convolution.strides[axis],
        dilation=convolution.dilations[axis],
        padding=convolution.pre_paddings[axis],
        is_flipped=convolution.mode is ConvolutionMode.CONVOLUTION,
    )
