"""A convolution as the implicit matrix product of ``conv_implicit_gemm_mma.cu``: operands, extents, limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn import dtypes
from lowdnn.engines.gemm.output_space import OutputSpace, contiguous_stores, full_loads, output_space
from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.gemm.tiles import Product
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import MAX_GRID_X, ceil_div, divider, i32
from lowdnn.enums import ConvolutionMode, DataType
from lowdnn.graph.pattern import Anchored, PointwiseDag
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct

#: Fewest channels and filters of a group: fewer would leave most of a tile empty.
_MIN_GROUP_EXTENT = 8
#: Smallest unit, in bytes, of which channels and strides are multiples.
_MIN_UNIT_BYTES = 8
#: Largest unit, in bytes, of which channels and strides are multiples.
_MAX_UNIT_BYTES = 16


@dataclass(frozen=True)
class MmaGeometry:
    """A convolution as an implicit matrix product.

    unit_bytes: a divisor of channels and strides, in bytes.
    x_packing, w_packing: how an operand whose layout the kernel cannot read is repacked, or None.
    pixels_are_columns: the output is contiguous along its last axis.  terms: see ``Product``.
    """

    operation: ConvolutionForward
    dag: PointwiseDag
    output: OutputSpace
    unit_bytes: int
    x_packing: Packing | None
    w_packing: Packing | None
    pixels_are_columns: bool
    terms: int

    @classmethod
    def of(cls, matched: Anchored[ConvolutionForward], terms: int) -> MmaGeometry:
        operation, dag = matched.anchor, matched.epilogue
        channels_bytes = operation.w.dims[1] * operation.x.element_bytes
        unit_bytes = _x_unit_bytes(operation)
        x_packing = w_packing = None
        if unit_bytes < _MIN_UNIT_BYTES:
            unit_bytes = _MIN_UNIT_BYTES if channels_bytes <= _MIN_UNIT_BYTES else _MAX_UNIT_BYTES
            x_packing = Packing(operation.x, operation.groups, unit_bytes) if operation.x.element_count else None
        if channels_bytes % unit_bytes or not is_krsc(operation.w) or operation.w.alignment_bytes < unit_bytes:
            w_packing = Packing(operation.w, 1, unit_bytes)
        pixels_are_columns = contiguous_stores(dag, len(dag.dims) - 1) > contiguous_stores(dag, 1)
        pixel_axes = (0, *range(2, len(dag.dims)))
        output = output_space(
            dag,
            row_axes=(1,) if pixels_are_columns else pixel_axes,
            column_axes=pixel_axes if pixels_are_columns else (1,),
            kept=(1,),
            operands={},
        )
        return cls(operation, dag, output, unit_bytes, x_packing, w_packing, pixels_are_columns, terms)

    @property
    def data_type(self) -> DataType:
        return self.operation.x.data_type

    @cached_property
    def taps(self) -> tuple[int, ...]:
        return self.operation.w.dims[2:]

    @property
    def group_channels(self) -> int:
        """Channels of one group, padding included."""
        unit = self.unit_bytes // self.operation.x.element_bytes
        return ceil_div(self.operation.w.dims[1], unit) * unit

    @property
    def group_filters(self) -> int:
        return self.operation.w.dims[0] // self.operation.groups

    @cached_property
    def pixels(self) -> int:
        return self.operation.y.element_count // max(self.operation.y.dims[1], 1)

    @property
    def depth(self) -> int:
        return prod(self.taps) * self.group_channels

    @property
    def taps_inside(self) -> str:
        """How the kernel tells the taps inside x (``taps_inside.cuh``): by bits, where each axis has one to spare."""
        return "TapMasks" if max(self.taps) < 32 // len(self.taps) else "TapBounds"

    @cached_property
    def product(self) -> Product:
        m, n = self.pixels, self.group_filters
        groups = self.operation.groups
        allows_split = self.pixels_are_columns or groups == 1 or self.group_filters % 2 == 0
        if self.pixels_are_columns:
            m, n = n, m
        return Product(
            self.data_type,
            groups,
            m,
            n,
            self.depth,
            allows_split,
            has_small_pieces=self.unit_bytes < _MAX_UNIT_BYTES,
            gathers=True,
            operands=len(full_loads(self.dag, self.output)),
            terms=self.terms,
        )

    @property
    def pixel_struct(self) -> Struct:
        """The kernel's ``PixelGeometry`` (``pixel_operand.cuh``)."""
        convolution = self.operation.convolution
        dilations, paddings = convolution.dilations, convolution.pre_paddings
        if convolution.mode is ConvolutionMode.CONVOLUTION:
            reach = zip(paddings, self.taps, dilations, strict=True)
            paddings = tuple(padding - (taps - 1) * dilation for padding, taps, dilation in reach)
            dilations = tuple(-dilation for dilation in dilations)
        unit = self.unit_bytes // self.operation.x.element_bytes
        strides = self._x_strides
        return Struct(
            (
                *i32(self.operation.x.dims[2:]),
                *i32(stride // unit for stride in strides[2:]),
                *i32((strides[0] // unit,)),
                *(Struct(divider(extent)) for extent in self.operation.y.dims[2:]),
                *(Struct(divider(extent)) for extent in self.taps),
                Struct(divider(self.group_channels // unit)),
                *i32(convolution.strides),
                *i32(dilations),
                *i32(paddings),
                *i32((self.pixels,)),
            )
        )

    def vector(self, width: int) -> int:
        """``width`` cut down so that no functor call crosses the end of a group of columns."""
        if self.operation.groups > 1 and not self.pixels_are_columns:
            while self.group_filters % width:
                width //= 2
        return width

    def refuse_shape(self, x: str, w: str) -> str:
        """Why the kernel cannot take the extents of the tensors named ``x`` and ``w``, or an empty string."""
        group_channels = self.operation.w.dims[1]
        if self.operation.groups > 1 and min(group_channels, self.group_filters) < _MIN_GROUP_EXTENT:
            got = f"{group_channels} and {self.group_filters}"
            return f"{w}.dims: expected at least {_MIN_GROUP_EXTENT} channels and filters in a group, got {got}"
        geometry = self.operation.convolution
        positions = zip(self.operation.x.dims[2:], geometry.pre_paddings, geometry.post_paddings, strict=True)
        strides, unit = self._x_strides, self.unit_bytes // self.operation.x.element_bytes
        padded = tuple(extent + 2 * (before + after) for extent, before, after in positions)
        reach = strides[0] * self.operation.x.dims[0] + sum(s * e for s, e in zip(strides[2:], padded, strict=True))
        limits = (
            ("output pixels", self.pixels, MAX_INDEX),
            ("input positions", self.operation.x.element_count // self.operation.x.dims[1], MAX_INDEX),
            ("filters", self.operation.w.dims[0], MAX_INDEX),
            ("bytes along k", self.depth * self.operation.x.element_bytes, MAX_INDEX),
            ("positions along an axis and its padding", max(padded), MAX_INDEX),
            (f"units of {self.unit_bytes} bytes in x", reach // unit, MAX_INDEX),
            ("tiles of 64 x 64", self.product.smallest_tiles, MAX_GRID_X),
        )
        for what, got_count, limit in limits:
            if got_count > limit:
                return f"{x}.dims: expected at most {limit} {what}, got {got_count}"
        return ""

    @property
    def _x_strides(self) -> tuple[int, ...]:
        return self.x_packing.strides if self.x_packing else self.operation.x.strides


def _x_unit_bytes(operation: ConvolutionForward) -> int:
    """The greatest power of two up to 16 that divides x's address, channels and strides in place; 1 if not
    channels-last.
    """
    x = operation.x
    if x.strides[1] != 1 and x.dims[1] != 1:
        return 1
    size = dtypes.info(x.data_type).size_bytes
    common = x.alignment_bytes | _MAX_UNIT_BYTES | operation.w.dims[1] * size
    for axis, (extent, stride) in enumerate(zip(x.dims, x.strides, strict=True)):
        if axis != 1 and extent > 1:
            common |= stride * size
    return common & -common


def is_krsc(w: Tensor) -> bool:
    """Whether w is packed as (filter, spatial..., channel)."""
    expected = 1
    for axis in (1, *range(w.rank - 1, 1, -1), 0):
        if w.dims[axis] != 1 and w.strides[axis] != expected:
            return False
        expected *= w.dims[axis]
    return True
