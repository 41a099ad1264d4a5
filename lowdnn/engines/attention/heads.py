"""Operands of attention as kernels read them: rows of heads in memory, and bounds of the keys that a query attends
to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from lowdnn.engines.launch import MAX_EXTENT, ceil_div, divider, i32, i64
from lowdnn.enums import DataType
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, Pointer, Scalar, ScalarType, Struct, TensorPointer, WorkspacePointer

#: Operands of the tensor cores.
TYPES = (DataType.HALF, DataType.BFLOAT16)
#: Elements of a head.
MAX_SIZE = 256
#: Most queries or keys: kernels use 32-bit integers, also for the sum of an index and two bounds.
MAX_LENGTH = 2**29

#: Bytes of a copy of elements of a head.
COPY_BYTES = 16
#: Padding of a row in shared memory (``HeadRows``).
_PITCH_PADDING_BYTES = 16
#: Bytes of all banks of shared memory.
_LINE_BYTES = 128


class Place(IntEnum):
    """Where rows of heads lie, as ``attention_places.cuh`` has it."""

    IN_STRIDES = 0
    IN_PAGES = 1
    IN_LARGE_PAGES = 2
    PACKED = 3


@dataclass(frozen=True)
class Heads:
    """size: elements of a row, contiguous.  strides: batch, head and row strides in elements; 0 where one repeats.
    sharing: heads of the queries that share one of these.  load: the load whose pages ``tensor`` holds; the first
    stride is that of a page.  ragged: the operation that packs sequences of rows; ``tensor`` is as if it were padded.
    first_byte: the place in the workspace, where they lie there."""

    tensor: Tensor
    rows: int
    size: int
    strides: tuple[int, int, int]
    size_stride: int
    sharing: int
    load: PagedCacheLoad | None = None
    ragged: RaggedMove | None = None
    first_byte: int | None = None

    @staticmethod
    def of(tensor: Tensor, heads: int, *, row_axis: int) -> Heads:
        """``tensor`` (batch, heads, rows, size), or with the last two exchanged where ``row_axis`` is 3."""
        size_axis = 5 - row_axis
        batch, head, row = (0 if tensor.dims[axis] == 1 else tensor.strides[axis] for axis in (0, 1, row_axis))
        return Heads(
            tensor,
            rows=tensor.dims[row_axis],
            size=tensor.dims[size_axis],
            strides=(batch, head, row),
            size_stride=tensor.strides[size_axis],
            sharing=max(1, heads // max(1, tensor.dims[1])),
        )

    @staticmethod
    def loaded(load: PagedCacheLoad, heads: int) -> Heads:
        """The heads that ``load`` reads, in their pages."""
        return replace(Heads.of(load.container, heads, row_axis=2), rows=load.y.dims[2], load=load)

    @property
    def read(self) -> tuple[Tensor, ...]:
        return (self.tensor,) if self.load is None else (self.load.y, self.load.page_table)

    @property
    def pointer(self) -> Pointer:
        return TensorPointer(self.tensor.uid) if self.first_byte is None else WorkspacePointer(self.first_byte)

    def place(self, tile_rows: int) -> Place:
        """tile_rows: the rows that are read together."""
        if self.load is not None:
            return Place.IN_PAGES if self.load.page_rows % tile_rows else Place.IN_LARGE_PAGES
        return Place.IN_STRIDES if self.ragged is None else Place.PACKED

    @property
    def argument(self) -> Struct:
        """The fields of the kernel's ``Heads``, ``PagedHeads`` or ``PackedHeads``."""
        heads = Struct((self.pointer, *i64(self.strides), *i32((self.sharing,))))
        if self.ragged is not None:
            return Struct((heads, offsets_argument(self.ragged)))
        if self.load is None:
            return heads
        return Struct((heads, *table_arguments(self.load), *i32((self.tensor.dims[0],))))


