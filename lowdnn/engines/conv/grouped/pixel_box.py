"""Host side of ``include/pixel_box.cuh``: a channels-last tensor whose boxes of positions a kernel copies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.engines.conv.grouped.axes import AXES
from lowdnn.engines.gemm.packing import Packing
from lowdnn.engines.launch import ceil_div, divider, i32, i64
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Struct

CHUNK_BYTES = 16
LINE_BYTES = 128


@dataclass(frozen=True)
class BoxedTensor:
    """An activation that a kernel reads in boxes: in place where its positions begin whole chunks, or repacked."""

    tensor: Tensor

    @cached_property
    def packing(self) -> Packing | None:
        return None if self._has_whole_chunks else Packing(self.tensor, 1, CHUNK_BYTES)

    def geometry(self, box: tuple[int, ...], pace: tuple[int, ...], origin: tuple[int, ...] = (0,) * AXES) -> Struct:
        """``BoxGeometry``: boxes of ``box`` positions (image, axes), ``pace`` apart; the axes begin at ``origin``."""
        tensor, packing = self.tensor, self.packing
        strides = packing.strides if packing else tensor.strides
        channels = packing.channels if packing else tensor.dims[1]
        missing = AXES + 2 - tensor.rank
        return Struct(
            (
                *i64((strides[0], *(0,) * missing, *strides[2:])),
                *i32((tensor.dims[0], *(1,) * missing, *tensor.dims[2:], channels)),
                *i32((*pace, *origin)),
                *(Struct(divider(extent)) for extent in box),
                *i32((prod(box[:-1]),)),
            )
        )

    @property
    def _has_whole_chunks(self) -> bool:
        """Whether the channels lie side by side and every position begins a chunk."""
        tensor, size = self.tensor, self.tensor.element_bytes
        axes = (0, *range(2, tensor.rank))
        is_contiguous = tensor.strides[1] == 1 or tensor.dims[1] == 1
        steps = [tensor.strides[axis] for axis in axes if tensor.dims[axis] > 1]
        is_aligned = tensor.alignment_bytes >= CHUNK_BYTES and all(step * size % CHUNK_BYTES == 0 for step in steps)
        return is_contiguous and is_aligned and tensor.dims[1] * size % CHUNK_BYTES == 0


@dataclass(frozen=True)
class BoxRows:
    """How ``columns`` positions of the last axis lie in a row of a box that is read every ``step`` of them.

    Rows read at even steps are halved: the even columns come first.
    """

    columns: int
    step: int

    @property
    def is_halved(self) -> bool:
        return self.step % 2 == 0

    @property
    def place_step(self) -> int:
        """Places from one read column to the next."""
        return self.step // 2 if self.is_halved else self.step

    def place(self, column: int) -> int:
        """Of a column, in the row; sums of a read column's place and of another one's are places as well."""
        return column // 2 + column % 2 * ceil_div(self.columns, 2) if self.is_halved else column


def pitch_bytes(chunks: int) -> int:
    """From position to position in shared memory: a line of 128 bytes, or an odd number of chunks."""
    return (chunks if chunks * CHUNK_BYTES == LINE_BYTES else chunks | 1) * CHUNK_BYTES
