"""Blocks of the grouped kernels: the groups that share one block-diagonal product, and a block's box of outputs.

Host side of the constants of ``grouped_stages.cuh``, with a cost model that chooses the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, lcm, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.grouped.axes import Axis
from lowdnn.engines.conv.grouped.pixel_box import CHUNK_BYTES, LINE_BYTES, Box, Count, is_swizzled, pitch_bytes, places
from lowdnn.engines.launch import BARRIER_BYTES, ceil_div, floor_power
from lowdnn.engines.model.clock import slowest
from lowdnn.engines.model.occupancy import blocks_by_shared, resident_blocks
from lowdnn.engines.model.products import ProductCosts
from lowdnn.engines.model.search import place_of_least

#: Threads of a block.
_THREADS = 256
#: Threads of a block that is alone on a multiprocessor.
_LONE_THREADS = 512
_BLOCKS_PER_SM = 2
#: Values of TILE_M: the most output places of a block.
PLACE_LIMITS = (64, 128, 256, 512)
#: Output channels of one mma instruction.
BLOCK_N = 8

#: Warps that compute together by wgmma.
_TEAM_WARPS = 4
#: Fewest blocks of outputs for which wgmma is faster on an H200.
_MIN_TEAM_BLOCKS = 6
#: Warps of a block.
_WARPS = _THREADS // WARP_SIZE
#: Warps of a block that is alone on a multiprocessor.
_LONE_WARPS = _LONE_THREADS // WARP_SIZE
#: Chunks of a slab that make whole 128-byte lines.
_SLAB_CHUNKS = 8
_FILTER_CHUNK_BYTES = 128
_PLACE_BYTES = 8
_OFFSET_BYTES = 4
_STAGES = 2
#: Most registers of a thread for resident filters.
_MAX_FILTER_REGISTERS = 144
#: Most registers for resident filters with which two blocks share a multiprocessor.
_MAX_SHARED_FILTER_REGISTERS = 48
#: Most registers of a thread for its sums.
_MAX_SUM_REGISTERS = 64
#: Most registers of a thread for sums and resident filters, by blocks on a multiprocessor.
_MAX_RESIDENT_REGISTERS = {1: 176, 2: 100}


Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Costs:
    """Costs of the kernels' work on one multiprocessor, fitted to measured tiles on an H200."""

    #: Costs of products of 16 pixels and one block of outputs, by mma.sync.
    products: ProductCosts
    #: Costs of such products by wgmma.
    warpgroup_products: ProductCosts
    #: Clocks of a block's start.
    block_clocks: int
    #: Clocks of each tile of a persistent block.
    turn_clocks: int
    #: Clocks of a warp's set of pixels.
    set_clocks: int
    #: Factor of the time of a small block that is alone on a multiprocessor, whose few warps hide less latency.
    few_warps_slowness: float


@dataclass(frozen=True)
class BoxCosts:
    """Costs of copying boxes of inputs, by one of the two ways: threads or tensor maps."""

    bytes_per_clock: int
    #: Clocks from the start of a tile's copies to its products, for a lone block.
    copy_latency: int
    #: Clocks of the epilogue of one block of 16 x 8 sums.
    epilogue_clocks: int


_COSTS: Final = Costs(
    products=ProductCosts(product_clocks=1.7, read_clocks=1.125),
    warpgroup_products=ProductCosts(product_clocks=1.1, read_clocks=1.125),
    block_clocks=3000,
    turn_clocks=400,
    set_clocks=12,
    few_warps_slowness=1.35,
)
#: Lines of 128 bytes of shared memory that a warp's fragments of 16 x 16 values take.
_FRAGMENT_LINES: Final = 4
#: Lines of 128 bytes of the filters that wgmma seems to read for a product, fitted on an H200.
_WARPGROUP_FILTER_LINES: Final = 0.53
#: Boxes of swizzled positions are copied by tensor map; threads copy others.
_MAPPED: Final = BoxCosts(bytes_per_clock=20, copy_latency=2500, epilogue_clocks=16)
_COPIED: Final = BoxCosts(bytes_per_clock=16, copy_latency=1500, epilogue_clocks=12)


