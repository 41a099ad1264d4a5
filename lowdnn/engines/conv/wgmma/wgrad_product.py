"""A filter gradient as the product of ``conv_wgrad_wgmma.cu``: its walks through pixels, its columns, its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from lowdnn.arch.multiprocessor import SECTOR_BYTES
from lowdnn.engines.conv.wgmma.valid_pixels import ValidTap, valid_share, valid_taps
from lowdnn.engines.gemm.converted_operand import ConvertedOperand
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES, WgmmaType
from lowdnn.engines.gemm.output_space import OutputSpace, output_space
from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.gemm.wgmma_tiles import MN_MAJOR_BOX
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import bytes_of, ceil_div, divider, i32
from lowdnn.enums import ConvolutionMode
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Scalar, ScalarType, Struct
from lowdnn.tensor_map import (
    ADDRESS_UNIT_BYTES,
    Im2colMap,
    TensorMapDataType,
    TensorMapL2Promotion,
    TensorMapSwizzle,
    TiledMap,
    tensor_map_problem,
)

#: The greatest filter offset of a copy, by the number of spatial axes.
_MAX_OFFSET = {1: (1 << 16) - 1, 2: (1 << 8) - 1, 3: (1 << 5) - 1}
#: Columns of the widest wgmma instruction.
_MAX_COLUMNS = 256
#: Most positions of a window beyond those of its k block.
_MAX_REACH = 32
#: Most such positions if the window has to be transposed.
_MAX_TRANSPOSED_REACH = 2
#: Most taps with walks over valid pixels, whose schedules are parameters of the kernel.
_MAX_VALID_TAPS = 27
#: Most walks, whose tensor maps are parameters of the kernel.
_MAX_WALKS = 9
#: Share of multiplications with padding from which on taps may walk over valid pixels only.
LEAST_PADDING = 0.2
#: Fewest channels and filters of a group: fewer would leave most of a tile empty.
_MIN_GROUP_EXTENT = 32

#: Clocks of a pixel by the number of spatial axes (``WgradProduct.pixel_clocks``); these and the next are measured on
#: an H200.
_PIXEL_CLOCKS = {1: 1.0, 2: 1.0, 3: 2.9}
#: Clocks that are added where pixels are skipped.
_STRIDED_PIXEL_CLOCKS = 0.8
#: Clocks of a pixel that is not whole sectors of the cache, in a sum of many k blocks.
_ODD_PIXEL_CLOCKS = 5.5
#: Blocks of k from which on copies decide the time.
_MANY_BLOCKS = 1024
#: Clocks of a pixel that lies in two cache lines.
_MISALIGNED_PIXEL_CLOCKS = 3.6
#: Clocks of a pixel of whole lines, if some groups lie in two cache lines.
_MISALIGNED_GROUP_CLOCKS = 3.3


@dataclass(frozen=True)
class Walk:
    """Positions of a walk along the spatial axes, outermost first: ``extents`` positions from ``first`` on, with
    strides ``steps``.
    """

    extents: tuple[int, ...]
    first: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def struct(self) -> Struct:
        """The kernel's ``PixelWalk`` (``pixel_walk.cuh``)."""
        return Struct((*(Struct(divider(extent)) for extent in self.extents), *i32(self.first), *i32(self.steps)))


