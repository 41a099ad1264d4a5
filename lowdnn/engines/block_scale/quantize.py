"""The launch of ``block_scale_quantize.cu``: along rows if x is contiguous along the blocks, else by columns."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.space import IndexSpace, collapsed, with_axis
from lowdnn.engines.indices import counter_type
from lowdnn.engines.launch import (
    ACCESS_BYTES,
    MAX_EXTENT,
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    ceil_power,
    conversion_target,
    divider,
    i64,
    macros,
    target_label,
)
from lowdnn.enums import TensorReordering
from lowdnn.ops import block_scale
from lowdnn.ops.block_scale_quantize import LARGEST, BlockScaleQuantize
from lowdnn.ops.tensor import TILE_COLUMNS, Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work

_THREADS = 128
#: Bytes of x in flight for a thread along rows: two accesses, whose elements make one access of y.
_ROW_BYTES = 32
#: Bytes of x that a thread reads from one row in the variant by columns.
_COLUMN_BYTES = 16
#: Most rows that a thread keeps in registers in the variant by columns.
_MAX_REGISTER_ROWS = 8
#: Most threads that share the rows of a block; with this many, a warp reads whole lines of 128 bytes, or half lines.
_MOST_LANES = 8


@dataclass(frozen=True)
class Params:
    """Compile-time parameters of the kernel; field names are its macros."""

    X: str
    Y: str
    S: str
    Y_LARGEST: str
    RANK: int
    THREADS: int
    BLOCK: int
    VECTOR: int
    LANES: int
    COLUMNS: int
    CHUNK: int
    X_WIDTH: int
    Y_WIDTH: int
    S_WIDTH: int
    TILED: int
    SCALE_ROW: int
    SCALE_COLUMN: int
    INDEX: str


@dataclass(frozen=True)
class Quantization:
    """How the kernel walks over an operation's blocks.

    space: the outer axes, the blocks and, by columns, the column axis; its strides go from block to block.
    """

    operation: BlockScaleQuantize
    space: IndexSpace
    by_columns: bool

    @staticmethod
    def of(operation: BlockScaleQuantize) -> Quantization:
        x, axis = operation.x, operation.axis
        by_columns = x.strides[axis] != 1 or _rows_vector(operation) == 0
        others = sorted((a for a in range(x.rank) if a != axis), key=lambda a: x.strides[a], reverse=True)
        kept = [axis, *(others.pop() for _ in others[-1:] if by_columns)]
        alone = {*kept, *(range(x.rank)[-2:] if _is_tiled(operation) else ())}
        space = collapsed(_space(operation).permuted((*others, *kept)), alone=alone)
        if by_columns and len(kept) == 1:
            space = with_axis(space, space.rank)
        return Quantization(operation, space, by_columns)

    @property
    def refusal(self) -> str:
        extent = max(self._radices[1:], default=1)
        if extent > MAX_EXTENT:
            return f"tensor.dims: expected at most {MAX_EXTENT} blocks along an axis, got {extent}"
        blocks = self._blocks
        return f"tensor.dims: expected at most {MAX_GRID_X} blocks, got {blocks}" if blocks > MAX_GRID_X else ""

    def params(self) -> Params:
        operation = self.operation
        x, y, scale = (dtypes.info(t.data_type).c_type for t in (operation.x, operation.y, operation.scale))
        vector = self._vector
        last = self.space.rank - 1
        x_stride, y_stride = (
            (self.space.strides[t.uid][last] if self.by_columns else t.strides[operation.axis])
            for t in (operation.x, operation.y)
        )
        return Params(
            X=x,
            Y=y,
            S=scale,
            Y_LARGEST=f"{LARGEST[operation.y.data_type]}f",
            RANK=self.space.rank,
            THREADS=_THREADS,
            BLOCK=operation.block_size,
            VECTOR=vector,
            LANES=self._lanes,
            COLUMNS=int(self.by_columns),
            CHUNK=min(ceil_div(operation.block_size, self._lanes), _MAX_REGISTER_ROWS) if self.by_columns else 1,
            X_WIDTH=self._width(operation.x) if x_stride == 1 else 0,
            Y_WIDTH=self._width(operation.y) if y_stride == 1 else 0,
            S_WIDTH=self._width(operation.scale) if self.by_columns and self._scale_step == 1 else 0,
            TILED=int(_is_tiled(operation)),
            SCALE_ROW=self._axis_of(operation.x.rank - 2),
            SCALE_COLUMN=self._axis_of(operation.x.rank - 1),
            INDEX=counter_type(self._threads),
        )

    def launch(self, params: Params) -> Launch:
        operation, uids = self.operation, [self.operation.x.uid, self.operation.y.uid, self.operation.scale.uid]
        limits = self._limits
        columns = (limits[-1], self.space.extents[-1]) if self.by_columns else (1, 1)
        sizes = (prod(self._radices), operation.x.dims[operation.axis], *columns)
        tiles = operation.scale.dims[-1] // TILE_COLUMNS
        steps = (operation.x.strides[operation.axis], operation.y.strides[operation.axis])
        strides = (stride for uid in uids for stride in self.space.strides[uid])
        axes = (field for radix in (1, *self._radices[1:]) for field in divider(radix))
        return Launch(
            kernel=0,
            grid=(self._blocks, 1, 1),
            block=(_THREADS, 1, 1),
            arguments=(Struct((*map(TensorPointer, uids), *i64((*sizes, tiles, *steps, *strides, *limits)), *axes)),),
            work=Work(
                flops=operation.flops,
                bytes=bytes_of((operation.x, operation.y, operation.scale)),
                unit=MathUnit.FMA_F32,
            ),
        )

    @property
    def _limits(self) -> tuple[int, ...]:
        """Blocks or elements that exist along each axis; the space may have more, which pad tiles of scales."""
        found = list(self.space.extents)
        there = block_scale.scale_dims(self.operation.x.dims, self.operation.axis, self.operation.block_size)
        for number, origin in enumerate(self.space.origin):
            if len(origin) == 1:
                found[number] = there[origin[0]]
        return tuple(found)

    def _axis_of(self, axis: int) -> int:
        """The kernel's axis for a tensor axis if scales are tiled; 0 for other tensors."""
        return self.space.origin.index((axis,)) if _is_tiled(self.operation) else 0

    @property
    def _scale_step(self) -> int:
        """The stride from one column's scale to the next one's; 0 in tiles."""
        return self.space.strides[self.operation.scale.uid][-1]

    @property
    def _vector(self) -> int:
        """Elements of a thread along x's fastest axis."""
        if not self.by_columns:
            return _rows_vector(self.operation)
        most = max(_COLUMN_BYTES // self.operation.x.element_bytes, 1)
        return min(most, ceil_power(self.space.extents[-1]))

    @property
    def _lanes(self) -> int:
        """Threads that share a block."""
        if not self.by_columns:
            return self.operation.block_size // self._vector
        return min(ceil_power(ceil_div(self.operation.block_size, _MAX_REGISTER_ROWS)), _MOST_LANES)

    @property
    def _radices(self) -> tuple[int, ...]:
        """Blocks, or groups of columns, along each axis."""
        if not self.by_columns:
            return self.space.extents
        return (*self.space.extents[:-1], ceil_div(self.space.extents[-1], self._vector))

    @property
    def _threads(self) -> int:
        """Threads of the grid, with items rounded up to whole warps where items lie side by side."""
        side = WARP_SIZE // self._lanes if self.by_columns else 1
        return ceil_div(prod(self._radices), side) * side * self._lanes

    @property
    def _blocks(self) -> int:
        return ceil_div(self._threads, _THREADS)

    def _width(self, tensor: Tensor) -> int:
        """Elements of one access, a divisor of the offsets at which the tensor's rows begin."""
        strides = self.space.strides[tensor.uid]
        others = (*strides[:-1], tensor.strides[self.operation.axis]) if self.by_columns else strides
        width = min(self._vector, ACCESS_BYTES // tensor.element_bytes, tensor.alignment_bytes // tensor.element_bytes)
        while any(stride % width for stride in others):
            width //= 2
        return width


def kernel_of(params: Params, operation: BlockScaleQuantize, arch: ArchSpec) -> KernelRef:
    x, y, scale = (dtypes.info(t.data_type).short_name for t in (operation.x, operation.y, operation.scale))
    target = conversion_target((operation.y.data_type,), arch)
    form = "c" if params.COLUMNS else "r"
    widths = f"v{params.VECTOR}x{params.X_WIDTH}y{params.Y_WIDTH}s{params.S_WIDTH}"
    tiled = f"t{params.SCALE_ROW}{params.SCALE_COLUMN}" if params.TILED else ""
    shape = f"b{params.BLOCK}{form}{params.RANK}{tiled}_{widths}_{params.INDEX}"
    return KernelRef(
        name=f"block_scale_quantize_{x}_{y}_{scale}_{shape}_{target_label(target)}",
        source="block_scale/block_scale_quantize.cu",
        target=target,
        parameters=macros(params),
    )


def _rows_vector(operation: BlockScaleQuantize) -> int:
    """Elements of a thread, such that at most a warp's threads share a block; 0 if the block's size is no power of two,
    or too large."""
    size = operation.block_size
    vector = min(_ROW_BYTES // operation.x.element_bytes, ACCESS_BYTES // operation.y.element_bytes, size)
    return vector if size == ceil_power(size) and size // vector <= WARP_SIZE else 0


def _is_tiled(operation: BlockScaleQuantize) -> bool:
    return operation.scale.reordering is TensorReordering.F8_128x4


def _space(operation: BlockScaleQuantize) -> IndexSpace:
    """One coordinate for each block along the axis, and for each element of the others; scales in whole tiles."""
    axis, size, scale = operation.axis, operation.block_size, operation.scale
    strides = {
        tensor.uid: tuple(stride * size if a == axis else stride for a, stride in enumerate(tensor.strides))
        for tensor in (operation.x, operation.y)
    }
    strides[scale.uid] = (*scale.strides[:-2], 0, 0) if _is_tiled(operation) else scale.strides
    return IndexSpace(scale.dims, strides, tuple((a,) for a in range(operation.x.rank)))
