"""The next row of a thread, on its way to shared memory while the thread works on one: ``include/next_row.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.engines.rows.tile import RowTile
from lowdnn.ops.tensor import Tensor

#: Of static shared memory, at most: what the threads of a team join.
_STATIC_BYTES = 16384


@dataclass(frozen=True)
class NextRow:
    """sources: what the kernel's functors read of each element.  is_wanted: where there is room."""

    tile: RowTile
    layout: RowLayout
    arch: ArchSpec
    sources: tuple[tuple[Tensor, ...], ...]
    is_wanted: bool

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """The macro LOOKS_AHEAD."""
        return (("LOOKS_AHEAD", int(self.is_ahead)),)

    @property
    def is_ahead(self) -> bool:
        """Whether blocks stay for several rows, and ask for the next one when they begin with one."""
        room = self.arch.shared_bytes_beside(self.tile.RESIDENT) - _STATIC_BYTES // self.tile.RESIDENT
        is_one_chunk = self.tile.chunks(self.layout) == 1 and not self.tile.is_cooperative
        return self.is_wanted and is_one_chunk and self._row_bytes <= room

    @property
    def shared_bytes(self) -> int:
        return self._row_bytes if self.is_ahead else 0

    @property
    def blocks(self) -> int:
        """For ``RowKernel.launch``."""
        return self.tile.staying_blocks(self.layout, self.arch) if self.is_ahead else 0

    @property
    def _row_bytes(self) -> int:
        """What a block reads of its rows."""
        of_group = sum(self.layout.read_bytes(tensors) for tensors in self.sources)
        return self.tile.ITEMS * self.tile.THREADS * of_group
