"""A grouped convolution backward in the filter, as ``conv_grouped_wgrad_mma.cu`` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, lcm, prod

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.grouped.axes import Axis, forward_axes, output_classes
from lowdnn.engines.conv.grouped.pixel_box import CHUNK_BYTES, Box, BoxedTensor, Count, is_swizzled, pitch_bytes
from lowdnn.engines.conv.grouped.tiles import (
    PLACE_LIMITS,
    Boxes,
    box_under,
)
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, functor_of, output_space
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.launch import (
    BARRIER_BYTES,
    bytes_of,
    ceil_div,
    dependent_target,
    divider,
    floor_power,
    i32,
    i64,
    is_dependent,
    macros,
    moved_bytes,
    target_label,
    uncrowded_bytes,
)
from lowdnn.engines.model.occupancy import shared_room
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.plan import Argument, KernelRef, Launch, Scalar, ScalarType, Struct, TensorMap, Work, WorkspacePointer
from lowdnn.tensor_map import TiledMap

#: Filters and columns of a task.
_BLOCK = 16
_STEP_SUM_BYTES = 2 * 4 * 32 * 4  # of a warp
_PLACE_BYTES = 4
_ACCUMULATOR_BYTES = 4
#: Of wide slabs, and of narrow ones, of which a block sums more pixels: there are fewer slices.
_SLAB_CHANNELS = (64, 32)
#: Tiles of a block in shared memory, and the most where there is room. Those of halved boxes, which come in twice as
#: many copies, took longer with a third one (26.7 -> 28.5 us).
_STAGES, _MOST_STAGES = 2, 4
_MAX_PACK = 128
_MAX_TAPS = 128
_MAX_INDEX = 2**31 - 2**20

#: Rates and latencies of the cost model, in clocks and bytes of one multiprocessor.
_SLICE_BYTES_PER_CLOCK = 20
_ROUND_LATENCY = 150
_READ_CLOCKS = 2.3  # of 512 bytes of fragments
_PRODUCT_CLOCKS = 1.5
#: Of the shorter one of reads and products, the part that the longer one does not hide.
_EXPOSED = 0.1
_SCHEDULERS = 4
#: Pixels that a phase of ldmatrix reads, without bank conflicts where they lie side by side.
_PHASE_PIXELS = 8


@dataclass(frozen=True)
class Rates:
    """Those of the cost model that depend on how boxes come, fitted to measured convolutions on an H200.

    first_bytes_per_clock: of a block's first tile, which all blocks await at once.
    """

    bytes_per_clock: int
    first_bytes_per_clock: int
    block_latency: int
    turn_latency: int


#: Of boxes of swizzled positions, which come by tensor map, and of others, which threads copy.
_MAPPED, _COPIED = Rates(28, 12, 250, 1100), Rates(13, 13, 5000, 400)


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_grouped_wgrad_mma.cu``."""

    TYPE: str
    IN: int
    OUT: int
    PACK: int
    UNITS: int
    TASK_BLOCKS: int
    TASK_WARPS: int
    PARTS: int
    STAGES: int
    MIN_BLOCKS: int
    TAPS: int
    SET_TAPS: int
    HALVED: int
    MAPPED: int
    FINISHES: int
    OUTPUT_RANK: int
    ROW_AXES: int
    VECTOR: int


@dataclass(frozen=True)
class Team:
    """The most warps of a thread block, and what each has in registers: ``blocks`` of 16 filters, at most ``steps``.

    resident: so many thread blocks share a multiprocessor.
    """

    warps: int
    blocks: int
    steps: int
    resident: int


#: Tasks of two blocks read channels half as often; those of few steps leave room for more warps.
_TEAMS = (Team(8, 1, 9, 2), Team(16, 1, 9, 1), Team(12, 2, 3, 1), Team(8, 2, 9, 1))


