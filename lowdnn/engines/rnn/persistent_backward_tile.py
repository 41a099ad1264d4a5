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
from lowdnn.engines.model.occupancy import clustered_sms, consumer_registers, launched_registers
from lowdnn.engines.rnn.persistent_tile import CHUNK, LINE_BYTES, MOST_CHUNKS
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
#: Seconds from the gradients of a block to their first chunk in another one (measured on an H200, as all of these).
_EXCHANGE_S = 1.7e-6
#: Seconds of a product with a chunk of k, however many columns it has.
_CHUNK_S = 0.08e-6
#: Further seconds of a product with a chunk of k for each column of each warpgroup.
_COLUMN_S = 0.55e-9
#: Seconds from the request of a chunk until its slot is free for another one.
_SLOT_S = 0.85e-6
#: Seconds in which the blocks of a cluster add up their products, however many bytes they exchange.
_SUM_S = 0.3e-6
#: Bytes of the other blocks' products that a block receives in a second.
_SUM_BYTES_PER_S = 28e9
#: Seconds in which a thread computes the cells of a pair of units.
_PAIR_S = 0.48e-6
#: Seconds in which a thread requests what the next step reads for a pair of units.
_FETCH_S = 0.25e-6
#: How much longer turns take while other parts' gradients are under way.
_CROWDED = 1.25
_BARRIER_BYTES = 8
#: Registers of a thread of the warpgroup that copies and writes.
KEPT_REGISTERS = 72


@dataclass(frozen=True)
class BackwardTile:
    """columns: sequences of a part.  parts: parts of a group of blocks.  blocks: values that are saved for each unit
    in a step, such as its gates.  chunks: chunks of k that a block multiplies.  cluster: blocks of a cluster.
    warpgroups: the warpgroups that multiply.  register_chunks: chunks of a warpgroup whose weights lie in registers.
    slots: chunks of the ring of gradients."""

    columns: int
    parts: int
    blocks: int
    chunks: int
    cluster: int
    warpgroups: int
    register_chunks: int
    slots: int

    @property
    def threads(self) -> int:
        return (self.warpgroups + 1) * 4 * WARP_SIZE

    @property
    def cluster_units(self) -> int:
        return self.warpgroups * WARPGROUP_UNITS

    @property
    def units(self) -> int:
        """Units whose cells a block computes."""
        return self.cluster_units // self.cluster

    @property
    def taken_registers(self) -> int:
        """Registers of a consumer's thread where the last warpgroup hands some over; 0 where all have enough."""
        if self.warpgroups == 1:
            return 0
        return consumer_registers(launched_registers(self.threads), self.warpgroups, KEPT_REGISTERS)

    @property
    def chunk_bytes(self) -> int:
        return self.columns * LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of the memory map of ``rnn_persistent_backward.cu``."""
        weights = (self.chunks - self.register_chunks) * self.cluster_units * LINE_BYTES
        sums, own = self.cluster_units * self.columns * 4, self.blocks * self.columns * self.units * 2
        return weights + self.slots * self.slot_bytes + sums + own + 2 * _BARRIER_BYTES

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot of the ring, with its barriers."""
        return self.chunk_bytes + 2 * _BARRIER_BYTES

    @property
    def pairs(self) -> int:
        """Pairs of units of a sequence that a thread has of a part."""
        return ceil_div(self.units * self.columns, 2 * 4 * WARP_SIZE * self.warpgroups)

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
        received_bytes = self.cluster_units * self.columns * 4 * (self.cluster - 1) // self.cluster
        turn_s = product_s + _SUM_S + received_bytes / _SUM_BYTES_PER_S + self.pairs * _PAIR_S
        return max(_EXCHANGE_S + turn_s, self.parts * (_CROWDED * turn_s + self.pairs * _FETCH_S))


def groups(rnn: Rnn, tile: BackwardTile) -> int:
    """Groups of blocks in a direction."""
    return ceil_div(rnn.batch_size, tile.columns * tile.parts)


def clusters_of_group(rnn: Rnn, tile: BackwardTile) -> int:
    return rnn.hidden_size // tile.cluster_units


def blocks(rnn: Rnn, tile: BackwardTile) -> int:
    """Blocks of all directions and groups."""
    return rnn.directions * groups(rnn, tile) * clusters_of_group(rnn, tile) * tile.cluster


def backward_tiles(rnn: Rnn, arch: ArchSpec, columns: int = 0, cluster: int = 0) -> Iterator[BackwardTile]:
    """Tiles that fit ``arch``, all blocks at a time, the fastest first.

    columns, cluster: the only ones, or 0.
    """
    found = (
        tile
        for sizes in product(COLUMNS, PARTS, CLUSTERS, WARPGROUPS)
        if columns in (0, sizes[0]) and cluster in (0, sizes[2])
        for tile in _tiles_of(rnn, arch, *sizes)
    )
    return iter(sorted(found, key=lambda tile: tile.step_s))


def _tiles_of(
    rnn: Rnn, arch: ArchSpec, columns: int, parts: int, cluster: int, warpgroups: int
) -> Iterator[BackwardTile]:
    """The tile of these sizes with the most weights in registers and the largest ring, where there is one."""
    all_chunks, units = rnn.gates * rnn.hidden_size // CHUNK, warpgroups * WARPGROUP_UNITS
    if rnn.hidden_size % units or all_chunks % cluster or units % (cluster * WARP_UNITS) or units // cluster > CHUNK:
        return
    chunks = all_chunks // cluster
    bare = BackwardTile(columns, parts, rnn.blocks, chunks, cluster, warpgroups, register_chunks=0, slots=0)
    if chunks > MOST_CHUNKS or blocks(rnn, bare) > clustered_sms(arch.sm_count, cluster) // cluster * cluster:
        return
    registers = (bare.taken_registers or launched_registers(bare.threads)) - bare.registers
    if registers < 0:
        return
    tile = replace(bare, register_chunks=min(registers // _CHUNK_REGISTERS, chunks))
    slots = min((arch.shared_bytes_per_block - tile.shared_bytes) // tile.slot_bytes, chunks * parts)
    if slots >= min(chunks, _FEWEST_SLOTS):
        yield replace(tile, slots=slots)
