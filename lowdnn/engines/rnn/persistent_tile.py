"""Tiles of the persistent recurrence on warpgroups: what a multiprocessor must hold, and how long a step takes.

step = hand-over + columns * their share + max(chunks * (copy + columns * product), turns of the ring)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.launch import ceil_div
from lowdnn.engines.rnn.warpgroup_tile import BARRIER_BYTES, CHUNK, LINE_BYTES, MOST_CHUNKS, WarpgroupTile
from lowdnn.ops.rnn import Rnn

#: Sequences of a group of blocks.
COLUMNS = (16, 32, 64, 128)
#: Rows of weights of a block.
ROWS = 64

#: Warpgroups that multiply, each for half of the columns.
_WARPGROUPS = 2
#: Rows of weights of a unit whose cell has several gates; a cell of one gate has one.
_GATE_ROWS = 4
#: Bytes of several chunks that are copied at a time.
_COPIED_BYTES = 8192
#: The most chunks that are copied at a time.
_MOST_COPIED = 4
#: Bytes of the length of a sequence.
_LENGTH_BYTES = 4
#: Registers of a thread that a chunk of weights takes.
_CHUNK_REGISTERS = 16
#: Registers of a thread for the states of an element.
_ELEMENT_REGISTERS = 2
#: Registers of a thread that neither weights, sums nor states take (so that no assembled kernel spills).
_OTHER_REGISTERS = 40
#: Seconds of a step from a block's states to their first chunk in another one, and its sums (measured on an H200 with
#: H of 256 to 2048 and 16 to 128 columns, as those below).
_STEP_S = 1.7e-6
#: Further seconds of a step for each column.
_COLUMN_S = 11.5e-9
#: Seconds of a chunk of k, however many columns it has.
_CHUNK_S = 0.052e-6
#: Further seconds of a chunk of k for each column.
_CHUNK_COLUMN_S = 1.12e-9
#: Seconds from the request of a chunk until its slot is free for another one.
_SLOT_S = 1.3e-6


@dataclass(frozen=True)
class PersistentTile(WarpgroupTile):
    """See ``WarpgroupTile``; its columns are the sequences of a group.

    units: units of a block.  slots: chunks of the ring of states.  copied: chunks that are copied at a time.
    """

    units: int
    slots: int
    copied: int = 1

    kernel = "rnn_persistent_forward"
    kept_registers = 40
    cluster = 1

    @property
    def sequences(self) -> int:
        return self.columns

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, with its barriers."""
        return self.chunk_bytes + 2 * BARRIER_BYTES

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a group of blocks in the workspace: two steps of its states, and its arrivals."""
        return (2 * self.chunks * self.chunk_bytes, MOST_CHUNKS * 4)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``rnn_persistent_forward.cu``."""
        chunks = self.warpgroups * (ceil_div(self.chunks, self.warpgroups) - self.register_chunks)
        column_bytes = LINE_BYTES + _LENGTH_BYTES
        return chunks * ROWS * LINE_BYTES + self.slots * self.slot_bytes + self.columns * column_bytes

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        elements = self.units * self.columns // (self.warpgroups * 4 * WARP_SIZE)
        own = self.register_chunks * _CHUNK_REGISTERS + self.columns // 2 + elements * _ELEMENT_REGISTERS
        return own + _OTHER_REGISTERS

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        product_s = self.chunks * (_CHUNK_S + self.columns * _CHUNK_COLUMN_S)
        if self.slots < self.chunks:
            product_s = max(product_s, self.chunks / self.slots * _SLOT_S)
        return _STEP_S + self.columns * _COLUMN_S + product_s

    @property
    def form(self) -> str:
        """The tile as the kernel's name has it."""
        return f"{self.columns}x{self.chunks}c{self.copied}_r{self.register_chunks}s{self.slots}"

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("COLUMNS", self.columns),
            ("CHUNKS", self.chunks),
            ("COPIED", self.copied),
            ("WARPGROUPS", self.warpgroups),
            ("REGISTER_CHUNKS", self.register_chunks),
            ("SLOTS", self.slots),
            *self.register_macros,
        )


def wide_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[PersistentTile]:
    """Tiles that fit a multiprocessor of ``arch``, each with the largest ring; those with the most weights in
    registers first."""
    chunks, units = rnn.hidden_size // CHUNK, ROWS // (1 if rnn.gates == 1 else _GATE_ROWS)
    if chunks < _WARPGROUPS:
        return
    for columns, register_chunks in product(COLUMNS, range(chunks // _WARPGROUPS, -1, -1)):
        bare = PersistentTile(columns, chunks, _WARPGROUPS, register_chunks, units, slots=0)
        tile = _with_ring(bare, arch)
        if tile is not None and tile.registers <= tile.most_registers:
            yield tile


def _with_ring(bare: PersistentTile, arch: ArchSpec) -> PersistentTile | None:
    """``bare`` with all slots that a step has chunks, or as many as there is room for, where these are enough.

    A slot that comes again within a step must be of the same warpgroup then.
    """
    room = (arch.shared_bytes_per_block - bare.shared_bytes) // bare.slot_bytes
    copied = _MOST_COPIED
    while copied > 1 and (copied * bare.chunk_bytes > _COPIED_BYTES or bare.chunks % copied):
        copied //= 2
    unit = max(copied, bare.warpgroups)
    slots = bare.chunks if bare.chunks <= room else room // unit * unit
    return replace(bare, slots=slots, copied=copied) if slots == bare.chunks or slots >= 2 * unit else None
