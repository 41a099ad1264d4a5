"""A forward convolution as the direct kernels see it: extents, strides and tap addresses as kernel arguments."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.engines.gemm import simt_tile
from lowdnn.engines.launch import bytes_of, fma_unit, i32
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.convolution import ConvolutionForward
from lowdnn.plan import Argument, TensorPointer, Work


@dataclass(frozen=True)
class DirectGeometry:
    """One convolution and its epilogue.

    vector_axis: y's axis along which the kernel hands over neighbouring elements: 1 (channels) or the last one.
    """

    operation: ConvolutionForward
    epilogue: PointwiseDag
    vector_axis: int

    @classmethod
    def of(cls, matched: Anchored[ConvolutionForward]) -> DirectGeometry:
        axes = (1, len(matched.epilogue.dims) - 1)
        return cls(matched.anchor, matched.epilogue, simt_tile.vector_axis(matched.epilogue, axes))

    @property
    def accumulator(self) -> DataType:
        return simt_tile.accumulator_type(self.operation.convolution.compute_type)

    @property
    def spatial(self) -> int:
        return self.operation.convolution.spatial_dims

    @property
    def is_channels_last(self) -> bool:
        return self.vector_axis == 1

    @property
    def images(self) -> int:
        return self.operation.y.dims[0]

    @property
    def filters(self) -> int:
        return self.operation.y.dims[1]

    @property
    def group_channels(self) -> int:
        return self.operation.w.dims[1]

    @property
    def group_filters(self) -> int:
        return self.filters // self.operation.groups

    @property
    def outputs(self) -> tuple[int, ...]:
        """y's spatial extents."""
        return self.operation.y.dims[2:]

    @property
    def taps(self) -> tuple[int, ...]:
        return self.operation.w.dims[2:]

    @property
    def tap_count(self) -> int:
        return prod(self.taps)

    @property
    def w_strides(self) -> tuple[int, ...]:
        """Of k, c and taps; a flipped filter is walked backwards."""
        strides = self.operation.w.strides
        sign = -1 if self._is_flipped else 1
        return (*strides[:2], *(sign * stride for stride in strides[2:]))

    @property
    def types(self) -> str:
        """The operand types as they stand in kernel names."""
        return "_".join(dtypes.info(t.data_type).short_name for t in (self.operation.x, self.operation.w))

    def pointers(self) -> tuple[Argument, ...]:
        """x, and w at tap 0."""
        w = self.operation.w
        reach = sum((extent - 1) * stride for extent, stride in zip(self.taps, w.strides[2:], strict=True))
        offset = reach * w.element_bytes if self._is_flipped else 0
        return TensorPointer(self.operation.x.uid), TensorPointer(w.uid, offset)

    def extents(self) -> tuple[Argument, ...]:
        """x, y and filter extents, strides, dilations and paddings, each along the spatial axes."""
        convolution = self.operation.convolution
        return (
            *i32(self.operation.x.dims[2:]),
            *i32(self.outputs),
            *i32(self.taps),
            *i32(convolution.strides),
            *i32(convolution.dilations),
            *i32(convolution.pre_paddings),
        )

    def work(self, products: int) -> Work:
        """``products``: multiply-adds, those of tile tails included."""
        read = (self.operation.x, self.operation.w, *self.epilogue.loads)
        return Work(
            flops=2 * products,
            bytes=bytes_of(read) + bytes_of(self.epilogue.stores),
            unit=fma_unit(self.accumulator),
        )

    @property
    def _is_flipped(self) -> bool:
        return self.operation.convolution.mode is ConvolutionMode.CONVOLUTION