def offsets_argument(move: RaggedMove | None) -> Struct:
    """The fields of the kernel's ``Offsets``; those of no offsets."""
    if move is None:
        return Struct((Scalar(ScalarType.I64, 0), *i64((0, 0, 0)), Struct(divider(1)), *i32((0,))))
    rows, offsets = move.row_elements, move.offsets
    sizes = (offsets.strides[0], move.multiplier, move.padded.dims[2] * rows)
    is_i64 = offsets.data_type is DataType.INT64
    return Struct((TensorPointer(offsets.uid), *i64(sizes), Struct(divider(rows)), *i32((is_i64,))))


def table_arguments(load: PagedCacheLoad) -> tuple[Argument, ...]:
    """The page table, strides of its batches and entries, the logarithm of a page's rows."""
    table, shift = load.page_table, load.page_rows.bit_length() - 1
    return (TensorPointer(table.uid), *i64((table.strides[0], table.strides[2])), *i32((shift,)))


def refuse_heads(heads: Heads) -> str:
    """Why rows cannot be copied 16 bytes at a time, or an empty string."""
    label, elements = heads.tensor.label, COPY_BYTES // heads.tensor.element_bytes
    if heads.size_stride != 1:
        return f"{label}.strides: expected 1 along a head's elements, got {heads.size_stride}"
    if heads.tensor.alignment_bytes % COPY_BYTES:
        return f"{label}.alignment_bytes: expected a multiple of {COPY_BYTES}, got {heads.tensor.alignment_bytes}"
    if any(stride % elements for stride in heads.strides):
        return f"{label}.strides: expected multiples of {elements} beside a head's, got {list(heads.strides)}"
    if heads.load is not None and max(heads.strides[2], heads.load.page_table.strides[2]) > MAX_EXTENT:
        expected = f"strides of rows and of entries of the page table up to {MAX_EXTENT}"
        return f"{label}: expected {expected}, got {heads.strides[2]} and {heads.load.page_table.strides[2]}"
    if heads.ragged is not None and heads.rows * heads.ragged.row_elements > MAX_EXTENT:
        return f"{label}.dims: expected at most {MAX_EXTENT} elements of a ragged batch, got {heads.rows} rows"
    return ""


def padded(size: int, granule: int = 16) -> int:
    """Elements of a head in whole fragments."""
    return max(1, ceil_div(size, granule)) * granule


def pitch_bytes(padded_size: int) -> int:
    """Bytes from a row to the next one in shared memory (``HeadRows``), of 16-bit elements."""
    row_bytes = padded_size * 2
    return row_bytes + (_PITCH_PADDING_BYTES if row_bytes % _LINE_BYTES else 0)


def kernel_bounds(left: int | None, right: int | None) -> tuple[int, int]:
    """The kernels' (left, right): query r attends to keys r - left to r + right; without a bound it is a large
    number."""
    reach_left, reach_right = (
        max(-MAX_LENGTH, min(MAX_LENGTH, MAX_LENGTH if bound is None else bound)) for bound in (left, right)
    )
    return reach_left, reach_right


def seen_share(queries: int, keys: int, left: int, right: int) -> float:
    """The share of attended pairs among all pairs of a query and a key; if there are many queries, estimated from some
    of them."""
    if queries and keys and left >= queries - 1 and right >= keys - 1:
        return 1.0
    step = max(1, queries // 64)
    first, count = step // 2, len(range(step // 2, queries, step))
    ends, starts = (_sum_clipped(first + bound, step, count, keys) for bound in (right + 1, -left))
    return max(0, ends - starts) / max(1, count * keys)


def _sum_clipped(first: int, step: int, count: int, limit: int) -> int:
    """The sum of ``count`` numbers, ``first`` and so on in steps, each moved into 0 to ``limit``."""
    below = min(count, max(0, ceil_div(-first, step)))
    to_limit = min(count, max(0, ceil_div(limit - first, step)))
    inside = to_limit - below
    return inside * first + step * (inside * (below + to_limit - 1) // 2) + (count - to_limit) * limit
