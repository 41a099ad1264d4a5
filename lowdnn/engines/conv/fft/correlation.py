"""A convolution as a correlation of sources with taps, whichever of the three operations it is:

    target[row, map, o] = sum over depth and t of source[depth, o * target_spacing + t * tap_spacing - offset] * taps[t]

    operation        target  source  taps  rows              maps        depth
    forward          y       x       w     images            filters     channels of a group
    data gradient    dx      dy      w     images            channels    filters of a group
    filter gradient  dw      x       dy    channels          filters     images

Positions are those of stride 1, to which other strides cannot be brought. Where a filter is flipped, one operand or two
are walked backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.tensor import Tensor

#: Data types that convert to f32 exactly.
_DATA_TYPES = (DataType.BFLOAT16, DataType.HALF, DataType.FLOAT)

#: Positions are 32-bit in the kernels, with room for a window past the end.
_MAX_POSITION = 2**29


@dataclass(frozen=True)
class CorrelationAxis:
    """One spatial axis.  sources, taps, targets: elements; an element is at every spacing-th position.

    offset: position 0 of the source, as the first target's first tap sees it.
    """

    sources: int
    taps: int
    tap_spacing: int
    targets: int
    target_spacing: int
    offset: int

    @property
    def reach(self) -> int:
        """Positions from the first tap to the last."""
        return (self.taps - 1) * self.tap_spacing + 1

    @property
    def extent(self) -> int:
        """Positions from the first target to the last."""
        return (self.targets - 1) * self.target_spacing + 1


@dataclass(frozen=True)
class Steps:
    """Distances in an operand's lines, pairs of its first two indices: to the next row or map, group, and depth."""

    outer: int
    group: int
    depth: int


@dataclass(frozen=True)
class SpectralCorrelation:
    """See the module's docstring."""

    operation: ConvolutionOperation
    epilogue: PointwiseDag

    @classmethod
    def of(cls, matched: Anchored[ConvolutionOperation]) -> SpectralCorrelation:
        return cls(matched.anchor, matched.epilogue)

    @cached_property
    def is_data(self) -> bool:
        return isinstance(self.operation, ConvolutionBackwardData)

    @cached_property
    def is_filter(self) -> bool:
        return isinstance(self.operation, ConvolutionBackwardFilter)

    @cached_property
    def source(self) -> Tensor:
        return self.operation.response if self.is_data else self.operation.image

    @cached_property
    def taps(self) -> Tensor:
        return self.operation.response if self.is_filter else self.operation.filter

    @cached_property
    def axes(self) -> tuple[CorrelationAxis, ...]:
        return tuple(map(self._axis, range(self.spatial)))

    @property
    def spatial(self) -> int:
        return self.operation.convolution.spatial_dims

    @property
    def groups(self) -> int:
        return self.operation.groups

    @property
    def rows(self) -> int:
        return self._group_channels if self.is_filter else self.operation.image.dims[0]

    @property
    def columns(self) -> int:
        """Maps of a group."""
        return self._group_channels if self.is_data else self._group_filters

    @property
    def maps(self) -> int:
        return self.groups * self.columns

    @property
    def depth(self) -> int:
        if self.is_filter:
            return self.operation.image.dims[0]
        return self._group_filters if self.is_data else self._group_channels

    @property
    def source_steps(self) -> Steps:
        channels = self.source.dims[1]
        if self.is_filter:
            return Steps(outer=1, group=self._group_channels, depth=channels)
        return Steps(outer=channels, group=self.depth, depth=1)

    @property
    def tap_steps(self) -> Steps:
        if self.is_filter:
            return Steps(outer=1, group=self._group_filters, depth=self.taps.dims[1])
        filters, channels = self._group_filters, self._group_channels
        if self.is_data:
            return Steps(outer=1, group=filters * channels, depth=channels)
        return Steps(outer=channels, group=filters * channels, depth=1)

    @cached_property
    def source_is_flipped(self) -> bool:
        return self.is_filter and self._is_flipped

    @cached_property
    def taps_are_flipped(self) -> bool:
        return self._is_flipped != self.is_data

    def refuse(self) -> str:
        """Why the operation is not such a correlation, or an empty string."""
        convolution, label = self.operation.convolution, self.operation.label
        steps = zip(convolution.strides, self.operation.response.dims[2:], strict=True)
        if any(stride > 1 and extent > 1 for stride, extent in steps):
            return f"convolution.strides: expected 1 along every axis, got {list(convolution.strides)}"
        for tensor in (self.source, self.taps):
            if tensor.data_type not in _DATA_TYPES:
                names = ", ".join(t.name for t in _DATA_TYPES)
                return f"{label}, {tensor.label}.data_type: expected one of {names}, got {tensor.data_type.name}"
        if accumulator_type(convolution.compute_type) is not DataType.FLOAT:
            return f"convolution.compute_type: expected sums in FLOAT, got {convolution.compute_type.name}"
        for axis in self.axes:
            farthest = max(axis.sources, axis.reach, axis.extent) + abs(axis.offset)
            if farthest > _MAX_POSITION:
                expected = f"padded spatial extents of at most {_MAX_POSITION}"
                return f"{label}.{self.operation.roles[0]}.dims: expected {expected}, got {farthest}"
        return ""

    @property
    def terms(self) -> int:
        """Products in the sum of one target."""
        return self.depth * prod(axis.taps for axis in self.axes)

    @property
    def _group_channels(self) -> int:
        return self.operation.filter.dims[1]

    @property
    def _group_filters(self) -> int:
        return self.operation.filter.dims[0] // self.groups

    @property
    def _is_flipped(self) -> bool:
        return self.operation.convolution.mode is ConvolutionMode.CONVOLUTION

    def _axis(self, axis: int) -> CorrelationAxis:
        operation, convolution = self.operation, self.operation.convolution
        tensors = (operation.image, operation.filter, operation.response)
        image, taps, response = (tensor.dims[2 + axis] for tensor in tensors)
        dilation, padding = convolution.dilations[axis], convolution.pre_paddings[axis]
        reach = (taps - 1) * dilation
        if self.is_data:
            return CorrelationAxis(response, taps, dilation, image, 1, reach - padding)
        if self.is_filter:
            offset = response - 1 + reach - (image - 1) - padding if self._is_flipped else padding
            return CorrelationAxis(image, response, 1, taps, dilation, offset)
        return CorrelationAxis(image, taps, dilation, response, 1, padding)
