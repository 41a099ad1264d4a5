"""Tiles of a tensor as factors of Winograd's products, and the results of those: the kernels' host side.

Kernels: ``winograd_transform.cu``, ``winograd_output.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from lowdnn import dtypes
from lowdnn.arch.targets import BASE_TARGET
from lowdnn.codegen.functor import generate
from lowdnn.engines.gemm.instructions import STAGE_ROW_BYTES
from lowdnn.engines.launch import ACCESS_BYTES, bytes_touched, ceil_div, divider, i32, i64, macros, moved_bytes
from lowdnn.enums import DataType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, MathUnit, Struct, TensorPointer, Work, WorkspacePointer

_THREADS = 256
#: Tiles of a block that turns them.
_TURNED_TILES = 32
#: Channels of such a block.
_TURNED_CHANNELS = 8
_WORKSPACE_ALIGNMENT_BYTES = 256
#: The functor's axis along which ``winograd_output`` hands in elements, one by one.
_CHANNEL_AXIS = 1


class Matrix(StrEnum):
    """A matrix of ``Filtering<ALPHA>`` (``transforms.cuh``)."""

    DATA = "DATA"
    TAPS = "TAPS"
    RESULTS = "RESULTS"

    def columns(self, alpha: int) -> int:
        return {Matrix.DATA: alpha, Matrix.TAPS: 3, Matrix.RESULTS: alpha - 2}[self]


@dataclass(frozen=True)
class Grid:
    """Tiles of images by rows and columns, of ``channels`` each.

    channels_first: whether neighbours in the workspace are tiles; otherwise they are channels.
    """

    images: int
    rows: int
    columns: int
    channels: int
    channels_first: bool

    @property
    def tiles(self) -> int:
        return self.images * self.rows * self.columns

    @property
    def items(self) -> int:
        return self.tiles * self.channels

    @property
    def fast(self) -> int:
        """The extent of the axis whose elements are neighbours."""
        return self.tiles if self.channels_first else self.channels

    @property
    def lines(self) -> int:
        """The extent of the other axis."""
        return self.channels if self.channels_first else self.tiles

    def dividers(self, fast: int) -> tuple[Struct, ...]:
        """fast: the extent of the axis along which threads are neighbours."""
        return tuple(Struct(divider(extent)) for extent in (fast, self.images, self.rows, self.columns))


@dataclass(frozen=True)
class Stored:
    """``alpha`` x ``alpha`` matrices of tiles by channels in the workspace, whose rows begin at whole accesses.

    chunk: channels of a tile that lie together, channels last: a matrix has them for all tiles, then the next so many.
    0: all channels lie together.
    is_blocked: rows are padded with zeros to whole blocks of a K-major operand.  is_split: the blocks of FLOAT lie in
    parts, as those of ``gemm/tf32_split.py`` do, which strides leave out of account.
    """

    uid: int
    data_type: DataType
    alpha: int
    grid: Grid
    chunk: int = 0
    is_blocked: bool = False
    is_split: bool = False

    @property
    def block(self) -> int:
        """Elements of a block of k."""
        return STAGE_ROW_BYTES // dtypes.info(self.data_type).size_bytes

    @property
    def fast(self) -> int:
        """Elements of a row, with those of its padding that are zeros."""
        return ceil_div(self.grid.fast, self.block) * self.block if self.is_blocked else self.grid.fast

    @property
    def items(self) -> int:
        return self.grid.lines * self.fast

    @property
    def parts(self) -> int:
        return 2 if self.is_split else 1

    @cached_property
    def strides(self) -> tuple[int, int, int]:
        """Elements from one matrix, one tile and one channel to the next."""
        if self.chunk:
            return self.grid.items, self.chunk, 1
        unit = ACCESS_BYTES // dtypes.info(self.data_type).size_bytes
        pitch = ceil_div(self.fast, unit) * unit
        grid = self.grid
        return (grid.channels * pitch, 1, pitch) if grid.channels_first else (grid.tiles * pitch, pitch, 1)

    @property
    def chunk_stride(self) -> int:
        """Elements from one chunk, or block in parts, to the next."""
        return 2 * self.block if self.is_split else self.grid.tiles * self.chunk

    @property
    def size_bytes(self) -> int:
        return self.alpha**2 * self.strides[0] * self.parts * dtypes.info(self.data_type).size_bytes

    def tensor(self, *, is_transposed: bool) -> Tensor:
        """The operand of a product with rows of tiles and columns of channels, or the other way round."""
        dims, strides = (self.grid.tiles, self.grid.channels), self.strides[1:]
        if is_transposed:
            dims, strides = dims[::-1], strides[::-1]
        batched = (self.alpha**2, *dims), (self.strides[0], *strides)
        return Tensor(self.uid, self.data_type, *batched, alignment_bytes=_WORKSPACE_ALIGNMENT_BYTES)


@dataclass(frozen=True)
class TransformParams:
    """Macros of ``winograd_transform.cu``."""

    TYPE: str
    ALPHA: int
    MATRIX: str
    INPUTS: int
    STEP: int
    CHANNELS_FIRST: int
    TURNED: int
    CHUNK: int
    PARTS: int


@dataclass(frozen=True)
class Transform:
    """The tiles of ``source``, (images, channels, rows, columns), times ``matrix`` along both axes.

    step, origin: tile (i, j) begins at (i, j) * step + origin.  is_flipped: rows and columns are walked backwards.
    is_turned: neighbours in memory are channels of ``source``, but tiles of ``stored``, which is blocked.
    """

    source: Tensor
    matrix: Matrix
    step: int
    origin: tuple[int, int]
    is_flipped: bool
    stored: Stored
    is_turned: bool = False

    @property
    def kernel(self) -> KernelRef:
        alpha, grid = self.stored.alpha, self.stored.grid
        info = dtypes.info(self.source.data_type)
        is_split = self.stored.is_split
        params = TransformParams(
            TYPE=info.c_type,
            ALPHA=alpha,
            MATRIX=self.matrix,
            INPUTS=self.matrix.columns(alpha),
            STEP=self.step,
            CHANNELS_FIRST=int(grid.channels_first),
            TURNED=int(self.is_turned),
            CHUNK=self.stored.block if is_split else self.stored.chunk,
            PARTS=int(is_split),
        )
        order = f"{'ct' if self.is_turned else 't' if grid.channels_first else 'c'}{params.CHUNK or ''}{'p' * is_split}"
        return KernelRef(
            name=f"winograd_transform_{info.short_name}_{alpha}x{alpha}_{self.matrix.lower()}{self.step}_{order}_sm80",
            source="conv/winograd/winograd_transform.cu",
            target=BASE_TARGET,
            parameters=macros(params),
        )

    def launch(self, at_bytes: int) -> Launch:
        """The launch that stores the factors at ``at_bytes`` of the workspace."""
        stored, grid, (*_, rows, columns) = self.stored, self.stored.grid, self.source.dims
        strides, offset = list(self.source.strides), 0
        if self.is_flipped:
            offset = (rows - 1) * strides[2] + (columns - 1) * strides[3]
            strides[2:] = [-stride for stride in strides[2:]]
        product, tile, channel = stored.strides
        pitch = channel if grid.channels_first else tile
        channel_blocks = ceil_div(grid.channels, _TURNED_CHANNELS)
        arguments = Struct(
            (
                TensorPointer(self.source.uid, offset * self.source.element_bytes),
                WorkspacePointer(at_bytes),
                *i64((*strides, product * stored.parts, pitch * stored.parts, stored.chunk_stride)),
                *i32((*self.source.dims, *self.origin)),
                *grid.dividers(channel_blocks if self.is_turned else stored.fast),
                *i32((stored.items,)),
            )
        )
        blocks = ceil_div(stored.fast, _TURNED_TILES) * channel_blocks if self.is_turned else _blocks(stored)
        return _launch(stored, blocks, arguments, bytes_touched(self.source) + stored.size_bytes)


@dataclass(frozen=True)
class OutputParams:
    """Macros of ``winograd_output.cu``."""

    ALPHA: int
    MATRIX: str
    OUTPUTS: int
    CHANNELS_FIRST: int


@dataclass(frozen=True)
class Output:
    """The results of the products ``stored``: the transposed ``matrix`` along both axes, and the epilogue ``dag``."""

    dag: PointwiseDag
    matrix: Matrix
    stored: Stored

    def step(self, at_bytes: int) -> tuple[KernelRef, Launch]:
        """The kernel and the launch that reads the products at ``at_bytes`` of the workspace."""
        alpha, grid = self.stored.alpha, self.stored.grid
        functor = generate(self.dag, accumulator=DataType.FLOAT, vector_axis=_CHANNEL_AXIS)
        params = OutputParams(alpha, self.matrix, self.matrix.columns(alpha), int(grid.channels_first))
        order = "t" if grid.channels_first else "c"
        kernel = KernelRef(
            name=f"winograd_output_{alpha}x{alpha}_{self.matrix.lower()}_{order}_sm80_{functor.digest}",
            source="conv/winograd/winograd_output.cu",
            target=BASE_TARGET,
            parameters=macros(params),
            generated=functor.text,
        )
        arguments = Struct(
            (
                WorkspacePointer(at_bytes),
                *i64(self.stored.strides),
                *i32(self.dag.dims[2:]),
                *grid.dividers(grid.fast),
                *i32((grid.items,)),
                functor.arguments,
            )
        )
        transferred_bytes = self.stored.size_bytes + moved_bytes(self.dag)
        return kernel, _launch(self.stored, _blocks(self.stored), arguments, transferred_bytes)


def _blocks(stored: Stored) -> int:
    return ceil_div(stored.items, _THREADS)


def _launch(stored: Stored, blocks: int, arguments: Struct, transferred_bytes: int) -> Launch:
    """A launch with a thread for each tile of each channel, which multiplies a matrix with its tile from both sides."""
    work = Work(flops=4 * stored.alpha**3 * stored.items, bytes=transferred_bytes, unit=MathUnit.FMA_F32)
    return Launch(0, (blocks, 1, 1), (_THREADS, 1, 1), (arguments,), work=work)