@dataclass(frozen=True)
class FilterSlab:
    """Groups of ``inputs`` channels and ``outputs`` filters, cut into tasks of filters x 16 columns x some steps.

    The columns are channels, and each step is a tap; of one group of 8 channels a step takes two taps.

    group_count: of the convolution.  taps: of a filter.  most_channels: of a slab, or of a pack that has more.
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
        return lcm(_BLOCK // gcd(_BLOCK, self.inputs), _BLOCK // gcd(_BLOCK, self.outputs))

    @cached_property
    def taps_abreast(self) -> int:
        """Of a step."""
        is_half = self.group_count == 1 and self.inputs * 2 == _BLOCK and self.outputs % _BLOCK == 0
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
        """Pairs of blocks that share a group, with each set of taps."""
        channels, filters = self.inputs * self.pack, self.outputs * self.pack
        task_filters = self.team.blocks * _BLOCK
        pairs = product(range(0, filters, task_filters), range(0, channels, _BLOCK))
        return (
            self.units
            * self.tap_sets
            * sum(
                first_filter // self.outputs <= (first_channel + _BLOCK - 1) // self.inputs
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
        """Of a task."""
        return ceil_div(self.taps, self.tap_sets * self.taps_abreast)

    @property
    def set_taps(self) -> int:
        """Of a task; taps past the last one are not written."""
        return self.steps * self.taps_abreast

    def round_clocks(self, width: Count) -> Count:
        """Of all warps' products of one instruction's pixels each, in boxes of ``width`` columns."""
        warps, blocks = self.task_warps * self.parts, self.team.blocks
        # Of x a phase of pixels from two rows is read in two turns; rows of dy follow each other.
        torn = np.minimum((_PHASE_PIXELS - np.gcd(width, _PHASE_PIXELS)) / width, 1)
        reads = warps * (self.steps * (1 + torn) + blocks) * _READ_CLOCKS
        products = ceil_div(warps, _SCHEDULERS) * _SCHEDULERS * self.steps * blocks * 2 * _PRODUCT_CLOCKS
        return np.maximum(reads, products) + _EXPOSED * np.minimum(reads, products)

    @cached_property
    def count(self) -> int:
        """Slabs of the convolution."""
        return ceil_div(self.group_count, self.units * self.pack)

    @property
    def blocks(self) -> int:
        """Thread blocks that see the same pixels."""
        return self.count * self.task_sets

    @property
    def sum_bytes(self) -> int:
        """Of one slice."""
        return self.group_count * self.outputs * self.taps * self.inputs * _ACCUMULATOR_BYTES

    @property
    def threads(self) -> int:
        return 32 * self.task_warps * self.parts

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
        """Of x."""
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
        """Of one instruction."""
        return 2 * CHUNK_BYTES // self.element_bytes

    @cached_property
    def places(self) -> int:
        """In whole instructions."""
        return ceil_div(prod(self.extents), self.pixels) * self.pixels

    def counts(self, images: int) -> tuple[int, ...]:
        """Tiles (image, axes) of all output places."""
        totals = (images, *(axis.steps for axis in self.axes))
        return tuple(ceil_div(total, extent) for total, extent in zip(totals, self.extents, strict=True))

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory holds as many blocks as the registers do."""
        return self.shared_bytes(_STAGES) <= self._shared_budget(arch)

    def shared_bytes(self, stages: int) -> int:
        return int(self._shared_bytes(self.box.places, self.places, stages))

    def stages(self, turns: int, arch: ArchSpec) -> int:
        """Of a block that takes so many tiles: with all of them under way at once no warp waits for another."""
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
        """Estimated time of all products and of their sum by box; infinite for a box that does not fit."""
        slab, places = self.slab, -(-boxes.places // self.pixels) * self.pixels
        splits = self._even_splits(boxes.tiles, arch)
        # Of the slices' way to memory and back.
        sums = 2 * splits * slab.sum_bytes / arch.sm_count / _SLICE_BYTES_PER_CLOCK
        inputs = boxes.inputs(self.image_pitch)
        clocks = self._product_clocks(boxes.extents[:, -1], inputs, places, boxes.tiles, splits, arch) + sums
        return np.where(self._shared_bytes(inputs, places) <= self._shared_budget(arch), clocks, np.inf)

    def _shared_bytes(self, inputs: Count, places: Count, stages: int = _STAGES) -> Count:
        """Of a box of ``inputs`` positions, for ``places`` in whole instructions."""
        slab, stage_bytes = self.slab, self._stage_bytes(inputs, places)
        sums = slab.task_warps * slab.parts * slab.steps * slab.team.blocks * _STEP_SUM_BYTES if slab.parts > 1 else 0
        return np.maximum(stages * (stage_bytes + BARRIER_BYTES) + places * _PLACE_BYTES, sums)

    def _shared_budget(self, arch: ArchSpec) -> int:
        """Bytes with which shared memory holds as many blocks as the registers do."""
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
        # Of a warp, one instruction's pixels each.
        rounds = -(-(places // self.pixels) // slab.parts)
        compute = rounds * slab.round_clocks(width)
        is_mapped = arch.has_tma and is_swizzled(self.image_pitch) and is_swizzled(self.response_pitch)
        rates = _MAPPED if is_mapped else _COPIED
        copied = self._box_bytes(inputs, places) if is_mapped else self._stage_bytes(inputs, places)
        blocks = -(-splits * slab.blocks // arch.sm_count)
        # The next tile comes while this one is multiplied.
        busy = np.maximum(compute + rates.turn_latency, copied / rates.bytes_per_clock)
        turn = np.maximum(blocks * busy, rounds * _ROUND_LATENCY)
        return rates.block_latency + copied / rates.first_bytes_per_clock + -(-tiles // splits) * turn

    def _box_bytes(self, inputs: Count, places: Count) -> Count:
        """Without what pads a position."""
        return (inputs * self.slab.channels + places * self.slab.filters) * self.element_bytes


@dataclass(frozen=True)
class FilterGeometry:
    """See the module's docstring. axes: from x to dy."""

    operation: ConvolutionOperation
    dag: PointwiseDag
    output: OutputSpace
    axes: tuple[Axis, ...]

    @classmethod
    def of(cls, operation: ConvolutionOperation, dag: PointwiseDag) -> FilterGeometry:
        columns = (*range(2, len(dag.dims)), 1)
        output = output_space(dag, row_axes=(0,), column_axes=columns, kept=(0,), operands={})
        return cls(operation, dag, output, forward_axes(operation))

    @property
    def data_type(self) -> DataType:
        return self.operation.image.data_type

    @property
    def images(self) -> int:
        return self.operation.image.dims[0]

    @cached_property
    def slabs(self) -> tuple[FilterSlab, ...]:
        """The ways to cut the groups."""
        filters, channels, *taps = self.operation.filter.dims
        groups = self.operation.groups
        outputs = filters // groups
        return tuple(
            FilterSlab(channels, outputs, groups, prod(taps), team, most_channels)
            for most_channels in _SLAB_CHANNELS
            for team in _TEAMS
            if team.blocks == 1 or outputs % (team.blocks * _BLOCK) == 0
        )

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        slab, (image, response) = self.slabs[0], (self.operation.image, self.operation.response)
        limits = (
            ("at most {} channels in a block of groups", slab.pack * max(slab.inputs, slab.outputs), _MAX_PACK),
            ("at most {} taps", slab.taps, _MAX_TAPS),
            ("at most {} positions in x", image.element_count // max(image.dims[1], 1), _MAX_INDEX),
            ("at most {} positions in dy", response.element_count // max(response.dims[1], 1), _MAX_INDEX),
            ("at most {} padded positions", max(axis.farthest for axis in self.axes), _MAX_INDEX),
            ("at most {} elements", self.operation.filter.element_count, _MAX_INDEX),
        )
        for rule, got, limit in limits:
            if got > limit:
                return f"dw.dims: expected {rule.format(limit)}, got {got}"
        return ""

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory holds what one place takes."""
        one = (1, *(1 for _ in self.axes))
        return any(FilterTile(slab, self.axes, one, self._element_bytes).fits(arch) for slab in self.slabs)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M and SPLIT_K_SLC, for a convolution that fits."""
        tile = self._tile(arch, PLACE_LIMITS[-1])
        best = min(limit for limit in PLACE_LIMITS if prod(tile.extents) <= limit)
        most = tile.splits(self.images, arch)
        splits = tuple(sorted({most, *(1 << bit for bit in range(most.bit_length() + 1))}))
        return (
            Knob("tile_m", KnobType.TILE_M, PLACE_LIMITS, best, "the most output places of a block"),
            Knob("split_k", KnobType.SPLIT_K_SLC, splits, most, "parts of the sum, as far as there are tiles"),
        )

    def add_to(self, parts: PlanParts, arch: ArchSpec, chosen: Choices) -> None:
        """Repacking launches where they are needed, the products of each split, the sum of several splits."""
        tile = self._tile(arch, chosen[KnobType.TILE_M])
        tensors = (BoxedTensor(self.operation.image), BoxedTensor(self.operation.response))
        overlaps = is_dependent(arch)
        pointers = [packed_operand(parts, boxed.tensor.uid, boxed.packing, overlaps=overlaps) for boxed in tensors]
        maps = self._maps(tile, *tensors, arch)
        mapped = [TensorMap(pointer, layout) for pointer, layout in zip(pointers, maps, strict=False)]
        slices = self._slices(tile, chosen)
        slices_at = parts.reserve(slices.size_bytes) if slices.splits > 1 else 0
        stages = tile.stages(ceil_div(prod(tile.counts(self.images)), slices.splits), arch)
        kernel = parts.kernel(self._kernel(tile, stages, slices, arch, is_mapped=bool(maps)))
        arguments = self._arguments(tile, slices, tensors, tuple(mapped or pointers), slices_at)
        parts.launches.append(self._launch(kernel, tile, stages, arguments, slices, arch))
        if slices.splits > 1:
            vector, stored = self.output.vector(self._functor), moved_bytes(self.dag)
            add_slice_sum(parts, self.output, self._functor, vector, slices, slices_at, stored, overlaps=overlaps)

    @cached_property
    def _functor(self) -> Functor:
        return functor_of(self.dag, self.data_type, self.output)

    def _tile(self, arch: ArchSpec, limit: int) -> FilterTile:
        """The fastest one of at most ``limit`` places."""
        best = _fastest_tile(self.slabs, self.axes, self.images, self._element_bytes, arch)
        return (
            best
            if prod(best.extents) <= limit
            else _fastest_tile(self.slabs, self.axes, self.images, self._element_bytes, arch, limit)
        )

    @property
    def _element_bytes(self) -> int:
        return self.operation.image.element_bytes

    @staticmethod
    def _maps(tile: FilterTile, image: BoxedTensor, response: BoxedTensor, arch: ArchSpec) -> list[TiledMap]:
        """Of x and dy; none where threads copy them."""
        maps = image.map(tile.box, arch), response.map(tile.response_box, arch)
        return [layout for layout in maps if layout] if all(maps) else []

    def _kernel(self, tile: FilterTile, stages: int, slices: Slices, arch: ArchSpec, *, is_mapped: bool) -> KernelRef:
        slab, facts, output = tile.slab, dtypes.info(self.data_type), self.output
        finishes = slices.splits == 1
        vector = min(output.vector(self._functor), gcd(slab.inputs, 2)) if finishes else 0
        params = Params(
            TYPE=facts.c_type,
            IN=slab.inputs,
            OUT=slab.outputs,
            PACK=slab.pack,
            UNITS=slab.units,
            TASK_BLOCKS=slab.team.blocks,
            TASK_WARPS=slab.task_warps,
            PARTS=slab.parts,
            STAGES=stages,
            MIN_BLOCKS=slab.team.resident,
            TAPS=slab.taps,
            SET_TAPS=slab.set_taps,
            HALVED=int(tile.box.is_halved),
            MAPPED=int(is_mapped),
            FINISHES=int(finishes),
            OUTPUT_RANK=output.space.rank if finishes else 0,
            ROW_AXES=output.row_axes if finishes else 0,
            VECTOR=vector,
        )
        taps = f"t{slab.taps}_{stages}{'h' * params.HALVED}{'m' * params.MAPPED}"
        target = dependent_target(arch)
        task = f"w{slab.task_warps}x{slab.parts}_f{slab.team.blocks}s{slab.steps}"
        group = f"{slab.inputs}to{slab.outputs}_u{slab.units}_{task}_{taps}"
        ending = f"_{output.row_axes}of{output.space.rank}_v{vector}_{self._functor.digest}" if finishes else ""
        return KernelRef(
            name=f"conv_grouped_wgrad_mma_{facts.short_name}_{group}_{target_label(target)}{ending}",
            source="conv/grouped/conv_grouped_wgrad_mma.cu",
            target=target,
            parameters=macros(params),
            generated=self._functor.text if finishes else "",
        )

    def _launch(
        self, kernel: int, tile: FilterTile, stages: int, arguments: Struct, slices: Slices, arch: ArchSpec
    ) -> Launch:
        grid, work = (tile.slab.blocks, slices.splits, 1), self._work(tile, slices, arch)
        return Launch(
            kernel,
            grid,
            (tile.slab.threads, 1, 1),
            (arguments,),
            uncrowded_bytes(arch, prod(grid), tile.shared_bytes(stages)),
            work=work,
            overlaps_previous=is_dependent(arch),
        )

    def busy_launch(self, arch: ArchSpec, chosen: Choices) -> Launch:
        """That of the products, without arguments."""
        tile = self._tile(arch, chosen[KnobType.TILE_M])
        slices = self._slices(tile, chosen)
        grid, work = (tile.slab.blocks, slices.splits, 1), self._work(tile, slices, arch)
        return Launch(0, grid, (tile.slab.threads, 1, 1), (), work=work, overlaps_previous=is_dependent(arch))

    def _slices(self, tile: FilterTile, chosen: Choices) -> Slices:
        splits = min(chosen[KnobType.SPLIT_K_SLC], prod(tile.counts(self.images)))
        return Slices(splits, self.output.rows, self.output.columns)

    def _work(self, tile: FilterTile, slices: Slices, arch: ArchSpec) -> Work:
        unit = MMA_UNITS[self.data_type]
        blocks = slices.splits * tile.slab.blocks
        read = bytes_of((self.operation.image, self.operation.response))
        # As many operations as the tensor cores of the busy multiprocessors attain in the time of the tile's model:
        # latencies and reads of shared memory take more of it than the products; no fewer than those.
        clocks = tile.product_clocks(self.images, slices.splits, arch)
        busy = blocks / ceil_div(blocks, arch.sm_count)
        flops = max(self.operation.flops, round(clocks * busy * arch.flops_per_clock[unit] * arch.attained[unit]))
        written = slices.size_bytes if slices.splits > 1 else moved_bytes(self.dag)
        return Work(flops, read + written, unit)

    def _arguments(
        self,
        tile: FilterTile,
        slices: Slices,
        tensors: tuple[BoxedTensor, BoxedTensor],
        pointers: tuple[Argument, ...],
        slices_at: int,
    ) -> Struct:
        counts, (image, response) = tile.counts(self.images), tensors
        where: tuple[Argument, ...] = (WorkspacePointer(slices_at), *i64((slices.pitch, slices.slice_elements)))
        finish: tuple[Argument, ...] = (self.output.map, self._functor.arguments)
        steps = (1, *(axis.input_step for axis in self.axes))
        pace = tuple(extent * step for extent, step in zip(tile.extents, steps, strict=True))
        return Struct(
            (
                *pointers,
                *(where if slices.splits > 1 else ()),
                image.geometry(tile.box, pace, tuple(axis.lowest for axis in self.axes)),
                response.geometry(tile.response_box, tile.extents),
                *i32((*steps[1:-1], tile.box.place_step, self.operation.groups)),
                *(Struct(divider(count)) for count in counts),
                *i32((*divmod(prod(counts), slices.splits), tile.places)),
                *self._offsets(tile),
                *(finish if slices.splits == 1 else ()),
            )
        )

    def _offsets(self, tile: FilterTile) -> tuple[Scalar, ...]:
        """Bytes from a place's origin in the box to each tap, in the order of the filter's memory."""
        (every,) = output_classes(self.axes, self.operation.filter.dims[2:])
        offsets = {}
        for position, index in every.taps:
            place = tile.box.place([offset - axis.lowest for offset, axis in zip(position, self.axes, strict=True)])
            offsets[index] = place * tile.image_pitch
        taps = tile.slab.tap_sets * tile.slab.set_taps
        return tuple(Scalar(ScalarType.U32, offsets.get(index, 0)) for index in range(taps))


@lru_cache(maxsize=1024)
def _fastest_tile(
    slabs: tuple[FilterSlab, ...],
    axes: tuple[Axis, ...],
    images: int,
    element_bytes: int,
    arch: ArchSpec,
    limit: int = PLACE_LIMITS[-1],
) -> FilterTile:
    """By the cost model the fastest tile of at most ``limit`` places, for slabs of which one fits."""
    boxes = Boxes.of(axes, images, limit, _PHASE_PIXELS)
    ones = [FilterTile(slab, axes, (1, *(1 for _ in axes)), element_bytes) for slab in slabs]
    kind, extents = boxes.least(np.stack([one.clocks(boxes, arch) for one in ones]))
    return FilterTile(slabs[kind], axes, extents, element_bytes)
