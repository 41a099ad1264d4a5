"""The prefetch of a thread's next row into shared memory while the thread works on a row (``next_row.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.rows.layout import LINE_GROUPS, RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.ops.tensor import Tensor

#: Bytes of static shared memory at most, in which the threads of a team reduce their numbers.
_STATIC_BYTES = 16384
#: Bytes of the barrier after each source's row, if bulk copies bring it.
_BARRIER_BYTES = 16


@dataclass(frozen=True)
class NextRow:
    """sources: the tensors that each functor reads for an element.

    is_wanted: whether to prefetch if shared memory has room.  by_bulk_copy: whether to use bulk copies if possible.
    """

    tile: RowTile
    layout: RowLayout
    arch: ArchSpec
    sources: tuple[tuple[Tensor, ...], ...]
    is_wanted: bool
    by_bulk_copy: bool = False

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macro LOOKS_AHEAD: ``NOT_AHEAD``, ``BY_THREADS`` or ``BY_BULK_COPY``."""
        return (("LOOKS_AHEAD", self.is_ahead + self.is_bulk),)

    @property
    def is_ahead(self) -> bool:
        """Whether the grid is persistent, and blocks prefetch the next row when they begin one."""
        room = shared_room(self.arch, self.tile.RESIDENT) - _STATIC_BYTES // self.tile.RESIDENT
        is_one_chunk = self.tile.chunks(self.layout) == 1 and not self.tile.is_cooperative
        return self.is_wanted and is_one_chunk and self._row_bytes <= room

    @property
    def is_bulk(self) -> bool:
        """Whether bulk copies bring the next row: each block then has one team, whose rows have one axis."""
        is_line = self.layout.space.is_line and self.tile.THREADS == self.tile.TEAM
        can_copy = self.arch.has_tma and all(map(self._is_whole, self.sources))
        return self.by_bulk_copy and self.is_ahead and is_line and can_copy

    @property
    def line_groups(self) -> int:
        """The macro LINE_GROUPS: 8 groups, a memory line, if warps begin at memory lines; otherwise 1.

        They do if bulk copies bring rows that begin inside lines; with copies by threads it cost 2 % on an H200.
        """
        return LINE_GROUPS if self.is_bulk and self.tile.has_room_for_lines(self.layout) else 1

    @property
    def shared_bytes(self) -> int:
        barriers = _BARRIER_BYTES * len(self.sources) if self.is_bulk else 0
        return self._row_bytes + barriers if self.is_ahead else 0

    @property
    def blocks(self) -> int:
        """Blocks for ``RowKernel.launch``; 0 leaves it one for each group of rows."""
        return self.tile.persistent_blocks(self.layout, self.arch) if self.is_ahead else 0

    def _is_whole(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether each group is made of whole accesses of 16 bytes to one tensor."""
        if len(tensors) != 1:
            return False
        space, tensor = self.layout.space, tensors[0]
        strides = space.space.strides[tensor.uid]
        aligned = contiguous_elements(tensor, strides, space.vector_axis, space.skew) * tensor.element_bytes
        is_whole = self.layout.vector * tensor.element_bytes % 16 == 0 and aligned % 16 == 0
        return strides[space.vector_axis] == 1 and is_whole

    @property
    def _row_bytes(self) -> int:
        """Bytes that a block reads of its rows."""
        group_bytes = sum(self.layout.read_bytes(tensors) for tensors in self.sources)
        return self.tile.ITEMS * self.tile.THREADS * group_bytes