@dataclass(frozen=True)
class PixelOperand:
    """dy or x, channels-last.

    packing: its repacked form, or None.  walks: each through its own im2col map; empty if all pixels are read and have
    a constant stride, for a tiled map.
    """

    tensor: Tensor
    groups: int
    packing: Packing | None
    walks: tuple[Walk, ...]

    @classmethod
    def of(cls, tensor: Tensor, groups: int, walks: tuple[Walk, ...], *, is_whole: bool) -> PixelOperand:
        """The operand of a tensor.  is_whole: the one walk goes over all pixels, one after the other."""
        group_bytes = tensor.dims[1] // groups * tensor.element_bytes
        starts_whole = groups == 1 or group_bytes % ADDRESS_UNIT_BYTES == 0
        packing = None if starts_whole and _is_channels_last(tensor) else Packing(tensor, groups, ADDRESS_UNIT_BYTES)
        is_even = packing is not None or _is_even(tensor)
        return cls(tensor, groups, packing, () if is_whole and is_even else walks)

    @property
    def axes(self) -> int:
        """The macro DY_AXES or X_AXES."""
        return len(self.walks[0].extents) if self.walks else 0

    @property
    def group_channels(self) -> int:
        """Channels of a group in memory, padding included."""
        return self.packing.padded_channels if self.packing else self.tensor.dims[1] // self.groups

    def begins_amid(self, unit_bytes: int) -> bool:
        """Whether pixels or groups begin inside units of ``unit_bytes``."""
        return self._pixels_begin_amid(unit_bytes) or self._groups_begin_amid(unit_bytes)

    @property
    def misaligned_clocks(self) -> float:
        """``WgradProduct.pixel_clocks`` if pixels begin inside a cache line, else 0."""
        if self._pixels_begin_amid(STAGE_ROW_BYTES):
            return _MISALIGNED_PIXEL_CLOCKS
        return _MISALIGNED_GROUP_CLOCKS if self._groups_begin_amid(STAGE_ROW_BYTES) else 0.0

    def _pixels_begin_amid(self, unit_bytes: int) -> bool:
        strides = self.packing.strides if self.packing else self.tensor.strides
        return _pixel_stride(self.tensor, strides) * self.tensor.element_bytes % unit_bytes != 0

    def _groups_begin_amid(self, unit_bytes: int) -> bool:
        return self.groups > 1 and self.group_channels * self.tensor.element_bytes % unit_bytes != 0

    def maps(self, map_type: TensorMapDataType, pixels: int) -> tuple[TiledMap | Im2colMap, ...]:
        """The tensor map of each walk, or that of all pixels, with copies of ``pixels`` positions."""
        tensor, size = self.tensor, self.tensor.element_bytes
        if self.walks:
            return tuple(self._walked(walk, map_type, pixels) for walk in self.walks)
        strides = self.packing.strides if self.packing else tensor.strides
        whole = TiledMap(
            map_type,
            address=0,
            dims=(self.groups * self.group_channels, tensor.dims[0] * prod(tensor.dims[2:])),
            strides_bytes=(_pixel_stride(tensor, strides) * size,),
            box=(STAGE_ROW_BYTES // size, pixels),
            element_strides=(1, 1),
            swizzle=TensorMapSwizzle.BYTES_128,
            l2_promotion=TensorMapL2Promotion.BYTES_256,
        )
        return (whole,)

    def _walked(self, walk: Walk, map_type: TensorMapDataType, pixels: int) -> Im2colMap:
        tensor, size = self.tensor, self.tensor.element_bytes
        strides = self.packing.strides if self.packing else tensor.strides
        inner = tuple(range(tensor.rank - 1, 1, -1))
        upper = (
            first + (extent - 1) * step - (tensor.dims[2 + axis] - 1)
            for axis, (extent, first, step) in enumerate(zip(walk.extents, walk.first, walk.steps, strict=True))
        )
        return Im2colMap(
            map_type,
            address=0,
            dims=(self.groups * self.group_channels, *(tensor.dims[axis] for axis in inner), tensor.dims[0]),
            strides_bytes=tuple(_stride_bytes(tensor.dims[axis], strides[axis] * size) for axis in (*inner, 0)),
            lower_corner=tuple(reversed(walk.first)),
            upper_corner=tuple(reversed(tuple(upper))),
            channels_per_pixel=STAGE_ROW_BYTES // size,
            pixels_per_column=pixels,
            element_strides=(1, *reversed(walk.steps), 1),
            swizzle=TensorMapSwizzle.BYTES_128,
            l2_promotion=TensorMapL2Promotion.BYTES_256,
        )


@dataclass(frozen=True)
class WgradProduct:
    """Rows are filters, columns are blocks of channels of a tap, k is a walk over the outputs' pixels.

    tap_run: taps of the last axis that are read from one window of x; 1: every tap loads its own pixels.
    is_valid_only: each tap walks only over the outputs whose pixel of x exists.
    converted: x as a function of a tensor in memory, or None.
    turned: the product over permuted axes, the last of which has several taps, if it has one here.
    """

    operation: ConvolutionBackwardFilter
    dag: PointwiseDag
    output: OutputSpace
    instruction: WgmmaType
    tap_run: int
    converted: ConvertedOperand | None = None
    turned: WgradProduct | None = None
    is_valid_only: bool = False

    @classmethod
    def of(
        cls,
        operation: ConvolutionBackwardFilter,
        dag: PointwiseDag,
        instruction: WgmmaType,
        converted: ConvertedOperand | None,
    ) -> WgradProduct:
        """The product in which every tap loads its own pixels; see ``with_windows``."""
        taps = range(2, len(dag.dims))
        output = output_space(dag, row_axes=(0,), column_axes=(*taps, 1), kept=(), operands={})
        return cls(operation, dag, output, instruction, 1, converted)

    @property
    def with_windows(self) -> WgradProduct | None:
        """The product with the taps of the last axis in one window, if they fit one instruction; otherwise None."""
        if self.instruction.is_split:
            return None
        if self.turned:
            return self.turned.with_windows
        taps, stride = self.taps[-1], self.operation.convolution.strides[-1]
        most = _MAX_REACH if self.instruction.has_mn_major else _MAX_TRANSPOSED_REACH
        fits = 1 < taps * MN_MAJOR_BOX <= _MAX_COLUMNS and self._reach(-1) <= most
        return replace(self, tap_run=taps) if taps > 1 and stride == 1 and fits else None

    @cached_property
    def with_valid_only(self) -> WgradProduct | None:
        """The product with each tap over its valid outputs; None if few are skipped, or if the kernel lacks room for
        the walks.
        """
        if self.converted or prod(self.taps) > _MAX_VALID_TAPS:
            return None
        if not 0 < valid_share(self.operation) <= 1 - LEAST_PADDING:
            return None
        found, valid = replace(self, is_valid_only=True), self.valid_taps
        offsets = (offset for tap in valid for offset in (*tap.outputs, *tap.pixels))
        is_near = max(offsets) <= _MAX_OFFSET[len(self.taps)]
        return found if is_near and len(found.valid_walks) <= _MAX_WALKS and not found._map_problem() else None

    @cached_property
    def valid_taps(self) -> tuple[ValidTap, ...]:
        """The taps in the filter's order."""
        convolution, x, dy = self.operation.convolution, self.operation.x, self.operation.dy
        found = valid_taps(convolution, self.taps, dy.dims[2:], x.dims[2:])
        return found[::-1] if convolution.mode is ConvolutionMode.CONVOLUTION else found

    @cached_property
    def valid_walks(self) -> tuple[tuple[int, ...], ...]:
        """Extents of the boxes of outputs that taps walk over."""
        return tuple(dict.fromkeys(tap.extents for tap in self.valid_taps if tap.count))

    @cached_property
    def tap_blocks(self) -> tuple[int, ...]:
        """k blocks of each tap's columns; a tap without pixels has one block of zeros."""
        images, stage_k = self.operation.dy.dims[0], self.instruction.stage_k
        return tuple(ceil_div(images * max(tap.count, 1), stage_k) for tap in self.valid_taps)

    @cached_property
    def groups(self) -> int:
        return self.operation.groups

    @cached_property
    def taps(self) -> tuple[int, ...]:
        return self.operation.dw.dims[2:]

    @cached_property
    def filters(self) -> int:
        """Filters of a group."""
        return self.operation.dw.dims[0] // self.groups

    @property
    def channels(self) -> int:
        """Channels of a group."""
        return self.operation.dw.dims[1]

    @property
    def chunks(self) -> int:
        """Blocks of a tap's channels."""
        return ceil_div(self.channels, MN_MAJOR_BOX)

    @property
    def runs(self) -> int:
        """Runs of taps for each block of channels."""
        return prod(self.taps) // self.tap_run * self.chunks

    @cached_property
    def columns(self) -> int:
        """Columns of the product, with partial blocks of channels counted in full."""
        return self.runs * self.tap_run * MN_MAJOR_BOX

    @property
    def positions(self) -> int:
        """Positions of the walk."""
        return self.operation.dy.dims[0] * prod(self._extents)

    @cached_property
    def k_blocks(self) -> int:
        return ceil_div(self.positions, self.instruction.stage_k)

    @property
    def pixel_clocks(self) -> tuple[float, float]:
        """Clocks in which a multiprocessor copies 64 channels of a pixel of dy and of x, if x comes by im2col map or a
        pixel begins inside a sector or a line; otherwise 0.
        """
        operands = (self.dy, self.x)
        has_odd = self.k_blocks >= _MANY_BLOCKS and any(operand.begins_amid(SECTOR_BYTES) for operand in operands)
        least = _ODD_PIXEL_CLOCKS if has_odd else 0.0
        if self.x.walks:
            is_strided = max(self.operation.convolution.strides) > 1
            least = max(_PIXEL_CLOCKS[len(self.taps)] + _STRIDED_PIXEL_CLOCKS * is_strided, least)
        dy, x = (max(least, operand.misaligned_clocks) for operand in operands)
        return dy, x

    @cached_property
    def read_bytes(self) -> int:
        """Bytes of x and dy, each read once."""
        x_bytes = self.converted.moved_bytes if self.converted else bytes_of((self.operation.x,))
        return x_bytes + bytes_of((self.operation.dy,))

    def window(self, cluster_m: int) -> int:
        """Positions of x in a k block: those of a window, or of one tap. Each block of a cluster loads whole groups of
        8.
        """
        if self.tap_run == 1:
            return self.instruction.stage_k
        return self.instruction.stage_k + ceil_div(self._reach(-1), 8 * cluster_m) * 8 * cluster_m

    @property
    def tap_distance(self) -> int:
        """Positions in a window from one tap's pixels to the next tap's."""
        return self.operation.convolution.dilations[-1]

    @cached_property
    def dy(self) -> PixelOperand:
        zeros, ones = (0,) * len(self.taps), (1,) * len(self.taps)
        boxes = self.valid_walks if self.is_valid_only else (self._extents,)
        walks = tuple(Walk(extents, zeros, ones) for extents in boxes)
        is_whole = not (self._added_positions or self.is_valid_only)
        return PixelOperand.of(self.operation.dy, self.groups, walks, is_whole=is_whole)

    @cached_property
    def x(self) -> PixelOperand:
        convolution = self.operation.convolution
        first = (0,) * len(self.taps) if self.is_valid_only else tuple(-pad for pad in convolution.pre_paddings)
        boxes = self.valid_walks if self.is_valid_only else (self._extents,)
        walks = tuple(Walk(extents, first, convolution.strides) for extents in boxes)
        is_pointwise = prod(self.taps) == 1 and max(convolution.strides) == 1
        is_whole = is_pointwise and not any((*convolution.pre_paddings, *convolution.post_paddings))
        x = self.converted.raw if self.converted else self.operation.x
        return PixelOperand.of(x, self.groups, walks, is_whole=is_whole)

    @property
    def x_map_type(self) -> TensorMapDataType:
        return self.converted.map_type if self.converted else self.instruction.map_type

    @property
    def converted_arguments(self) -> tuple[Argument, ...]:
        """The kernel's arguments if x is converted: ``ConvertedInput``, and the extents of ``ConvertedBoxes``."""
        if self.converted is None:
            return ()
        images, _, *spatial = self.operation.x.dims
        extents = (*spatial, images) if self.x.walks else (images * prod(spatial),)
        return (self.converted.argument, *i32(extents))

    @property
    def valid_argument(self) -> tuple[Argument, ...]:
        """The kernel's ``ValidTap`` for each tap."""
        walks = self.valid_walks
        return tuple(
            Struct(
                (
                    Scalar(ScalarType.U32, walks.index(tap.extents) if tap.count else 0),
                    Scalar(ScalarType.U32, int(not tap.count)),
                    *i32((*tap.outputs, *tap.pixels)),
                )
            )
            for tap in self.valid_taps
        )

    def columns_argument(self, chunks: int) -> tuple[Argument, ...]:
        """The kernel's ``FilterColumns`` (``filter_columns.cuh``).  chunks: blocks of a tap's channels."""
        convolution = self.operation.convolution
        is_flipped = convolution.mode is ConvolutionMode.CONVOLUTION
        counts = (*self.taps[:-1], self.taps[-1] // self.tap_run)
        sign = -1 if is_flipped else 1
        steps = tuple(sign * dilation for dilation in convolution.dilations)
        firsts = ((count - 1) * max(-step, 0) for count, step in zip(counts, steps, strict=True))
        return (
            *(Struct(divider(count)) for count in (*counts, chunks)),
            *i32((*firsts, *steps)),
            *i32((self.tap_run - 1 if is_flipped else 0, sign)),
            *i32((self.channels, self.x.group_channels, prod(counts) * chunks)),
        )

    def vector(self, width: int) -> int:
        """``width`` cut down so that no functor call crosses the end of a tap's channels."""
        while prod(self.taps) > 1 and self.channels % width:
            width //= 2
        return width

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        if self.groups > 1 and min(self.channels, self.filters) < _MIN_GROUP_EXTENT:
            got = f"{self.channels} and {self.filters}"
            return f"dw.dims: expected at least {_MIN_GROUP_EXTENT} channels and filters in a group, got {got}"
        largest = max(self.positions, self.operation.dw.element_count)
        if largest > MAX_INDEX:
            return f"dims: expected at most {MAX_INDEX} output pixels and weights, got {largest}"
        for axis in range(len(self.taps)):
            if self._reach(axis) > _MAX_OFFSET[len(self.taps)]:
                return f"dw.dims[{2 + axis}]: expected taps that reach at most {_MAX_OFFSET[len(self.taps)]} pixels"
        return self._map_problem()

    def _map_problem(self) -> str:
        for name, operand, map_type in (("dy", self.dy, self.instruction.map_type), ("x", self.x, self.x_map_type)):
            for layout in operand.maps(map_type, self.instruction.stage_k):
                if problem := tensor_map_problem(layout):
                    return f"{name}.{problem}"
        return ""

    @cached_property
    def _extents(self) -> tuple[int, ...]:
        """Positions of the walk on each spatial axis."""
        *outer, last = self.operation.dy.dims[2:]
        return (*outer, last + self._added_positions)

    @cached_property
    def _added_positions(self) -> int:
        """Positions added to each line, so that a window that runs on into the next line reads only padding."""
        if self.tap_run == 1:
            return 0
        convolution = self.operation.convolution
        return max(self._reach(-1) - min(convolution.pre_paddings[-1], convolution.post_paddings[-1]), 0)

    def _reach(self, axis: int) -> int:
        """Pixels from the first tap's to the last one's."""
        return (self.taps[axis] - 1) * self.operation.convolution.dilations[axis]


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether a tensor map can describe the tensor in place."""
    if tensor.alignment_bytes < ADDRESS_UNIT_BYTES or (tensor.strides[1] != 1 and tensor.dims[1] != 1):
        return False
    strides = (tensor.strides[axis] for axis in range(tensor.rank) if axis != 1 and tensor.dims[axis] > 1)
    return all(stride > 0 and stride * tensor.element_bytes % ADDRESS_UNIT_BYTES == 0 for stride in strides)


def _is_even(tensor: Tensor) -> bool:
    """Whether the pixels of all images have one constant stride."""
    distance = None
    for axis in (*range(tensor.rank - 1, 1, -1), 0):
        if tensor.dims[axis] == 1:
            continue
        if distance is not None and tensor.strides[axis] != distance:
            return False
        distance = tensor.strides[axis] * tensor.dims[axis]
    return True


def _pixel_stride(tensor: Tensor, strides: tuple[int, ...]) -> int:
    """Elements from one pixel to the next."""
    axes = (*range(tensor.rank - 1, 1, -1), 0)
    return next((strides[axis] for axis in axes if tensor.dims[axis] > 1), ADDRESS_UNIT_BYTES)


def _stride_bytes(extent: int, stride_bytes: int) -> int:
    """A tensor map's stride of a dimension, in bytes. For an extent of 1 any stride will do that the driver accepts."""
    return stride_bytes if extent > 1 else ADDRESS_UNIT_BYTES