@dataclass(frozen=True)
class Pack:
    """The fewest groups with whole chunks of input channels and whole blocks of output channels.

    inputs, outputs: channels of one group.  chunk: input channels in 16 bytes.  group_count: groups of the convolution.
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
        """Packs of a unit: enough for an even number of output blocks, as far as there are packs."""
        return 1 if self.group_count <= self.groups else 1 + self.output_blocks % 2

    @cached_property
    def unit_blocks(self) -> int:
        """Output blocks of a unit; the last one of a single pack may only pad them to an even number."""
        return ceil_div(self.in_unit * self.output_blocks, 2) * 2

    @cached_property
    def units(self) -> int:
        """Units of a slab: a power of two, about 128 bytes of input channels."""
        whole = ceil_div(self.group_count, self.groups * self.in_unit)
        fitting = max(_SLAB_CHUNKS // (self.in_unit * self.input_chunks), 1)
        return floor_power(min(whole, fitting, _WARPS))


@dataclass(frozen=True)
class Slab:
    """A block's work at every place: ``units`` units of ``pack``, with ``taps`` taps in ``classes`` residues.

    has_wgmma: whether the device has wgmma.
    """

    pack: Pack
    units: int
    taps: int
    classes: int
    has_wgmma: bool = False

    @cached_property
    def depth(self) -> int:
        """Chunks of k."""
        return self.taps * self.pack.input_chunks

    @cached_property
    def groups(self) -> int:
        return self.units * self.pack.in_unit * self.pack.groups

    @property
    def chunks(self) -> int:
        """Chunks of a position of the box."""
        return self.units * self.pack.in_unit * self.pack.input_chunks

    @cached_property
    def pitch_bytes(self) -> int:
        """Bytes from position to position."""
        return pitch_bytes(self.chunks)

    @cached_property
    def box_costs(self) -> BoxCosts:
        return _MAPPED if is_swizzled(self.pitch_bytes) else _COPIED

    @cached_property
    def filter_bytes(self) -> int:
        """Bytes for chunks in the order of the product, or for whole filters with gaps of a chunk."""
        chunks = self.units * self.pack.unit_blocks * self.depth * _FILTER_CHUNK_BYTES
        gaps = self.groups * max(self.pack.inputs, self.pack.outputs) * CHUNK_BYTES
        return chunks + (ceil_div(gaps, LINE_BYTES) * LINE_BYTES if self.keeps_filters else 0)

    @cached_property
    def keeps_filters(self) -> bool:
        """Whether a warp keeps the filters of its unit in registers, from tile to tile."""
        return self.classes == 1 and self._filter_registers <= _MAX_FILTER_REGISTERS

    @cached_property
    def by_warpgroups(self) -> bool:
        """Whether wgmma multiplies, with filters in shared memory: 16-bit filters in steps of one tap, without zeros.

        Few output channels are excluded: wgmma reads the pixels of a step as often, for fewer products.
        """
        pack = self.pack
        is_wide = pack.output_blocks >= _MIN_TEAM_BLOCKS
        is_whole = pack.groups == pack.in_unit == 1 and pack.input_chunks % 2 == pack.output_blocks % 2 == 0
        has_teams = self.units * _TEAM_WARPS <= _WARPS
        is_fit = is_whole and is_wide and has_teams
        return self.has_wgmma and pack.chunk * 2 == CHUNK_BYTES and is_fit and not self.keeps_filters

    @property
    def team_warps(self) -> int:
        """Warps that compute together."""
        return _TEAM_WARPS if self.by_warpgroups else 1

    @cached_property
    def blocks_per_sm(self) -> int:
        """Blocks of the smaller number of threads for which a multiprocessor has registers."""
        is_lone = self.keeps_filters and self._filter_registers > _MAX_SHARED_FILTER_REGISTERS
        return 1 if is_lone else _BLOCKS_PER_SM

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Choices of the threads of a block."""
        return (_THREADS, _LONE_THREADS) if self.blocks_per_sm > 1 else (_THREADS,)

    def min_blocks(self, threads: int) -> int:
        """Blocks of ``threads`` threads on a multiprocessor."""
        return max(self.blocks_per_sm * _THREADS // threads, 1)

    @cached_property
    def _filter_registers(self) -> int:
        """Registers of a thread: one for each chunk of k and output block of the unit."""
        return self.depth * self.pack.unit_blocks

    @property
    def blocks_m(self) -> tuple[int, ...]:
        """Numbers of blocks of 16 pixels that a warp can compute at a time."""
        if self.by_warpgroups:
            return (1,)
        return tuple(count for count in (1, 2, 4) if self._fits_registers(4 * count * self.pack.unit_blocks))

    def sets(self, places: Count, blocks_m: Count) -> Count:
        """Sets of ``blocks_m`` blocks of 16 pixels, for all warps that compute together."""
        return -(-places // (16 * blocks_m * self.team_warps)) * self.team_warps

    def _fits_registers(self, sums: int) -> bool:
        if self.keeps_filters and sums + self._filter_registers > _MAX_RESIDENT_REGISTERS[self.blocks_per_sm]:
            return False
        return sums <= _MAX_SUM_REGISTERS

    def shared_bytes(self, inputs: Count, class_places: Count, stages: Count) -> Count:
        """Bytes of a block's shared memory: ``stages`` boxes of ``inputs`` positions, and places of each residue."""
        barriers = (_STAGES + 1) * BARRIER_BYTES
        offsets = ceil_div(barriers + self.depth * _OFFSET_BYTES, LINE_BYTES) * LINE_BYTES
        places = self.classes * class_places * _PLACE_BYTES
        return self.filter_bytes + offsets + stages * (inputs * self.pitch_bytes + places)

    def memory_clocks(self, inputs: Count, places: Count) -> Count:
        """Clocks for a tile's bytes: a box of ``inputs`` positions, and the outputs of ``places`` of each residue."""
        stored = places * self.classes * self.groups * self.pack.outputs * (CHUNK_BYTES // self.pack.chunk)
        copied = self.chunks * CHUNK_BYTES if is_swizzled(self.pitch_bytes) else self.pitch_bytes
        return (inputs * copied + stored) / self.box_costs.bytes_per_clock

    def set_clocks(self, blocks_m: int) -> float:
        """Clocks of one warp's instructions and fragments for ``blocks_m`` blocks of 16 pixels of a unit."""
        pack = self.pack
        products = blocks_m * pack.unit_blocks
        if self.by_warpgroups:
            lines = blocks_m * _FRAGMENT_LINES + products * _WARPGROUP_FILTER_LINES
            step = _COSTS.warpgroup_products.clocks(products, lines)
        else:
            fragments = pack.in_unit * blocks_m + (0 if self.keeps_filters else pack.unit_blocks / 2)
            step = _COSTS.products.clocks(products, fragments * _FRAGMENT_LINES)
        return self.depth / 2 / self.classes * step + products * self.box_costs.epilogue_clocks + _COSTS.set_clocks

    def compute_clocks(self, sets: Count, set_clocks: Count, resident: Count) -> Count:
        """Clocks of a tile with ``sets`` sets of each residue, by the slowest warps of ``resident`` blocks."""
        few, lone = self._turns(sets, _WARPS), self._turns(sets, _LONE_WARPS)
        if self.blocks_per_sm == 1:
            return few * set_clocks
        return np.where(resident > 1, few, np.minimum(few * _COSTS.few_warps_slowness, lone)) * set_clocks

    def is_for_all_warps(self, sets: int) -> bool:
        """Whether a block that is alone on a multiprocessor is faster with the larger number of threads, though some
        warps may have no sets."""
        is_faster = self._turns(sets, _LONE_WARPS) <= self._turns(sets, _WARPS) * _COSTS.few_warps_slowness
        return self.blocks_per_sm > 1 and bool(is_faster)

    def _turns(self, sets: Count, warps: int) -> Count:
        """Sets that ``warps`` warps of a multiprocessor could compute in the time of a tile with ``sets`` sets of each
        residue, in which all wait for the slowest warp.
        """
        each = warps // self.units
        return -(-self.classes * sets // each) * each * self.units


@dataclass(frozen=True)
class Tile:
    """A box of places (image, axes) for each residue; a warp computes ``blocks_m`` blocks of 16 of them at a time.

    stages: tiles in shared memory: one, or two for a block that walks over many.
    """

    slab: Slab
    axes: tuple[Axis, ...]
    extents: tuple[int, ...]
    blocks_m: int
    stages: int

    @cached_property
    def box(self) -> Box:
        """The box of inputs."""
        return box_under(self.axes, self.extents, self.slab.chunks)

    @cached_property
    def class_places(self) -> int:
        """Places of one residue in whole sets."""
        return int(self._sets * 16 * self.blocks_m)

    @cached_property
    def shared_bytes(self) -> int:
        return int(self.slab.shared_bytes(self.box.places, self.class_places, self.stages))

    def counts(self, images: int) -> tuple[int, ...]:
        """Tiles (image, axes) of the whole output."""
        totals = (images, *(axis.steps for axis in self.axes))
        return tuple(ceil_div(total, extent) for total, extent in zip(totals, self.extents, strict=True))

    def lanes(self, images: int, slabs: int, arch: ArchSpec) -> int:
        """Blocks of a slab."""
        return int(_lanes(prod(self.counts(images)), self.stages, self._resident(arch), slabs, arch))

    def threads(self, arch: ArchSpec) -> int:
        """Threads of a block."""
        is_lone = self._resident(arch) <= 1 and self.slab.is_for_all_warps(self._sets)
        return _LONE_THREADS if is_lone else _THREADS

    @property
    def places(self) -> int:
        """Output places of a tile, over all residues."""
        return self.slab.classes * prod(self.extents)

    def compute_clocks(self, images: int, slabs: int, arch: ArchSpec) -> float:
        """Clocks of all tiles, without their copies, on each multiprocessor."""
        sets, set_clocks = self._sets, self.slab.set_clocks(self.blocks_m)
        tiles = prod(self.counts(images)) * slabs
        # A multiprocessor's second block works while warps of the first one wait for the warp with the most taps.
        is_lone = self.lanes(images, slabs, arch) * slabs <= arch.sm_count
        share = self._deepest_share(sets, self.threads(arch) // WARP_SIZE // self.slab.units) if is_lone else 1.0
        clocks = float(self.slab.compute_clocks(sets, set_clocks, self._resident(arch)))
        return clocks * share * tiles / arch.sm_count

    @property
    def _sets(self) -> int:
        """Sets of each residue."""
        return int(self.slab.sets(prod(self.extents), self.blocks_m))

    def _resident(self, arch: ArchSpec) -> int:
        return int(_resident(self.slab, self.shared_bytes, arch))

    def _deepest_share(self, sets: int, warps: int) -> float:
        """Taps of the warp with the most, relative to the same number of sets with mean taps.

        sets: sets of each residue.  warps: warps of a unit.
        """
        depths = [prod(map(len, taps)) for taps in product(*(axis.residues for axis in self.axes)) for _ in range(sets)]
        most = max(sum(depths[warp::warps]) for warp in range(warps))
        return most * len(depths) / (ceil_div(len(depths), warps) * sum(depths))


@dataclass(frozen=True)
class Boxes:
    """Boxes of output places (image, axes) that tiles may have, one in each element of the arrays.

    extents: by box and axis.  places: places of a box.  rows, columns: extents of its box of inputs, which is read at
    every ``step``-th column.  tiles: tiles of the whole output.
    """

    extents: Counts
    places: Counts
    rows: NDArray[np.float64]
    columns: Count
    step: int
    tiles: Counts

    @classmethod
    def of(cls, axes: tuple[Axis, ...], images: int, most_places: int, run: int = 1) -> Boxes:
        """Boxes of at most ``most_places`` outputs of each residue; several images if all outputs of one fit.

        run: widths are also tried rounded up to multiples of it.
        """
        totals = (images, *(axis.steps for axis in axes))
        *heights, widths = map(_extents, totals[1:])
        widths = sorted({*widths, *(ceil_div(width, run) * run for width in widths)})
        grid = np.stack(np.meshgrid([1], *heights, widths, indexing="ij"), axis=-1).reshape(-1, len(totals))
        boxes = [grid[grid.prod(axis=1) <= max(most_places, 1)]]
        for width in sorted({totals[-1], widths[-1]}):
            whole = (*totals[1:-1], width)
            most_images = min(most_places // prod(whole), images)
            counts = {most_images, *(1 << bit for bit in range(1, most_images.bit_length()))}
            boxes.extend(np.array([(count, *whole)]) for count in sorted(counts) if count > 1)
        extents: Count = np.concatenate(boxes)
        rows = extents[:, 0].astype(np.float64)
        for place, axis in enumerate(axes[:-1], 1):
            rows *= axis.box(extents[:, place])
        columns = axes[-1].box(extents[:, -1])
        tiles = (-(-np.array(totals) // extents)).prod(axis=1)
        return cls(extents, extents.prod(axis=1), rows, columns, axes[-1].input_step, tiles)

    def inputs(self, pitch_bytes: int) -> Count:
        """Places of the inputs in shared memory."""
        return places(self.rows, self.columns, self.step, pitch_bytes)

    def least(self, clocks: NDArray[np.float64]) -> tuple[int, tuple[int, ...]]:
        """Kind and extents of the fastest tile; ``clocks`` has a row over all boxes for each kind."""
        box, kind = place_of_least(clocks.T)
        return kind, tuple(self.extents[box].tolist())


def box_under(axes: tuple[Axis, ...], extents: tuple[int, ...], chunks: int) -> Box:
    """The box of inputs for ``extents`` outputs (image, axes)."""
    under = (axis.box(extent) for axis, extent in zip(axes, extents[1:], strict=True))
    return Box((extents[0], *under), axes[-1].input_step, chunks)


def fits(slab: Slab, axes: tuple[Axis, ...], arch: ArchSpec) -> bool:
    """Whether shared memory holds the smallest tile."""
    smallest = (Tile(slab, axes, (1, *(1 for _ in axes)), blocks_m, 1) for blocks_m in slab.blocks_m)
    return any(tile.shared_bytes <= arch.shared_bytes_per_block for tile in smallest)


@lru_cache(maxsize=1024)
def fastest_tile(
    slab: Slab, axes: tuple[Axis, ...], images: int, slabs: int, arch: ArchSpec, limit: int = PLACE_LIMITS[-1]
) -> Tile:
    """The fastest tile of at most ``limit`` places by the cost model, for a slab that fits."""
    boxes = Boxes.of(axes, images, limit // slab.classes)
    kinds = [(blocks_m, stages) for blocks_m in slab.blocks_m for stages in (1, _STAGES)]
    kind, extents = boxes.least(_clocks(slab, kinds, boxes, slabs, arch))
    return Tile(slab, axes, extents, *kinds[kind])


def _clocks(
    slab: Slab, kinds: Sequence[tuple[int, int]], boxes: Boxes, slabs: int, arch: ArchSpec
) -> NDArray[np.float64]:
    """Estimated clocks of the whole convolution by (blocks_m, stages) and box; infinite if a tile does not fit."""
    blocks_m, stages = np.array(kinds).T[..., np.newaxis]
    sets = slab.sets(boxes.places, blocks_m)
    inputs = boxes.inputs(slab.pitch_bytes)
    shared_bytes = slab.shared_bytes(inputs, sets * 16 * blocks_m, stages)
    resident = np.maximum(_resident(slab, shared_bytes, arch), 1)
    lanes = _lanes(boxes.tiles, stages, resident, slabs, arch)
    blocks = -(-lanes * slabs // arch.sm_count)
    set_clocks = np.array([[slab.set_clocks(blocks_m)] for blocks_m, _ in kinds])
    compute = slab.compute_clocks(sets, set_clocks, resident)
    memory = slab.memory_clocks(inputs, boxes.places)
    first = slab.filter_bytes / slab.box_costs.bytes_per_clock + memory + compute
    in_waves = -(-blocks // resident) * (_COSTS.block_clocks + np.minimum(blocks, resident) * first)
    turns = -(-boxes.tiles // lanes)
    # A tile is copied while the one before it is multiplied: a lone block waits for whichever takes longer.
    busy = blocks * (slowest(compute, memory) + _COSTS.turn_clocks)
    turn = slowest(busy, slab.box_costs.copy_latency + memory)
    in_turns = _COSTS.block_clocks + blocks * first + (turns - 1) * turn
    clocks = np.where(stages == 1, in_waves, in_turns)
    return np.where(shared_bytes <= arch.shared_bytes_per_block, clocks, np.inf)


def _resident(slab: Slab, shared_bytes: Count, arch: ArchSpec) -> Count:
    """Blocks that share a multiprocessor."""
    return np.minimum(blocks_by_shared(arch, shared_bytes), min(resident_blocks(arch, _THREADS), slab.blocks_per_sm))


def _lanes(tiles: Count, stages: Count, resident: Count, slabs: int, arch: ArchSpec) -> Count:
    """Blocks of a slab: they have equal numbers of tiles, except the last ones."""
    most = np.maximum(resident * arch.sm_count // slabs, 1)
    return np.where(np.equal(stages, 1), tiles, -(-tiles // -(-tiles // most)))


def place_limits(classes: int) -> tuple[int, ...]:
    """Values of TILE_M for ``classes`` residues."""
    return tuple(limit for limit in PLACE_LIMITS if classes <= limit)


def _extents(steps: int) -> list[int]:
    """Even parts of an axis, and powers of two."""
    parts = {ceil_div(steps, count) for count in (1, 2, 3, 4, 6, 8, 12, 16)}
    powers = {1 << bit for bit in range(7) if 1 << bit < steps}
    return sorted(parts | powers)
