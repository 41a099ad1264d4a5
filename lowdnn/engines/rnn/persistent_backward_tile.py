"""Tiles of the persistent recurrence backward, what a multiprocessor must hold for each, and how long a step takes.

A block multiplies 64 units a warpgroup with a part of k, and the blocks of a cluster add up their sums: so each block
reads its part of the gate gradients alone.
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

#: Sequences of a part.
COLUMNS = (8, 16, 32, 64)
#: Parts of the sequences of a group of blocks; a step takes them in turn.
PARTS = (1, 2, 4)
#: Warpgroups of a block that multiply.
WARPGROUPS = (1, 2)
#: Blocks of a cluster, which share k out. One block alone would be no cluster, whose instructions the kernel has.
CLUSTERS = (2, 4, 8)
#: Units that a warpgroup multiplies.
WARPGROUP_UNITS = 64
#: Units of each warp of a warpgroup.
WARP_UNITS = 16

#: Chunks of the ring at least, where a part has as many.
_FEWEST_SLOTS = 4
#: Registers of a thread that a chunk of weights takes.
_CHUNK_REGISTERS = 18
#: Registers of a thread that a pair of units takes with its values (an estimate).
_PAIR_REGISTERS = 18
#: Registers of a thread that neither weights nor sums take (so that no assembled kernel spills).
_OTHER_REGISTERS = 92
#: Seconds from the gradients of a block to their first chunk in another one (measured on an H200, as all of these:
#: the times of 20 tiles have a root mean square error of 5 %).
_EXCHANGE_S = 1.66e-6
#: Seconds of a product with a chunk of k, however many columns it has.
_CHUNK_S = 0.059e-6
#: Further seconds of a product with a chunk of k for each column of each warpgroup.
_COLUMN_S = 1.83e-9
#: Seconds from the request of a chunk until its slot is free for another one.
_SLOT_S = 0.85e-6
#: Seconds in which the blocks of a cluster add up their products, however many bytes they exchange.
_SUM_S = 0.16e-6
#: Bytes of the other blocks' products that a block receives in a second.
_SUM_BYTES_PER_S = 28.5e9
#: Seconds in which a thread computes the cells of a pair of units, however many gates these have.
_PAIR_S = 0.035e-6
#: Further seconds of a pair of units for each of the values that are saved for a unit.
_PAIR_BLOCK_S = 0.072e-6
#: Seconds in which a thread requests what the next step reads for a pair of units.
_FETCH_S = 0.1e-6
#: How much longer turns take while other parts' gradients are under way.
_CROWDED = 1.19
#: Steps whose gradients the kernel keeps.
_HISTORY = 3


@dataclass(frozen=True)
class BackwardTile(WarpgroupTile):
    """See ``WarpgroupTile``; its columns are the sequences of a part.

    parts: parts of a group of blocks.  blocks: values that are saved for each unit in a step, such as its gates.
    cluster: blocks of a cluster.  slots: chunks of the ring of gradients.
    """

    parts: int
    blocks: int
    cluster: int
    slots: int

    kernel = "rnn_persistent_backward"
    kept_registers = 72

    @property
    def sequences(self) -> int:
        return self.columns * self.parts

    @property
    def units(self) -> int:
        """Units of a cluster."""
        return self.warpgroups * WARPGROUP_UNITS

    @property
    def own_units(self) -> int:
        """Units whose cells a block computes."""
        return self.units // self.cluster

    @property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of a group of blocks in the workspace: its gradients, and its arrivals."""
        exchange = _HISTORY * self.cluster * self.chunks * self.chunk_bytes
        return (self.parts * exchange, self.parts * MOST_CHUNKS * 4)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``rnn_persistent_backward.cu``."""
        weights = (self.chunks - self.register_chunks) * self.units * LINE_BYTES
        sums, own = self.units * self.columns * 4, self.blocks * self.columns * self.own_units * 2
        return weights + self.slots * self.slot_bytes + sums + own + 2 * BARRIER_BYTES

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, with its barriers."""
        return self.chunk_bytes + 2 * BARRIER_BYTES

    @property
    def pairs(self) -> int:
        """Pairs of units of a sequence that a thread has of a part."""
        return ceil_div(self.own_units * self.columns, 2 * 4 * WARP_SIZE * self.warpgroups)

    @property
    def registers(self) -> int:
        """Registers that a thread needs, about."""
        own = self.register_chunks * _CHUNK_REGISTERS + self.columns // 2
        return own + self.parts * self.pairs * _PAIR_REGISTERS + _OTHER_REGISTERS

    @property
    def step_s(self) -> float:
        """Seconds of a step: a part's turn and exchange, or the turns of all parts where these take longer."""
        product_s = self.chunks * (_CHUNK_S + self.warpgroups * self.columns * _COLUMN_S)
        if self.slots < self.chunks:
            product_s = max(product_s, self.chunks / self.slots * _SLOT_S)
        received_bytes = self.units * self.columns * 4 * (self.cluster - 1) // self.cluster
        cells_s = self.pairs * (_PAIR_S + self.blocks * _PAIR_BLOCK_S)
        turn_s = product_s + _SUM_S + received_bytes / _SUM_BYTES_PER_S + cells_s
        return max(_EXCHANGE_S + turn_s, self.parts * (_CROWDED * turn_s + self.pairs * _FETCH_S))

    @property
    def form(self) -> str:
        """The tile as the kernel's name has it."""
        own = f"{self.columns}p{self.parts}x{self.chunks}x{self.cluster}"
        return f"{own}_w{self.warpgroups}r{self.register_chunks}s{self.slots}"

    @property
    def macros(self) -> tuple[tuple[str, int | str], ...]:
        return (
            ("COLUMNS", self.columns),
            ("PARTS", self.parts),
            ("CHUNKS", self.chunks),
            ("CLUSTER", self.cluster),
            ("WARPGROUPS", self.warpgroups),
            ("REGISTER_CHUNKS", self.register_chunks),
            ("SLOTS", self.slots),
            *self.register_macros,
        )


def wide_backward_tiles(rnn: Rnn, arch: ArchSpec) -> Iterator[BackwardTile]:
    """Tiles that fit a multiprocessor of ``arch``."""
    for sizes in product(COLUMNS, PARTS, CLUSTERS, WARPGROUPS):
        yield from _tiles_of(rnn, arch, *sizes)


def _tiles_of(
    rnn: Rnn, arch: ArchSpec, columns: int, parts: int, cluster: int, warpgroups: int
) -> Iterator[BackwardTile]:
    """The tile of these sizes with the most weights in registers and the largest ring, where there is one."""
    all_chunks, units = rnn.gates * rnn.hidden_size // CHUNK, warpgroups * WARPGROUP_UNITS
    if rnn.hidden_size % units or all_chunks % cluster or units % (cluster * WARP_UNITS) or units // cluster > CHUNK:
        return
    chunks = all_chunks // cluster
    if chunks > MOST_CHUNKS:
        return
    bare = BackwardTile(
        columns, chunks, warpgroups, register_chunks=0, parts=parts, blocks=rnn.blocks, cluster=cluster, slots=0
    )
    registers = bare.most_registers - bare.registers
    if registers < 0:
        return
    tile = replace(bare, register_chunks=min(registers // _CHUNK_REGISTERS, chunks))
    slots = min((arch.shared_bytes_per_block - tile.shared_bytes) // tile.slot_bytes, chunks * parts)
    if slots >= min(chunks, _FEWEST_SLOTS):
        yield replace(tile, slots=slots)
