"""Tiles of the persistent recurrence on warpgroups, and what a multiprocessor must hold for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.rnn.warpgroup_tile import BARRIER_BYTES, CHUNK, LINE_BYTES, MOST_CHUNKS, WarpgroupTile
from lowdnn.ops.rnn import Rnn

#: Sequences of a group of blocks.
COLUMNS = (8, 16, 32, 64, 128)
WARPGROUPS = (1, 2)
#: Units of a block.
UNITS = 16
#: Rows of weights of a block: four for each unit, whatever its cell has.
ROWS = 64

#: Registers of a thread that a chunk of weights takes.
_CHUNK_REGISTERS = 16
#: Registers of a thread for each element, which lie in the others' place while those are not needed (an estimate).
_ELEMENT_REGISTERS = 4
#: Registers of a thread that neither weights nor sums take, by warpgroups (so that no assembled kernel spills).
_OTHER_REGISTERS = {1: 140, 2: 118}
#: Seconds of a step without what a block reads of the states (measured on an H200 with H of 512 and 1024 and 32 and 64
#: columns, as those below).
_STEP_S = 2.1e-6
#: Bytes of the states that a block reads in a second.
_STATE_BYTES_PER_S = 45e9


@dataclass(frozen=True)
class PersistentTile(WarpgroupTile):
    """See ``WarpgroupTile``; its columns are the sequences of a group."""

    kernel = "rnn_persistent_forward"
    kept_registers = 40
    units = UNITS
    cluster = 1

    @property
    def sequences(self) -> int:
        return self.columns

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a group of blocks in the workspace: two steps of its states, and its arrivals."""
        return (2 * self.chunks * self.chunk_bytes, MOST_CHUNKS * 4)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``rnn_persistent_forward.cu``."""
        weights = (self.chunks - self.warpgroups * self.register_chunks) * ROWS * LINE_BYTES
        sums = ROWS * self.columns * 4 if self.warpgroups > 1 else 0
        states, barriers = self.columns * UNITS * 2, (self.chunks + 1) * BARRIER_BYTES
        return weights + self.chunks * self.chunk_bytes + sums + states + barriers

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        elements = self.columns // 8 // self.warpgroups
        own = self.register_chunks * _CHUNK_REGISTERS + self.columns // 2 + elements * _ELEMENT_REGISTERS
        return own + _OTHER_REGISTERS[self.warpgroups]

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return _STEP_S + self.chunks * self.chunk_bytes / _STATE_BYTES_PER_S

    @property
    def form(self) -> str:
        """The tile as the kernel's name has it."""
        return f"{self.columns}x{self.chunks}_w{self.warpgroups}r{self.register_chunks}"

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("COLUMNS", self.columns),
            ("CHUNKS", self.chunks),
            ("WARPGROUPS", self.warpgroups),
            ("REGISTER_CHUNKS", self.register_chunks),
            *self.register_macros,
        )


def wide_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[PersistentTile]:
    """Tiles that fit a multiprocessor of ``arch``, those with weights in registers first."""
    chunks = rnn.hidden_size // CHUNK
    for columns, warpgroups in product(COLUMNS, reversed(WARPGROUPS)):
        if chunks % warpgroups or columns % (8 * warpgroups):
            continue
        for register_chunks in range(chunks // warpgroups, -1, -1):
            tile = PersistentTile(columns, chunks, warpgroups, register_chunks)
            if tile.shared_bytes <= arch.shared_bytes_per_block and tile.registers <= tile.most_registers:
                yield tile
