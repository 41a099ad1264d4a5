"""A grouped convolution backward in the filter, as ``conv_grouped_wgrad_mma.cu`` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.grouped.axes import Axis, forward_axes, output_classes
from lowdnn.engines.conv.grouped.filter_tiles import BLOCK, TEAMS, FilterSlab, FilterTile, fastest_filter_tile
from lowdnn.engines.conv.grouped.pixel_box import BoxedTensor
from lowdnn.engines.conv.grouped.tiles import (
    PLACE_LIMITS,
)
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, functor_of, output_space
from lowdnn.engines.gemm.packing import packed_operand
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import (
    bytes_of,
    ceil_div,
    dependent_target,
    divider,
    i32,
    i64,
    is_dependent,
    macros,
    moved_bytes,
    target_label,
    uncrowded_bytes,
)
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.plan import Argument, KernelRef, Launch, Scalar, ScalarType, Struct, TensorMap, Work, WorkspacePointer
from lowdnn.tensor_map import TiledMap

#: Channels of wide slabs and of narrow ones; a block of a narrow slab sums more pixels, which makes fewer slices.
_SLAB_CHANNELS = (64, 32)
_MAX_PACK = 128


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
class FilterGeometry:
    """A grouped convolution backward in the filter.  axes: from x to dy."""

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
        """Choices of the slabs into which groups are cut."""
        filters, channels, *taps = self.operation.filter.dims
        groups = self.operation.groups
        outputs = filters // groups
        return tuple(
            FilterSlab(channels, outputs, groups, prod(taps), team, most_channels)
            for most_channels in _SLAB_CHANNELS
            for team in TEAMS
            if team.blocks == 1 or outputs % (team.blocks * BLOCK) == 0
        )

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        slab, (image, response) = self.slabs[0], (self.operation.image, self.operation.response)
        limits = (
            ("at most {} channels in a block of groups", slab.pack * max(slab.inputs, slab.outputs), _MAX_PACK),
            ("at most {} positions in x", image.element_count // max(image.dims[1], 1), MAX_INDEX),
            ("at most {} positions in dy", response.element_count // max(response.dims[1], 1), MAX_INDEX),
            ("at most {} padded positions", max(axis.farthest for axis in self.axes), MAX_INDEX),
            ("at most {} elements", self.operation.filter.element_count, MAX_INDEX),
        )
        for rule, got, limit in limits:
            if got > limit:
                return f"dw.dims: expected {rule.format(limit)}, got {got}"
        return ""

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory holds a tile of one place."""
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
        """Repacking launches if necessary, the products of each split, and the sum of several splits."""
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
        """The fastest tile of at most ``limit`` places."""
        best = fastest_filter_tile(self.slabs, self.axes, self.images, self._element_bytes, arch)
        return (
            best
            if prod(best.extents) <= limit
            else fastest_filter_tile(self.slabs, self.axes, self.images, self._element_bytes, arch, limit)
        )

    @property
    def _element_bytes(self) -> int:
        return self.operation.image.element_bytes

    @staticmethod
    def _maps(tile: FilterTile, image: BoxedTensor, response: BoxedTensor, arch: ArchSpec) -> list[TiledMap]:
        """Tensor maps of x and dy; empty if threads copy them."""
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
        """The launch of the products, without arguments."""
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
        # Operations that the tensor cores of the busy multiprocessors attain in the modelled time of the tile.
        # Latencies and reads of shared memory take more of that time than the products; there are at least as many
        # operations as products.
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
                image.geometry(tile.box, pace, tuple(axis.lowest for axis in self.axes)),
                response.geometry(tile.response_box, tile.extents),
                *i32((*steps[1:-1], tile.box.place_step, self.operation.groups)),
                *(Struct(divider(count)) for count in counts),
                *i32((*divmod(prod(counts), slices.splits), tile.places)),
                *self._offsets(tile),
                Struct(where if slices.splits > 1 else finish),
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
