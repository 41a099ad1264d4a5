"""Tiles of grouped filter gradients: slabs of groups, boxes of output places, and a model of their time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, lcm, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lowdnn.arch.multiprocessor import WARP_SCHEDULERS, WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.conv.grouped.axes import Axis
from lowdnn.engines.conv.grouped.pixel_box import CHUNK_BYTES, Box, Count, is_swizzled, pitch_bytes
from lowdnn.engines.conv.grouped.tiles import (
    PLACE_LIMITS,
    Boxes,
    box_under,
)
from lowdnn.engines.launch import (
    BARRIER_BYTES,
    ceil_div,
    floor_power,
)
from lowdnn.engines.model.clock import slowest
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.model.products import ProductCosts

#: Filters and columns of a task.
BLOCK = 16
#: Bytes of a warp's sums for a step.
_STEP_SUM_BYTES = 2 * 4 * WARP_SIZE * 4
_PLACE_BYTES = 4
_ACCUMULATOR_BYTES = 4
#: Tiles of a block in shared memory.
_STAGES = 2
#: Most tiles of a block if there is room. Halved boxes, which take twice as many copies, were slower with a third tile
#: (26.7 -> 28.5 us).
_MOST_STAGES = 4

#: Pixels that a phase of ldmatrix reads, without bank conflicts if they are contiguous.
_PHASE_PIXELS = 8
#: Lines of 128 bytes of shared memory that a warp's fragments of 16 x 16 values take.
_FRAGMENT_LINES = 4


@dataclass(frozen=True)
class BoxCosts:
    """A multiprocessor's costs of copying boxes, fitted to measured convolutions on an H200."""

    bytes_per_clock: int
    #: Bytes per clock of a block's first tile, which all blocks wait for at once.
    first_bytes_per_clock: int
    #: Clocks of a block's start.
    block_clocks: int
    #: Clocks of each tile in addition to its products.
    turn_clocks: int


#: Boxes of swizzled positions are copied by tensor map; threads copy others.
_MAPPED: Final = BoxCosts(bytes_per_clock=28, first_bytes_per_clock=12, block_clocks=250, turn_clocks=1100)
_COPIED: Final = BoxCosts(bytes_per_clock=13, first_bytes_per_clock=13, block_clocks=5000, turn_clocks=400)
_PRODUCTS: Final = ProductCosts(product_clocks=1.5, read_clocks=0.575, exposed=0.1)
#: Clocks of a lone warp for one instruction's pixels, fitted on an H200.
_ROUND_CLOCKS: Final = 150
#: Bytes of slices per clock of a multiprocessor, to memory and back, fitted on an H200.
_SLICE_BYTES_PER_CLOCK: Final = 20


@dataclass(frozen=True)
class Team:
    """The most warps of a thread block, and what each keeps in registers: ``blocks`` of 16 filters, at most ``steps``.

    resident: thread blocks on a multiprocessor.
    """

    warps: int
    blocks: int
    steps: int
    resident: int


#: Tasks of two blocks read channels half as often; tasks of few steps leave room for more warps.
TEAMS = (Team(8, 1, 9, 2), Team(16, 1, 9, 1), Team(12, 2, 3, 1), Team(8, 2, 9, 1))


