"""The next row of a thread, on its way to shared memory while the thread works on one (``next_row.cuh``)."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.access import contiguous_elements
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.rows.layout import LINE_GROUPS, RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.ops.tensor import Tensor

#: Bytes of static shared memory at most, for what the threads of a team join.
_STATIC_BYTES = 16384
#: Behind the row of each source, where the copy engine brings it.
_BARRIER_BYTES = 16


@dataclass(frozen=True)
class NextRow:
    """sources: what the kernel's functors read of each element.  is_wanted: where there is room.

    by_engine: brought by the copy engine, where that can.
    """

    tile: RowTile
    layout: RowLayout
    arch: ArchSpec
    sources: tuple[tuple[Tensor, ...], ...]
    is_wanted: bool
    by_engine: bool = False

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macro LOOKS_AHEAD: ``NOT_AHEAD``, ``BY_THREADS`` or ``BY_COPY_ENGINE``."""
        return (("LOOKS_AHEAD", self.is_ahead + self.is_by_engine),)

    @property
    def is_ahead(self) -> bool:
        """Whether blocks stay for several rows, and ask for the next one when they begin with one."""
        room = shared_room(self.arch, self.tile.RESIDENT) - _STATIC_BYTES // self.tile.RESIDENT
        is_one_chunk = self.tile.chunks(self.layout) == 1 and not self.tile.is_cooperative
        return self.is_wanted and is_one_chunk and self._row_bytes <= room

    @property
    def is_by_engine(self) -> bool:
        """Whether the copy engine brings the next row: lines of one team in a block."""
        is_line = self.layout.space.is_line and self.tile.THREADS == self.tile.TEAM
        can_copy = self.arch.has_tma and all(map(self._is_whole, self.sources))
        return self.by_engine and self.is_ahead and is_line and can_copy

    @property
    def line_groups(self) -> int:
        """The macro LINE_GROUPS: groups of a memory line, where warps begin at one, otherwise 1. Warps do so where the
        copy engine brings rows that begin beside lines; with copies of their own they took 2 % longer on an H200."""
        return LINE_GROUPS if self.is_by_engine and self.tile.has_room_for_lines(self.layout) else 1

    @property
    def shared_bytes(self) -> int:
        barriers = _BARRIER_BYTES * len(self.sources) if self.is_by_engine else 0
        return self._row_bytes + barriers if self.is_ahead else 0

    @property
    def blocks(self) -> int:
        """Blocks for ``RowKernel.launch``."""
        return self.tile.staying_blocks(self.layout, self.arch) if self.is_ahead else 0

    def _is_whole(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether whole groups are whole accesses of 16 bytes of one tensor."""
        if len(tensors) != 1:
            return False
        space, tensor = self.layout.space, tensors[0]
        strides = space.space.strides[tensor.uid]
        aligned = contiguous_elements(tensor, strides, space.vector_axis, space.skew) * tensor.element_bytes
        is_whole = self.layout.vector * tensor.element_bytes % 16 == 0 and aligned % 16 == 0
        return strides[space.vector_axis] == 1 and is_whole

    @property
    def _row_bytes(self) -> int:
        """What a block reads of its rows."""
        of_group = sum(self.layout.read_bytes(tensors) for tensors in self.sources)
        return self.tile.ITEMS * self.tile.THREADS * of_group
