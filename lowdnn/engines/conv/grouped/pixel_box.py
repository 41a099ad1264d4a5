"""Host side of ``pixel_box.cuh`` and ``box_source.cuh``: boxes of positions, channels last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.grouped.axes import AXES
from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.launch import ceil_div, divider, i32, i64
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct
from lowdnn.tensor_map import (
    TensorMapDataType,
    TensorMapL2Promotion,
    TensorMapSwizzle,
    TiledMap,
    tensor_map_problem,
)

CHUNK_BYTES = 16
LINE_BYTES = 128

#: Map types by the size of an element: copies do not interpret elements.
_MAP_TYPES = {1: TensorMapDataType.UINT8, 2: TensorMapDataType.UINT16, 4: TensorMapDataType.UINT32}

#: Swizzles of positions by their bytes.
_SWIZZLES = {LINE_BYTES // 2: TensorMapSwizzle.BYTES_64, LINE_BYTES: TensorMapSwizzle.BYTES_128}

#: An integer, or a NumPy array of integers.
Count = Any


@dataclass(frozen=True)
class BoxedTensor:
    """An activation that a kernel reads in boxes: in place if its positions begin at whole chunks, else repacked."""

    tensor: Tensor

    @cached_property
    def packing(self) -> Packing | None:
        return None if self._has_whole_chunks else Packing(self.tensor, 1, CHUNK_BYTES)

    def geometry(self, box: Box, pace: tuple[int, ...], origin: tuple[int, ...] = (0,) * AXES) -> Struct:
        """The kernel's ``BoxGeometry``: boxes begin at multiples of ``pace`` plus ``origin``."""
        tensor, strides = self.tensor, self._strides
        missing = AXES + 2 - tensor.rank
        return Struct(
            (
                *i64((strides[0], *(0,) * missing, *strides[2:])),
                *i32((tensor.dims[0], *(1,) * missing, *tensor.dims[2:], self._channels)),
                *i32((*pace, *origin)),
                *(Struct(divider(extent)) for extent in box.extents),
                *i32((box.rows, box.places, box.row_places, box.half_places)),
            )
        )

    def map(self, box: Box, arch: ArchSpec) -> TiledMap | None:
        """The tensor map with dimensions (c, w, h, d, n); None if threads copy the boxes."""
        if not arch.has_tma or not is_swizzled(box.pitch_bytes):
            return None
        tensor, strides, size = self.tensor, self._strides, self.tensor.element_bytes
        missing = AXES + 2 - tensor.rank
        extents = (*reversed(tensor.dims[2:]), *(1,) * missing, tensor.dims[0])
        steps = (*reversed(strides[2:]), *(0,) * missing, strides[0])
        column_step = _halves(box.step)
        layout = TiledMap(
            _MAP_TYPES[size],
            address=0,
            dims=(self._channels, *extents),
            strides_bytes=tuple(
                step * size if extent > 1 else CHUNK_BYTES for step, extent in zip(steps, extents, strict=True)
            ),
            box=(box.chunks * CHUNK_BYTES // size, box.row_places * column_step, *reversed(box.extents[:-1])),
            element_strides=(1, column_step, 1, 1, 1),
            swizzle=_SWIZZLES[box.pitch_bytes],
            l2_promotion=TensorMapL2Promotion.BYTES_256,
        )
        return None if tensor_map_problem(layout) else layout

    @property
    def _strides(self) -> tuple[int, ...]:
        return self.packing.strides if self.packing else self.tensor.strides

    @property
    def _channels(self) -> int:
        return self.packing.channels if self.packing else self.tensor.dims[1]

    @property
    def _has_whole_chunks(self) -> bool:
        """Whether the channels are contiguous and every position begins at a chunk."""
        tensor, size = self.tensor, self.tensor.element_bytes
        axes = (0, *range(2, tensor.rank))
        is_contiguous = tensor.strides[1] == 1 or tensor.dims[1] == 1
        steps = [tensor.strides[axis] for axis in axes if tensor.dims[axis] > 1]
        is_aligned = tensor.alignment_bytes >= CHUNK_BYTES and all(step * size % CHUNK_BYTES == 0 for step in steps)
        return is_contiguous and is_aligned and tensor.dims[1] * size % CHUNK_BYTES == 0


@dataclass(frozen=True)
class Box:
    """Positions (image, axes) of ``chunks`` chunks in shared memory, read at every ``step``-th column.

    With even steps the box is halved: even columns come first, those of all rows in swizzled boxes, each row's in
    others.
    """

    extents: tuple[int, ...]
    step: int
    chunks: int

    @cached_property
    def pitch_bytes(self) -> int:
        """Bytes from position to position."""
        return pitch_bytes(self.chunks)

    @property
    def is_halved(self) -> bool:
        return _halves(self.step) > 1

    @cached_property
    def rows(self) -> int:
        return prod(self.extents[:-1])

    @cached_property
    def row_places(self) -> int:
        """Places from row to row."""
        columns = self.extents[-1]
        return ceil_div(columns, _halves(self.step)) if self._is_swizzled else columns

    @cached_property
    def half_places(self) -> int:
        """Places from the even columns to the odd ones."""
        return self.places // 2 if self._is_swizzled else ceil_div(self.extents[-1], 2)

    @cached_property
    def places(self) -> int:
        return int(places(self.rows, self.extents[-1], self.step, self.pitch_bytes))

    @property
    def place_step(self) -> int:
        """Places from one read column to the next."""
        return self.step // _halves(self.step)

    def place(self, offsets: Sequence[int]) -> int:
        """The place of a position in the first image; places of positions add up."""
        *rows, column = offsets
        row = 0
        for offset, extent in zip(rows, self.extents[1:-1], strict=True):
            row = row * extent + offset
        along = column % 2 * self.half_places + column // 2 if self.is_halved else column
        return row * self.row_places + along

    @property
    def _is_swizzled(self) -> bool:
        return is_swizzled(self.pitch_bytes)


def places(rows: Count, columns: Count, step: int, pitch_bytes: int) -> Count:
    """Places of a box of ``rows`` rows and ``columns`` columns. Halves of swizzled boxes are equal and whole lines."""
    if not is_swizzled(pitch_bytes):
        return rows * columns
    halves = _halves(step)
    half_columns = -(-columns // halves)
    return halves * 2 * -(-rows * half_columns // 2)


def _halves(step: int) -> int:
    """Number of halves of a box that is read at every ``step``-th column: 2 for even steps."""
    return 2 if step % 2 == 0 else 1


def pitch_bytes(chunks: int) -> int:
    """Bytes from position to position in shared memory: a line of 128 bytes or half of one, or an odd number of chunks.

    Six chunks take a line, too.
    """
    lines = {4: LINE_BYTES // 2, 6: LINE_BYTES, 8: LINE_BYTES}
    return lines.get(chunks, (chunks | 1) * CHUNK_BYTES)


def is_swizzled(pitch_bytes: int) -> bool:
    """Whether positions at this pitch are swizzled, in a layout of tensor maps."""
    return pitch_bytes in _SWIZZLES