@dataclass(frozen=True)
class FilterSlab:
    """Groups of ``inputs`` channels and ``outputs`` filters, cut into tasks of filters x 16 columns x some steps.

    The columns are channels, and each step is a tap; for one group of 8 channels a step takes two taps.

    group_count: groups of the convolution.  taps: taps of a filter.  most_channels: the most channels of a slab, unless
    a pack has more.
    """

    inputs: int
    outputs: int
    group_count: int
    taps: int
    team: Team
    most_channels: int

    @cached_property
    def pack(self) -> int:
        """The fewest groups with whole blocks of columns and of filters."""
        if self.taps_abreast > 1:
            return 1
        return lcm(BLOCK // gcd(BLOCK, self.inputs), BLOCK // gcd(BLOCK, self.outputs))

    @cached_property
    def taps_abreast(self) -> int:
        """Taps of a step."""
        is_half = self.group_count == 1 and self.inputs * 2 == BLOCK and self.outputs % BLOCK == 0
        return 2 if is_half else 1

    @cached_property
    def units(self) -> int:
        """Packs of a slab."""
        whole = ceil_div(self.group_count, self.pack)
        widest = self.pack * max(self.inputs, self.outputs)
        return floor_power(min(whole, max(self.most_channels // widest, 1)))

    @cached_property
    def channels(self) -> int:
        return self.units * self.pack * self.inputs

    @cached_property
    def filters(self) -> int:
        return self.units * self.pack * self.outputs

    @cached_property
    def tasks(self) -> int:
        """Pairs of blocks that share a group, for each set of taps."""
        channels, filters = self.inputs * self.pack, self.outputs * self.pack
        task_filters = self.team.blocks * BLOCK
        pairs = product(range(0, filters, task_filters), range(0, channels, BLOCK))
        return (
            self.units
            * self.tap_sets
            * sum(
                first_filter // self.outputs <= (first_channel + BLOCK - 1) // self.inputs
                and first_channel // self.inputs <= (first_filter + task_filters - 1) // self.outputs
                for first_filter, first_channel in pairs
            )
        )

    @cached_property
    def task_sets(self) -> int:
        return ceil_div(self.tasks, self.team.warps)

    @cached_property
    def task_warps(self) -> int:
        return ceil_div(self.tasks, self.task_sets)

    @cached_property
    def parts(self) -> int:
        """Warps that share a task's pixels."""
        return self.team.warps // self.task_warps

    @cached_property
    def tap_sets(self) -> int:
        return ceil_div(self.taps, self.team.steps * self.taps_abreast)

    @cached_property
    def steps(self) -> int:
        """Steps of a task."""
        return ceil_div(self.taps, self.tap_sets * self.taps_abreast)

    @property
    def set_taps(self) -> int:
        """Taps of a task; taps past the last one are not written."""
        return self.steps * self.taps_abreast

    def round_clocks(self, width: Count) -> Count:
        """Clocks of all warps' products of one instruction's pixels each, in boxes of ``width`` columns."""
        warps, blocks = self.task_warps * self.parts, self.team.blocks
        # A phase of pixels of x from two rows takes two reads; rows of dy are contiguous.
        torn = np.minimum((_PHASE_PIXELS - np.gcd(width, _PHASE_PIXELS)) / width, 1)
        lines = warps * (self.steps * (1 + torn) + blocks) * _FRAGMENT_LINES
        products = ceil_div(warps, WARP_SCHEDULERS) * WARP_SCHEDULERS * self.steps * blocks * 2
        return _PRODUCTS.clocks(products, lines)

    @cached_property
    def count(self) -> int:
        """Slabs of the convolution."""
        return ceil_div(self.group_count, self.units * self.pack)

    @property
    def blocks(self) -> int:
        """Thread blocks that read the same pixels."""
        return self.count * self.task_sets

    @property
    def sum_bytes(self) -> int:
        """Bytes of one slice."""
        return self.group_count * self.outputs * self.taps * self.inputs * _ACCUMULATOR_BYTES

    @property
    def threads(self) -> int:
        return WARP_SIZE * self.task_warps * self.parts

    def splits(self, arch: ArchSpec) -> int:
        """Parts of the sum that fill the device."""
        return max(self.team.resident * arch.sm_count // self.blocks, 1)


@dataclass(frozen=True)
class FilterTile:
    """A box of output places (image, axes) that a block multiplies at a time."""

    slab: FilterSlab
    axes: tuple[Axis, ...]
    extents: tuple[int, ...]
    element_bytes: int

    @cached_property
    def box(self) -> Box:
        """The box of x."""
        return box_under(self.axes, self.extents, self._chunks(self.slab.channels))

    @property
    def response_box(self) -> Box:
        return Box(self.extents, 1, self._chunks(self.slab.filters))

    @cached_property
    def image_pitch(self) -> int:
        return pitch_bytes(self._chunks(self.slab.channels))

    @cached_property
    def response_pitch(self) -> int:
        return pitch_bytes(self._chunks(self.slab.filters))

    @cached_property
    def pixels(self) -> int:
        """Pixels of one instruction."""
        return 2 * CHUNK_BYTES // self.element_bytes

    @cached_property
    def places(self) -> int:
        """Places, rounded up to whole instructions."""
        return ceil_div(prod(self.extents), self.pixels) * self.pixels

    def counts(self, images: int) -> tuple[int, ...]:
        """Tiles (image, axes) of all output places."""
        totals = (images, *(axis.steps for axis in self.axes))
        return tuple(ceil_div(total, extent) for total, extent in zip(totals, self.extents, strict=True))

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory allows as many resident blocks as the registers do."""
        return self.shared_bytes(_STAGES) <= self._shared_budget(arch)

    def shared_bytes(self, stages: int) -> int:
        return int(self._shared_bytes(self.box.places, self.places, stages))

    def stages(self, turns: int, arch: ArchSpec) -> int:
        """Stages of a block that takes ``turns`` tiles: with all of them in flight no warp waits for another."""
        most = _STAGES if self.box.is_halved else min(turns, _MOST_STAGES)
        fitting = (n for n in range(_STAGES + 1, most + 1) if self.shared_bytes(n) <= self._shared_budget(arch))
        return max(fitting, default=_STAGES)

    def splits(self, images: int, arch: ArchSpec) -> int:
        """Parts of the sum that fill the device, as far as there are tiles; all have about equally many."""
        return int(self._even_splits(prod(self.counts(images)), arch))

    def product_clocks(self, images: int, splits: int, arch: ArchSpec) -> float:
        """Estimated time of the products of ``splits`` parts."""
        tiles = prod(self.counts(images))
        return float(self._product_clocks(self.extents[-1], self.box.places, self.places, tiles, splits, arch))

    def clocks(self, boxes: Boxes, arch: ArchSpec) -> NDArray[np.float64]:
        """Estimated clocks of all products and of their sum, by box; infinite for a box that does not fit."""
        slab, places = self.slab, -(-boxes.places // self.pixels) * self.pixels
        splits = self._even_splits(boxes.tiles, arch)
        # The slices are written to memory and read back.
        sums = 2 * splits * slab.sum_bytes / arch.sm_count / _SLICE_BYTES_PER_CLOCK
        inputs = boxes.inputs(self.image_pitch)
        clocks = self._product_clocks(boxes.extents[:, -1], inputs, places, boxes.tiles, splits, arch) + sums
        return np.where(self._shared_bytes(inputs, places) <= self._shared_budget(arch), clocks, np.inf)

    def _shared_bytes(self, inputs: Count, places: Count, stages: int = _STAGES) -> Count:
        """Bytes of shared memory for a box of ``inputs`` positions, and for ``places`` in whole instructions."""
        slab, stage_bytes = self.slab, self._stage_bytes(inputs, places)
        sums = slab.task_warps * slab.parts * slab.steps * slab.team.blocks * _STEP_SUM_BYTES if slab.parts > 1 else 0
        return np.maximum(stages * (stage_bytes + BARRIER_BYTES) + places * _PLACE_BYTES, sums)

    def _shared_budget(self, arch: ArchSpec) -> int:
        """Most bytes of a block for which shared memory holds as many blocks as the registers do."""
        return shared_room(arch, self.slab.team.resident)

    def _stage_bytes(self, inputs: Count, places: Count) -> Count:
        return inputs * self.image_pitch + places * self.response_pitch

    def _chunks(self, channels: int) -> int:
        return channels * self.element_bytes // CHUNK_BYTES

    def _even_splits(self, tiles: Count, arch: ArchSpec) -> Count:
        return -(-tiles // -(-tiles // np.minimum(self.slab.splits(arch), tiles)))

    def _product_clocks(
        self, width: Count, inputs: Count, places: Count, tiles: Count, splits: Count, arch: ArchSpec
    ) -> Count:
        slab = self.slab
        # Rounds of a warp, with one instruction's pixels each.
        rounds = -(-(places // self.pixels) // slab.parts)
        compute = rounds * slab.round_clocks(width)
        is_mapped = arch.has_tma and is_swizzled(self.image_pitch) and is_swizzled(self.response_pitch)
        costs = _MAPPED if is_mapped else _COPIED
        copied = self._box_bytes(inputs, places) if is_mapped else self._stage_bytes(inputs, places)
        blocks = -(-splits * slab.blocks // arch.sm_count)
        # The next tile is copied while this one is multiplied.
        busy = slowest(compute + costs.turn_clocks, copied / costs.bytes_per_clock)
        turn = slowest(blocks * busy, rounds * _ROUND_CLOCKS)
        return costs.block_clocks + copied / costs.first_bytes_per_clock + -(-tiles // splits) * turn

    def _box_bytes(self, inputs: Count, places: Count) -> Count:
        """Bytes of a box without the padding of positions."""
        return (inputs * self.slab.channels + places * self.slab.filters) * self.element_bytes


@lru_cache(maxsize=1024)
def fastest_filter_tile(
    slabs: tuple[FilterSlab, ...],
    axes: tuple[Axis, ...],
    images: int,
    element_bytes: int,
    arch: ArchSpec,
    limit: int = PLACE_LIMITS[-1],
) -> FilterTile:
    """The fastest tile of at most ``limit`` places by the cost model; at least one of ``slabs`` fits."""
    boxes = Boxes.of(axes, images, limit, _PHASE_PIXELS)
    ones = [FilterTile(slab, axes, (1, *(1 for _ in axes)), element_bytes) for slab in slabs]
    kind, extents = boxes.least(np.stack([one.clocks(boxes, arch) for one in ones]))
    return FilterTile(slabs[kind], axes, extents, element_bytes)
