"""A grouped convolution, forward or backward in the data, with the walk of ``grouped_walk.cuh``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod
from typing import Final

from lowdnn import dtypes
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.conv.grouped.axes import (
    MAX_TAPS,
    Axis,
    OutputClass,
    backward_axes,
    forward_axes,
    output_classes,
)
from lowdnn.engines.conv.grouped.pixel_box import CHUNK_BYTES, BoxedTensor
from lowdnn.engines.conv.grouped.tiles import (
    Pack,
    Slab,
    Tile,
    fastest_tile,
    fits,
    place_limits,
)
from lowdnn.engines.conv.implicit_gemm.geometry import is_krsc
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, functor_of, output_space
from lowdnn.engines.gemm.packing import Packing, packed_operand
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import (
    MAX_GRID_X,
    bytes_of,
    ceil_div,
    dependent_target,
    divider,
    i32,
    is_dependent,
    macros,
    moved_bytes,
    target_label,
    uncrowded_bytes,
)
from lowdnn.engines.model.clock import NOTHING_EXPOSED, work_s
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Argument, KernelRef, Launch, MathUnit, Struct, TensorMap, Work

_MAX_PACK = 64
_MAX_CLASSES = 16
_MAX_FUNCTOR_VECTOR = 4
_MIN_COPY_BYTES = 4
_UNIT_BYTES = 8
#: Measured time of a launch as a multiple of the longer of its arithmetic and memory time, on an H200.
SLOWNESS: Final = 1.4
#: Measured time of a launch as a least multiple of the instructions of its tiles, on an H200.
_COMPUTE_SLOWNESS: Final = 1.2
#: Seconds from a launch's start until the filters and the first box have arrived.
_START_S: Final = 1e-6


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_grouped_mma.cu`` and ``conv_grouped_wgmma.cu``."""

    TYPE: str
    BACKWARD: int
    IN: int
    OUT: int
    PACK: int
    UNIT_PACKS: int
    UNITS: int
    TAPS: int
    CLASSES: int
    RUN: int
    BLOCKS_M: int
    THREADS: int
    MIN_BLOCKS: int
    KEEPS_FILTERS: int
    WHOLE_FILTERS: int
    HALVED: int
    MAPPED: int
    OUTPUT_RANK: int
    VECTOR: int
    WHOLE: int


