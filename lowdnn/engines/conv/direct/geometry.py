"""A convolution as the direct kernels see it: extents, strides and tap addresses as kernel arguments.

Each direction sums weights * image over its depth, for every place and map of the output:

    direction  output  image  weights  maps        places                depth
    FORWARD    y       x      w        filters     pixels of y           channels and taps
    DATA       dx      dy     w        channels    pixels of dx          filters and taps
    FILTER     dw      x      dy       filters     channels and taps     pixels of y
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.codegen.functor import Functor, generate
from lowdnn.engines.gemm import simt_tile
from lowdnn.engines.launch import bytes_of, fma_unit, i32
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.compute import accumulator_type
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, TensorPointer, Work


class Direction(IntEnum):
    """The macro DIRECTION of ``conv_direct.cu``."""

    FORWARD = 0
    DATA = 1
    FILTER = 2


_DIRECTIONS: Mapping[type[ConvolutionOperation], Direction] = {
    ConvolutionForward: Direction.FORWARD,
    ConvolutionBackwardData: Direction.DATA,
    ConvolutionBackwardFilter: Direction.FILTER,
}


@dataclass(frozen=True)
class DirectGeometry:
    """One convolution and its epilogue.

    vector_axis: the output's axis along which the kernel hands over neighbouring elements: 1 or the last one.
    """

    operation: ConvolutionOperation
    epilogue: PointwiseDag
    vector_axis: int

    @classmethod
    def of(cls, matched: Anchored[ConvolutionOperation]) -> DirectGeometry:
        axes = (1, len(matched.epilogue.dims) - 1)
        return cls(matched.anchor, matched.epilogue, simt_tile.vector_axis(matched.epilogue, axes))

    @property
    def direction(self) -> Direction:
        return _DIRECTIONS[type(self.operation)]

    @property
    def image(self) -> Tensor:
        return self.operation.response if self.direction is Direction.DATA else self.operation.image

    @property
    def weights(self) -> Tensor:
        return self.operation.response if self.direction is Direction.FILTER else self.operation.filter

    @property
    def accumulator(self) -> DataType:
        return accumulator_type(self.operation.convolution.compute_type)

    @property
    def spatial(self) -> int:
        return self.operation.convolution.spatial_dims

    @property
    def is_channels_last(self) -> bool:
        return self.vector_axis == 1

    @property
    def images(self) -> int:
        return self.operation.image.dims[0]

    @property
    def filters(self) -> int:
        return self.operation.filter.dims[0]

    @property
    def group_channels(self) -> int:
        return self.operation.filter.dims[1]

    @property
    def group_filters(self) -> int:
        return self.filters // self.operation.groups

    @property
    def group_maps(self) -> int:
        return self.group_channels if self.direction is Direction.DATA else self.group_filters

    @property
    def image_channels(self) -> int:
        """Channels of the image in a group."""
        return self.group_filters if self.direction is Direction.DATA else self.group_channels

    @property
    def outputs(self) -> tuple[int, ...]:
        """The response's spatial extents."""
        return self.operation.response.dims[2:]

    @property
    def pixels(self) -> tuple[int, ...]:
        """The spatial extents whose pixels are numbered: dx's, or the response's."""
        return self.operation.image.dims[2:] if self.direction is Direction.DATA else self.outputs

    @property
    def taps(self) -> tuple[int, ...]:
        return self.operation.filter.dims[2:]

    @property
    def tap_count(self) -> int:
        return prod(self.taps)

    @property
    def depth(self) -> int:
        """Terms of one sum; in backward data an upper bound, that of pixels with all taps."""
        if self.direction is Direction.FILTER:
            return self.images * prod(self.outputs)
        return self.image_channels * self.tap_count

    @property
    def weights_strides(self) -> tuple[int, ...]:
        """Strides of the map, then of channel (or image) and taps (or pixels); a flipped filter is walked backwards."""
        first, second, *others = self.weights.strides
        if self.direction is Direction.FILTER:
            return (second, first, *others)
        sign = -1 if self.is_flipped else 1
        taps = (sign * stride for stride in others)
        return (second, first, *taps) if self.direction is Direction.DATA else (first, second, *taps)

    @property
    def group_strides(self) -> tuple[int, int]:
        """Strides from one group to the next in image and weights."""
        axis = 1 if self.direction is Direction.FILTER else 0
        return self.image_channels * self.image.strides[1], self.group_filters * self.weights.strides[axis]

    @property
    def types(self) -> str:
        """The operand types' part of kernel names."""
        return "_".join(dtypes.info(t.data_type).short_name for t in (self.image, self.weights))

    @property
    def is_flipped(self) -> bool:
        return self.operation.convolution.mode is ConvolutionMode.CONVOLUTION

    def functor(self) -> Functor:
        """The epilogue over the output's own axes."""
        return generate(self.epilogue, accumulator=self.accumulator, vector_axis=self.vector_axis)

    def pointers(self) -> tuple[Argument, ...]:
        """The image, and the weights at tap 0."""
        weights = self.weights
        offset = 0
        if self.is_flipped and self.direction is not Direction.FILTER:
            steps = zip(self.taps, weights.strides[2:], strict=True)
            offset = sum((extent - 1) * stride for extent, stride in steps) * weights.element_bytes
        return TensorPointer(self.image.uid), TensorPointer(weights.uid, offset)

    def extents(self) -> tuple[Argument, ...]:
        """Image, pixel and filter extents, strides, dilations and paddings, each along the spatial axes."""
        convolution = self.operation.convolution
        dilations, paddings = convolution.dilations, convolution.pre_paddings
        if self.is_flipped and self.direction is Direction.FILTER:
            reaches = ((taps - 1) * dilation for taps, dilation in zip(self.taps, dilations, strict=True))
            paddings = tuple(padding - reach for padding, reach in zip(paddings, reaches, strict=True))
            dilations = tuple(-dilation for dilation in dilations)
        return (
            *i32(self.image.dims[2:]),
            *i32(self.pixels),
            *i32(self.taps),
            *i32(convolution.strides),
            *i32(dilations),
            *i32(paddings),
        )

    def periods(self) -> tuple[int, ...]:
        """Along each axis, the distance between taps that read the same pixel of dx."""
        convolution = self.operation.convolution
        steps = zip(convolution.strides, convolution.dilations, strict=True)
        return tuple(stride // gcd(stride, dilation) for stride, dilation in steps)

    def classes(self) -> tuple[int, ...]:
        """Residue classes of pixels along each axis: those of dx modulo the stride, one in the other directions."""
        if self.direction is not Direction.DATA:
            return (1,) * self.spatial
        strides = zip(self.operation.convolution.strides, self.pixels, strict=True)
        return tuple(min(stride, extent) for stride, extent in strides)

    def work(self, products: int, written_bytes: int | None = None, busy_s: float = 0.0) -> Work:
        """The work of a launch.  products: multiply-adds, including what takes as long.  written_bytes: if other than
        the outputs'.

        busy_s: see ``Work``.
        """
        read = (self.image, self.weights, *(self.epilogue.loads if written_bytes is None else ()))
        written = bytes_of(self.epilogue.stores) if written_bytes is None else written_bytes
        return Work(2 * products, bytes_of(read) + written, fma_unit(self.accumulator), busy_s)
