"""Blocks of the grouped kernels: which groups share one block-diagonal product, and which box of outputs a block takes.

Host side of the constants of ``conv_grouped_mma.cu``, with a cost model that picks the box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, lcm, prod
from operator import itemgetter
from typing import NamedTuple, TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.grouped.axes import Axis
from lowdnn.engines.conv.grouped.pixel_box import CHUNK_BYTES, pitch_bytes
from lowdnn.engines.launch import ceil_div, floor_power

THREADS = 256
#: Blocks that the registers let share a multiprocessor.
BLOCKS_PER_SM = 2
#: Output places of a block: values of TILE_M.
PLACE_LIMITS = (64, 128, 256, 512)
#: Output channels of one mma instruction.
BLOCK_N = 8

_WARPS = THREADS // 32
#: Chunks of a slab that make whole 128-byte lines.
_SLAB_CHUNKS = 8
_FILTER_CHUNK_BYTES = 128
_PLACE_BYTES = 8
_OFFSET_BYTES = 4
#: Shared memory that the device keeps for itself, for each block.
RESERVED_SHARED_BYTES = 1024
#: Accumulators of a thread: what leaves room for the operands of two blocks on a multiprocessor.
_MAX_BLOCKS = 16

#: Rates and latencies of the cost model, in clocks and bytes of one multiprocessor.
_DEVICE_BYTES_PER_CLOCK = 16
_BLOCK_LATENCY = 3000
_TURN_CLOCKS = 400
_READ_CLOCKS = 4.5  # of 512 bytes of fragments
_PRODUCT_CLOCKS = 1.7
_EPILOGUE_CLOCKS = 12  # of one block of 16 x 8 sums
_SET_CLOCKS = 12

TileT = TypeVar("TileT")


@dataclass(frozen=True)
class Machine:
    """What the choice of a tile depends on."""

    sm_count: int
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    threads_per_sm: int

    @classmethod
    def of(cls, arch: ArchSpec) -> Machine:
        return cls(arch.sm_count, arch.shared_bytes_per_block, arch.shared_bytes_per_sm, arch.threads_per_sm)


@dataclass(frozen=True)
class Pack:
    """The fewest groups with whole chunks of input channels and whole blocks of output channels.

    inputs, outputs: channels of one group.  chunk: input channels in 16 bytes.  group_count: of the convolution.
    """

    inputs: int
    outputs: int
    chunk: int
    group_count: int

    @cached_property
    def groups(self) -> int:
        return lcm(self.chunk // gcd(self.chunk, self.inputs), BLOCK_N // gcd(BLOCK_N, self.outputs))

    @cached_property
    def input_chunks(self) -> int:
        return self.groups * self.inputs // self.chunk

    @cached_property
    def output_blocks(self) -> int:
        return self.groups * self.outputs // BLOCK_N

    @cached_property
    def in_unit(self) -> int:
        """Packs of a unit: an even number of output blocks, as far as there are packs."""
        return 1 if self.group_count <= self.groups else 1 + self.output_blocks % 2

    @cached_property
    def unit_blocks(self) -> int:
        """Output blocks of a unit; the last one of a single pack may be there only to make them even."""
        return ceil_div(self.in_unit * self.output_blocks, 2) * 2

    @cached_property
    def units(self) -> int:
        """Units of a slab: a power of two, about 128 bytes of input channels."""
        whole = ceil_div(self.group_count, self.groups * self.in_unit)
        fitting = max(_SLAB_CHUNKS // (self.in_unit * self.input_chunks), 1)
        return floor_power(min(whole, fitting, _WARPS))


@dataclass(frozen=True)
class Slab:
    """What a block computes at every place: ``units`` units of ``pack``, from ``taps`` taps in ``classes`` residues."""

    pack: Pack
    units: int
    taps: int
    classes: int

    @cached_property
    def depth(self) -> int:
        """Chunks of k."""
        return self.taps * self.pack.input_chunks

    @cached_property
    def groups(self) -> int:
        return self.units * self.pack.in_unit * self.pack.groups

    @cached_property
    def pitch_bytes(self) -> int:
        """Of a position of the box."""
        return pitch_bytes(self.units * self.pack.in_unit * self.pack.input_chunks)

    @cached_property
    def filter_bytes(self) -> int:
        return self.units * self.pack.unit_blocks * self.depth * _FILTER_CHUNK_BYTES

    @property
    def blocks_m(self) -> tuple[int, ...]:
        """Numbers of blocks of 16 pixels that a warp can compute at a time."""
        return tuple(count for count in (1, 2, 4) if count * self.pack.unit_blocks <= _MAX_BLOCKS)

    @cached_property
    def set_clocks(self) -> Mapping[int, float]:
        """By ``blocks_m``, of one warp's instructions and fragments for as many blocks of 16 pixels of a unit."""
        return {blocks_m: self._set_clocks(blocks_m) for blocks_m in self.blocks_m}

    def compute_clocks(self, places: int, blocks_m: int) -> float:
        """Of one tile with ``places`` of each residue, by the slowest warps."""
        warps, sets = _WARPS // self.units, self.classes * ceil_div(places, 16 * blocks_m)
        return ceil_div(sets, warps) * warps * self.units * self.set_clocks[blocks_m]

    def memory_clocks(self, inputs: int, places: int) -> float:
        """Of one tile: a box of ``inputs`` positions, the outputs of ``places`` of each residue."""
        stored = places * self.classes * self.groups * self.pack.outputs * (CHUNK_BYTES // self.pack.chunk)
        return (inputs * self.pitch_bytes + stored) / _DEVICE_BYTES_PER_CLOCK

    def _set_clocks(self, blocks_m: int) -> float:
        pack = self.pack
        reads = pack.in_unit * blocks_m + pack.unit_blocks / 2
        products = blocks_m * pack.unit_blocks
        step = max(reads * _READ_CLOCKS, products * _PRODUCT_CLOCKS)
        return self.depth / 2 / self.classes * step + products * _EPILOGUE_CLOCKS + _SET_CLOCKS


@dataclass(frozen=True)
class Tile:
    """A box of places (image, axes) for each residue; a warp computes ``blocks_m`` blocks of 16 of them at a time.

    stages: tiles in shared memory: one of each block, or two of a block that walks over many.
    """

    slab: Slab
    axes: tuple[Axis, ...]
    extents: tuple[int, ...]
    blocks_m: int
    stages: int

    @cached_property
    def box(self) -> tuple[int, ...]:
        """Input positions (image, axes)."""
        return (self.extents[0], *(axis.box(e) for axis, e in zip(self.axes, self.extents[1:], strict=True)))

    @cached_property
    def box_bytes(self) -> int:
        return prod(self.box) * self.slab.pitch_bytes

    @cached_property
    def class_places(self) -> int:
        """Places of one residue in whole sets."""
        return ceil_div(prod(self.extents), 16 * self.blocks_m) * 16 * self.blocks_m

    @cached_property
    def shared_bytes(self) -> int:
        places = self.slab.classes * self.class_places * _PLACE_BYTES
        offsets = ceil_div(self.slab.depth * _OFFSET_BYTES, CHUNK_BYTES) * CHUNK_BYTES
        return self.slab.filter_bytes + offsets + self.stages * (self.box_bytes + places)

    def counts(self, images: int) -> tuple[int, ...]:
        """Tiles (image, axes) of the whole output."""
        totals = (images, *(axis.steps for axis in self.axes))
        return tuple(ceil_div(total, extent) for total, extent in zip(totals, self.extents, strict=True))

    def lanes(self, images: int, slabs: int, machine: Machine) -> int:
        """Blocks of a slab: they have equal numbers of tiles, but for the last ones."""
        tiles = prod(self.counts(images))
        if self.stages == 1:
            return tiles
        most = max(self._resident(machine) * machine.sm_count // slabs, 1)
        return ceil_div(tiles, ceil_div(tiles, most))

    @property
    def places(self) -> int:
        """Of all residues."""
        return self.slab.classes * prod(self.extents)

    def clocks(self, images: int, slabs: int, machine: Machine) -> float:
        """Estimated time of the whole convolution."""
        resident = self._resident(machine)
        lanes = self.lanes(images, slabs, machine)
        blocks = ceil_div(lanes * slabs, machine.sm_count)
        turns = ceil_div(prod(self.counts(images)), lanes)
        compute = self.slab.compute_clocks(prod(self.extents), self.blocks_m)
        memory = self.slab.memory_clocks(prod(self.box), prod(self.extents))
        filters = self.slab.filter_bytes / _DEVICE_BYTES_PER_CLOCK
        if self.stages == 1:
            together = min(blocks, resident)
            rounds = ceil_div(blocks, resident)
            return rounds * (_BLOCK_LATENCY + together * (filters + memory + compute))
        return _BLOCK_LATENCY + blocks * (
            filters + memory + compute + (turns - 1) * (max(compute, memory) + _TURN_CLOCKS)
        )

    def _resident(self, machine: Machine) -> int:
        """Blocks that share a multiprocessor."""
        fitting = machine.shared_bytes_per_sm // (self.shared_bytes + RESERVED_SHARED_BYTES)
        return min(fitting, machine.threads_per_sm // THREADS, BLOCKS_PER_SM)


class Box(NamedTuple):
    """Output places (image, axes) of a tile, how many inputs lie under them, and how many tiles there are."""

    extents: tuple[int, ...]
    places: int
    inputs: int
    tiles: int


def fits(slab: Slab, axes: tuple[Axis, ...], machine: Machine) -> bool:
    """Whether shared memory holds the smallest tile."""
    smallest = (Tile(slab, axes, (1, *(1 for _ in axes)), blocks_m, 1) for blocks_m in slab.blocks_m)
    return any(tile.shared_bytes <= machine.shared_bytes_per_block for tile in smallest)


@lru_cache(maxsize=1024)
def fastest_tile(
    slab: Slab, axes: tuple[Axis, ...], images: int, slabs: int, machine: Machine, limit: int = PLACE_LIMITS[-1]
) -> Tile:
    """By the cost model the fastest tile of at most ``limit`` places, for a slab that fits."""

    def timed(box: Box) -> list[tuple[float, Tile]]:
        tiles = (Tile(slab, axes, box.extents, blocks_m, stages) for blocks_m in slab.blocks_m for stages in (1, 2))
        fitting = (tile for tile in tiles if tile.shared_bytes <= machine.shared_bytes_per_block)
        return [(tile.clocks(images, slabs, machine), tile) for tile in fitting]

    def least_clocks(box: Box) -> float:
        """Of any tile of the box, were the multiprocessors busy all the time; turns hide in the latency of a block."""
        memory = slab.memory_clocks(box.inputs, box.places)
        compute = min(slab.compute_clocks(box.places, blocks_m) for blocks_m in slab.blocks_m)
        turn = max(compute, memory) + _TURN_CLOCKS
        return box.tiles * slabs * turn / machine.sm_count

    boxes = box_candidates(axes, images, limit // slab.classes)
    return fastest(((least_clocks(box), box) for box in boxes), timed)


def fastest(bounded: Iterable[tuple[float, Box]], timed: Callable[[Box], Sequence[tuple[float, TileT]]]) -> TileT:
    """The fastest of the tiles that ``timed`` makes of boxes.

    bounded: boxes, each with clocks that none of its tiles goes below; slow ones are never timed.
    """
    best: tuple[float, TileT] | None = None
    for least, box in sorted(bounded, key=itemgetter(0)):
        if best is not None and least >= best[0]:
            break
        for timing in timed(box):
            if best is None or timing[0] < best[0]:
                best = timing
    assert best is not None, "a slab that fits has a tile"
    return best[1]


def place_limits(classes: int) -> tuple[int, ...]:
    """Values of TILE_M for so many residues."""
    return tuple(limit for limit in PLACE_LIMITS if classes <= limit)


def box_candidates(axes: tuple[Axis, ...], images: int, most_places: int) -> Iterator[Box]:
    """Boxes of at most ``most_places`` outputs of each residue; several images where all of one fit."""
    cuts = (
        [(extent, axis.box(extent), ceil_div(axis.steps, extent)) for extent in _extents(axis.steps)] for axis in axes
    )
    for cut in product(*cuts):
        extents, inputs, counts = zip(*cut, strict=True)
        places, tiles = prod(extents), prod(counts)
        if places > max(most_places, 1):
            continue
        most_images = min(most_places // places, images) if tiles == 1 else 1
        for count in sorted({max(most_images, 1), *(1 << bit for bit in range(most_images.bit_length()))}):
            yield Box((count, *extents), count * places, count * prod(inputs), tiles * ceil_div(images, count))


def _extents(steps: int) -> list[int]:
    """Even parts of an axis, and powers of two."""
    parts = {ceil_div(steps, count) for count in (1, 2, 3, 4, 6, 8, 12, 16)}
    powers = {1 << bit for bit in range(7) if 1 << bit < steps}
    return sorted(parts | powers)