def pack_of(operation: ConvolutionOperation) -> Pack:
    """The pack of a convolution forward or backward in the data."""
    channels, filters = operation.filter.dims[1], operation.filter.dims[0] // operation.groups
    is_backward = isinstance(operation, ConvolutionBackwardData)
    inputs, outputs = (filters, channels) if is_backward else (channels, filters)
    source = operation.response if is_backward else operation.image
    return Pack(inputs, outputs, CHUNK_BYTES // source.element_bytes, operation.groups)


def width_problem(operation: ConvolutionOperation) -> str:
    """Why the groups of a convolution forward or backward in the data are too wide for the kernel, or an empty string.

    Most dense convolutions have such groups: nothing else is worked out for them.
    """
    pack = pack_of(operation)
    widest = pack.groups * max(pack.inputs, pack.outputs)
    if widest <= _MAX_PACK:
        return ""
    return f"filter.dims: expected at most {_MAX_PACK} channels on either side of a block of groups, got {widest}"


@dataclass(frozen=True)
class GroupedGeometry:
    """A grouped convolution, forward or backward in the data.

    source: x, or dy backward.  axes: from the source to the output.  classes: residues of the output, with their taps.
    """

    operation: ConvolutionOperation
    dag: PointwiseDag
    output: OutputSpace
    axes: tuple[Axis, ...]
    classes: tuple[OutputClass, ...]

    @classmethod
    def of(cls, operation: ConvolutionOperation, dag: PointwiseDag) -> GroupedGeometry:
        is_backward = isinstance(operation, ConvolutionBackwardData)
        axes = backward_axes(operation) if is_backward else forward_axes(operation)
        pixel_axes = (0, *range(2, len(dag.dims)))
        output = output_space(dag, row_axes=pixel_axes, column_axes=(1,), kept=(1,), operands={})
        return cls(operation, dag, output, axes, output_classes(axes, operation.filter.dims[2:]))

    @cached_property
    def is_backward(self) -> bool:
        return isinstance(self.operation, ConvolutionBackwardData)

    @property
    def data_type(self) -> DataType:
        return self.source.data_type

    @property
    def source(self) -> Tensor:
        return self.operation.response if self.is_backward else self.operation.image

    @property
    def images(self) -> int:
        return self.source.dims[0]

    @cached_property
    def pack(self) -> Pack:
        return pack_of(self.operation)

    @cached_property
    def run(self) -> int:
        """Filter elements of one copy: neighbours in memory and in the product."""
        if self.is_backward and self.source.element_bytes == 4:
            return 1
        return gcd(self.pack.chunk, self.operation.filter.dims[1])

    @cached_property
    def boxed_source(self) -> BoxedTensor:
        return BoxedTensor(self.source)

    @cached_property
    def filter_packing(self) -> Packing | None:
        w = self.operation.filter
        is_readable = is_krsc(w) and w.alignment_bytes >= self.run * w.element_bytes
        return None if is_readable else Packing(w, 1, _UNIT_BYTES)

    @cached_property
    def _reads_whole_filters(self) -> bool:
        """Whether filters can be used in their memory layout. Warps must keep them in registers, a step must have one
        tap, a pack one group (no zeros), and output blocks are read in pairs.
        """
        pack, slab = self.pack, self.slab
        has_pairs = pack.in_unit * pack.output_blocks % 2 == 0
        is_for_steps = slab.keeps_filters and pack.groups == 1 and pack.input_chunks % 2 == 0
        is_in_place = self.filter_packing is None and self.run == pack.chunk
        return is_for_steps and has_pairs and is_in_place and self.operation.groups % slab.groups == 0

    @cached_property
    def slab(self) -> Slab:
        pack = self.pack
        taps = sum(len(output.taps) + self._null_taps(output) for output in self.classes)
        return Slab(pack, pack.units, taps, len(self.classes))

    @property
    def slabs(self) -> int:
        return ceil_div(self.operation.groups, self.slab.groups)

    def fits(self, arch: ArchSpec) -> bool:
        """Whether shared memory holds a tile of one place."""
        return fits(self._slab_on(arch), self.axes, arch)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M and BLOCK_SIZE, for a convolution that fits."""
        limits = place_limits(self.slab.classes)
        tile = self._tile(arch, limits[-1])
        best, threads = min(limit for limit in limits if tile.places <= limit), tile.threads(arch)
        return (
            Knob("tile_m", KnobType.TILE_M, limits, best, "the most output places of a block"),
            Knob("block_size", KnobType.BLOCK_SIZE, tile.slab.block_sizes, threads, "threads of a block"),
        )

    def refuse_shape(self) -> str:
        """Why the kernel cannot take the extents, or an empty string."""
        row_bytes = self.run * self.source.element_bytes
        limits = (
            ("filter.dims: expected at most {} taps", self.slab.taps, MAX_TAPS),
            ("convolution.strides: expected at most {} residues", len(self.classes), _MAX_CLASSES),
            ("image.dims: expected at most {} positions", self._positions(self.operation.image), MAX_INDEX),
            ("response.dims: expected at most {} positions", self._positions(self.operation.response), MAX_INDEX),
            (
                "convolution: expected padded extents of at most {}",
                max(axis.farthest for axis in self.axes),
                MAX_INDEX,
            ),
            ("image.dims: expected at most {} blocks", self._positions(self.operation.image) * self.slabs, MAX_GRID_X),
        )
        for rule, got, limit in limits:
            if got > limit:
                return f"{rule.format(limit)}, got {got}"
        if row_bytes < _MIN_COPY_BYTES:
            got_channels = self.operation.filter.dims[1]
            return (
                f"filter.dims[1]: expected a multiple of {_MIN_COPY_BYTES // self.source.element_bytes}, "
                f"got {got_channels}"
            )
        return ""

    def _tile(self, arch: ArchSpec, limit: int) -> Tile:
        """The fastest tile of at most ``limit`` places."""
        slab = self._slab_on(arch)
        best = fastest_tile(slab, self.axes, self.images, self.slabs, arch)
        return best if best.places <= limit else fastest_tile(slab, self.axes, self.images, self.slabs, arch, limit)

    def _slab_on(self, arch: ArchSpec) -> Slab:
        return replace(self.slab, has_wgmma=arch.has_wgmma)

    @staticmethod
    def _positions(tensor: Tensor) -> int:
        return tensor.element_count // max(tensor.dims[1], 1)

    def _null_taps(self, output: OutputClass) -> int:
        """Taps without weights that make the chunks of a residue even."""
        return len(output.taps) * self.pack.input_chunks % 2

    def add_to(self, parts: PlanParts, arch: ArchSpec, chosen: Choices) -> None:
        """Repacking launches if necessary, then the product."""
        tile = self._tile(arch, chosen[KnobType.TILE_M])
        functor = functor_of(self.dag, self.data_type, self.output)
        vector = min(self.output.vector(functor), _MAX_FUNCTOR_VECTOR)
        overlaps = is_dependent(arch)
        source = packed_operand(parts, self.source.uid, self.boxed_source.packing, overlaps=overlaps)
        layout = self.boxed_source.map(tile.box, arch)
        w = packed_operand(parts, self.operation.filter.uid, self.filter_packing, overlaps=overlaps)
        threads = chosen[KnobType.BLOCK_SIZE]
        kernel = parts.kernel(self._kernel(tile, threads, functor, vector, arch, is_mapped=layout is not None))
        lanes = tile.lanes(self.images, self.slabs, arch)
        operands = (TensorMap(source, layout) if layout else source, w)
        parts.launches.append(self._launch(kernel, tile, threads, lanes, functor, operands, arch))

    def _kernel(
        self, tile: Tile, threads: int, functor: Functor, vector: int, arch: ArchSpec, *, is_mapped: bool
    ) -> KernelRef:
        slab, pack, facts = tile.slab, self.pack, dtypes.info(self.data_type)
        params = Params(
            TYPE=facts.c_type,
            BACKWARD=int(self.is_backward),
            IN=pack.inputs,
            OUT=pack.outputs,
            PACK=pack.groups,
            UNIT_PACKS=pack.in_unit,
            UNITS=slab.units,
            TAPS=slab.taps,
            CLASSES=slab.classes,
            RUN=self.run,
            BLOCKS_M=tile.blocks_m,
            THREADS=threads,
            MIN_BLOCKS=slab.min_blocks(threads),
            KEEPS_FILTERS=int(slab.keeps_filters),
            WHOLE_FILTERS=int(is_mapped and self._reads_whole_filters),
            HALVED=int(tile.box.is_halved),
            MAPPED=int(is_mapped),
            OUTPUT_RANK=self.output.space.rank,
            VECTOR=vector,
            WHOLE=int(self.dag.dims[1] % _MAX_FUNCTOR_VECTOR == 0),
        )
        direction = "dgrad" if self.is_backward else "fprop"
        group = f"{pack.inputs}to{pack.outputs}_u{slab.units}x{pack.in_unit}_m{tile.blocks_m}_b{threads}"
        group += (
            f"_t{slab.taps}x{slab.classes}"
            + "h" * params.HALVED
            + "k" * params.KEEPS_FILTERS
            + "w" * params.WHOLE_FILTERS
        )
        group += "g" * slab.by_warpgroups + "m" * params.MAPPED
        target = dependent_target(arch)
        output = f"w{self.run}_r{params.OUTPUT_RANK}v{vector}"
        ending = f"{'' if params.WHOLE else 'p'}_{target_label(target)}_{functor.digest}"
        return KernelRef(
            name=f"conv_grouped_mma_{direction}_{facts.short_name}_{group}_{output}{ending}",
            source=f"conv/grouped/conv_grouped_{'wgmma' if slab.by_warpgroups else 'mma'}.cu",
            target=target,
            parameters=macros(params),
            generated=functor.text,
        )

    def _launch(
        self,
        kernel: int,
        tile: Tile,
        threads: int,
        lanes: int,
        functor: Functor,
        operands: tuple[Argument, Argument],
        arch: ArchSpec,
    ) -> Launch:
        w = self.operation.filter
        w_channels = self.filter_packing.padded_channels if self.filter_packing else w.dims[1]
        counts = tile.counts(self.images)
        steps = (1, *(axis.input_step for axis in self.axes))
        pace = tuple(extent * step for extent, step in zip(tile.extents, steps, strict=True))
        arguments = Struct(
            (
                *operands,
                self.boxed_source.geometry(tile.box, pace, tuple(axis.lowest for axis in self.axes)),
                *i32(axis.outputs for axis in self.axes),
                *i32((self.dag.dims[1], self.operation.groups, prod(w.dims[2:]), w_channels)),
                *i32((*steps[1:-1], tile.box.place_step)),
                *i32(axis.output_step for axis in self.axes),
                *(Struct(divider(extent)) for extent in (self.slabs, *counts, *tile.extents)),
                *i32((prod(counts), lanes, tile.class_places)),
                *self._taps(tile),
                *self._classes(),
                self.output.map,
                functor.arguments,
            )
        )
        grid, work = (lanes * self.slabs, 1, 1), self._work(tile, arch)
        return Launch(
            kernel,
            grid,
            (threads, 1, 1),
            (arguments,),
            uncrowded_bytes(arch, grid[0], tile.shared_bytes),
            work=work,
            overlaps_previous=is_dependent(arch),
        )

    def busy_launch(self, arch: ArchSpec, chosen: Choices) -> Launch:
        """The launch of the product, without arguments."""
        tile = self._tile(arch, chosen[KnobType.TILE_M])
        lanes = tile.lanes(self.images, self.slabs, arch)
        threads = chosen[KnobType.BLOCK_SIZE]
        grid, work = (lanes * self.slabs, 1, 1), self._work(tile, arch)
        return Launch(0, grid, (threads, 1, 1), (), work=work, overlaps_previous=is_dependent(arch))

    def _work(self, tile: Tile, arch: ArchSpec) -> Work:
        instructions = (
            prod(tile.counts(self.images))
            * self.slabs
            * self.slab.units
            * self.pack.in_unit
            * self.pack.output_blocks
            * tile.class_places
            // 16
            * self.slab.depth
            // 2
        )
        flops = instructions * 2 * 16 * 8 * 2 * self.pack.chunk
        moved = bytes_of((self.source, self.operation.filter)) + moved_bytes(self.dag)
        unit = MathUnit.WGMMA_F16 if tile.slab.by_warpgroups else MMA_UNITS[self.data_type]
        compute_s = tile.compute_clocks(self.images, self.slabs, arch) / arch.clock_hz
        work = Work(flops, moved, unit)
        least_s = work_s(work, arch, NOTHING_EXPOSED)
        return replace(work, busy_s=_START_S + max(SLOWNESS * least_s, _COMPUTE_SLOWNESS * compute_s))

    def _taps(self, tile: Tile) -> tuple[Struct, ...]:
        """The kernel's ``Tap``s: offset in the box, index in the filter."""
        lowest = [axis.lowest for axis in self.axes]
        taps = []
        for output in self.classes:
            for offsets, index in output.taps:
                place = tile.box.place([offset - least for offset, least in zip(offsets, lowest, strict=True)])
                taps.append(Struct(i32((place * self.slab.pitch_bytes, index))))
            taps.extend([Struct(i32((0, -1)))] * self._null_taps(output))
        return tuple(taps)

    def _classes(self) -> tuple[Struct, ...]:
        """The kernel's ``OutputClass``es: residues, first and end of its taps."""
        classes, first = [], 0
        for output in self.classes:
            end = first + len(output.taps) + self._null_taps(output)
            classes.append(Struct(i32((*output.residue, first, end))))
            first = end
        return tuple(classes)
