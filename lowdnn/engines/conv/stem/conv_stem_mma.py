"""``conv_stem_mma``: the first layers of networks, forward convolutions of at most 4 channels, with the image in place.

One group, fp16, bf16 and fp32 by TF32; an image with dense channels-last rows of pixels, and dense channels-last
outputs. Any pointwise epilogue with one stored tensor. Gradients of last layers, with equally few filters and stride 1,
are computed as convolutions of the response (``exchanged.py``). Kernel: ``conv_stem_mma.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Anchors, Choices, Knob
from lowdnn.engines.conv.refusals import refuse_pixels
from lowdnn.engines.conv.stem.row_tiles import MAX_TILE_OUTPUTS, TILE_WIDTHS, RowTile, RowTiledMma, RowTiling, TileCosts
from lowdnn.engines.conv.stem.rows import PIECE_BYTES, WORD_BYTES, filter_walk, values_label
from lowdnn.engines.conv.wgmma.pixel_output import pixel_rows
from lowdnn.engines.floor import Contraction, Floor, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS, MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, full_loads
from lowdnn.engines.gemm.wgmma_output import handing_back
from lowdnn.engines.launch import (
    bytes_of,
    ceil_div,
    dependent_target,
    i32,
    i64,
    is_dependent,
    macros,
    moved_bytes,
    target_label,
)
from lowdnn.engines.model.clock import overlap
from lowdnn.engines.model.occupancy import blocks_by_shared
from lowdnn.engines.model.products import ProductCosts
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.pattern import Anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work
from lowdnn.status import BadParamError

_LANE_BYTES = 16
#: Words of k of one instruction.
_STEP_WORDS = 8
#: Filters of one block.
_BLOCK_N = 8
#: Pixels of one block.
_BLOCK_M = 16
#: Choices of the blocks of 16 pixels of a warp's unit, the best first.
_BLOCKS_M = (2, 4)
_THREADS = 256
_WARPS = _THREADS // WARP_SIZE
_MAX_BLOCKS_PER_SM = 2
_COSTS: Final = TileCosts(
    products=ProductCosts(product_clocks=2.2, read_clocks=1.5),
    tile_clocks=1500,
    copied_bytes_per_clock=32,
    lone_slowness=1.3,
)
#: Clocks of a multiprocessor for a round of the copies of a block's filters, fitted on an H200.
_FILTER_CLOCKS: Final = 700
#: Share of the shorter of arithmetic and copying that the longer one does not hide, fitted on an H200.
_EXPOSED: Final = 0.3


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_stem_mma.cu``, in addition to those of ``stem_rows.cuh``."""

    OUT: int
    BLOCKS_M: int
    RUN_BLOCKS: int
    PASS_RUNS: int
    STAGES: int
    THREADS: int
    MIN_BLOCKS: int
    OUTPUT_RANK: int


@dataclass(frozen=True)
class _Filters:
    """The spread of the filters over blocks of 8, runs of ``run_blocks`` and passes of ``pass_runs``."""

    count: int
    run_blocks: int
    pass_runs: int

    @classmethod
    def of(cls, count: int) -> _Filters:
        """The fewest blocks whose lanes write 16 bytes if the outputs of a pixel are whole pieces."""
        if count % _BLOCK_N == 0 or count > 8 * _BLOCK_N:
            return cls(count, 4, 2 if ceil_div(count, 32) % 2 == 0 else 1)
        return min(
            (cls(count, run, runs) for run in (2, 3, 4) for runs in (1, 2) if run * runs % 2 == 0),
            key=lambda found: (found.passes, found.padded),
        )

    @cached_property
    def pass_blocks(self) -> int:
        return self.run_blocks * self.pass_runs

    @cached_property
    def passes(self) -> int:
        return ceil_div(self.count, _BLOCK_N * self.pass_blocks)

    @property
    def padded(self) -> int:
        return self.passes * self.pass_blocks * _BLOCK_N


@dataclass(frozen=True)
class _Tile(RowTile):
    """blocks_m: blocks of 16 pixels of a warp's unit."""

    blocks_m: int = _BLOCKS_M[0]

    @property
    def units(self) -> int:
        return ceil_div(self.height * self.width, self.blocks_m * _BLOCK_M)


@dataclass(frozen=True)
class _Problem(RowTiling[_Tile]):
    operation: ConvolutionForward

    @property
    def image(self) -> Tensor:
        return self.operation.x

    @cached_property
    def target(self) -> Tensor:
        return self.dag.stores[0]

    @cached_property
    def output(self) -> OutputSpace:
        return pixel_rows(self.dag, groups=1, in_parts=False)

    @property
    def functor(self) -> Functor:
        return handing_back(self.dag, self.output, MMA_ACCUMULATORS[self.image.data_type])

    @cached_property
    def filters(self) -> _Filters:
        return _Filters.of(self.operation.w.dims[0])

    @cached_property
    def steps(self) -> int:
        return ceil_div(self.rows.words, _STEP_WORDS)

    @cached_property
    def is_staged(self) -> bool:
        """Whether outputs are staged in shared memory: a pixel's outputs are not whole words."""
        return self.filters.count * self.target.element_bytes % WORD_BYTES != 0

    @cached_property
    def filter_bytes(self) -> int:
        """Bytes of shared memory for the filters, in the order in which lanes read them, for all classes."""
        blocks = self.rows.classes * self.filters.passes * self.filters.pass_blocks
        return self.steps * blocks // 2 * WARP_SIZE * _LANE_BYTES

    def refuse_shape(self) -> str:
        if refused := self.rows.refuse_shape():
            return refused
        if not self.rows.is_copied_asynchronously:
            got = f"{self.image.dims[-1]} pixels of {self.rows.channels}"
            return f"x.dims[-1]: expected rows of whole words, got {got}"
        if refused := refuse_pixels(self.target, PIECE_BYTES):
            return refused
        if self.is_staged and self.filters.passes > 1:
            count = self.filters.count
            return f"w.dims[0]: expected at most 64 filters where outputs of a pixel are no words, got {count}"
        return ""

    def shared_bytes(self, tile: _Tile) -> int:
        filters, classes = self.filters, self.rows.classes
        table = self.steps * _STEP_WORDS * WORD_BYTES
        boxes = tile.stages * self.rows.box_bytes(tile.height, tile.width)
        out = tile.blocks_m * _BLOCK_M * filters.count * self.target.element_bytes * _WARPS * self.is_staged
        return self.filter_bytes + (1 + classes) * table + boxes + out

    def blocks_per_sm(self, tile: _Tile, arch: ArchSpec) -> int:
        """Blocks that shared memory and registers let share a multiprocessor."""
        return min(blocks_by_shared(arch, self.shared_bytes(tile)), _MAX_BLOCKS_PER_SM)

    def tiles(self, arch: ArchSpec) -> Iterator[_Tile]:
        """Tiles that fit."""
        _, rows, columns = self.rows.outputs
        for width in (columns, *self.rows.widths(TILE_WIDTHS)):
            heights = range(1, min(rows, max(MAX_TILE_OUTPUTS // width, 1)) + 1)
            for height in heights if width == columns else (1,):
                for stages in (2, 1):
                    tile = _Tile(height, width, stages)
                    if self.takes(tile, arch):
                        yield tile

    def takes(self, tile: _Tile, arch: ArchSpec) -> bool:
        """Whether a tile is of whole pieces of memory and fits."""
        return self._is_whole(tile) and self.blocks_per_sm(tile, arch) > 0

    def busy_s(self, tile: _Tile, arch: ArchSpec) -> float:
        """Seconds of the multiprocessor with the most tiles."""
        filters, at_once = self.filters, self.blocks_per_sm(tile, arch)
        rounds = ceil_div(prod(self.rows.tile_counts(tile.height, tile.width)), arch.sm_count * at_once)
        products = self.steps * filters.passes * filters.pass_blocks * tile.blocks_m
        words = self.steps * tile.blocks_m * filters.passes * 4 + 2 * self.steps * filters.passes * filters.pass_blocks
        unit_clocks = _COSTS.products.clocks(products, words)
        box = self.rows.box_bytes(tile.height, tile.width)
        warp_rounds = ceil_div(tile.units, _WARPS) * _WARPS
        copies = box / _COSTS.copied_bytes_per_clock * (3 - tile.stages)
        clocks = _COSTS.tile_clocks + warp_rounds * unit_clocks + copies
        filter_rounds = ceil_div(self.filter_bytes, _THREADS * _LANE_BYTES)
        start_s = filter_rounds * at_once * _FILTER_CLOCKS / arch.clock_hz
        slowness = _COSTS.lone_slowness if at_once == 1 else 1.0
        compute_s = rounds * at_once * clocks * slowness / arch.clock_hz
        loaded = bytes_of(full_loads(self.dag, self.output))
        copied_s = (bytes_of((self.image,)) + moved_bytes(self.dag) + loaded) / arch.copy_bytes_per_s
        return start_s + overlap(compute_s, copied_s, _EXPOSED)

    def _is_whole(self, tile: _Tile) -> bool:
        """Whether neighbouring pixels differ in their class, and staged units begin at whole pieces of memory."""
        if self.rows.classes > 1 and tile.height > 1 and tile.width % 2:
            return False
        _, rows, columns = self.rows.outputs
        pixel = self.filters.count * self.target.element_bytes
        row = columns * pixel if tile.width < columns else 0
        places = (rows * columns * pixel, tile.height * tile.width * pixel, row)
        return not self.is_staged or not any(place % PIECE_BYTES for place in places)


class ConvStemMma(RowTiledMma[_Problem]):
    """See the module's docstring."""

    name = "conv_stem_mma"
    index = 40
    anchors: Anchors = (ConvolutionForward, ConvolutionBackwardData)
    data_types = frozenset({DataType.HALF, DataType.BFLOAT16, DataType.FLOAT})

    def floor(self, contraction: Contraction) -> Floor:
        """One launch."""
        return Floor(Multipliers.MMA_SYNC)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """Knobs of tiles of rows, and TILE_M, pixels of a warp's unit."""
        pixels = tuple(blocks * _BLOCK_M for blocks in _BLOCKS_M)
        unit = Knob("tile_m", KnobType.TILE_M, pixels, pixels[0], "pixels of a warp's unit")
        return (*super().knobs_of(problem, arch), unit)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch."""
        tile = _Tile(
            chosen[KnobType.TILE_ROWS],
            chosen[KnobType.TILE_COLS],
            chosen[KnobType.STAGES],
            chosen[KnobType.TILE_M] // _BLOCK_M,
        )
        if not problem.takes(tile, arch):
            rule = "a tile of whole pieces of memory whose pixels fit shared memory"
            got = f"{tile.height}, {tile.width}, {tile.stages}"
            raise BadParamError.at(f"{self.name}.TILE_ROWS, TILE_COLS, STAGES", expected=rule, got=got)
        functor = problem.functor
        step = _kernel(problem, tile, functor, arch), _launch(problem, tile, functor, arch)
        return PlanParts([step], numerical_notes=tiles.numerical_notes(problem.image.data_type))

    def problem_of(self, operation: ConvolutionOperation, matched: Anchored[ConvolutionOperation]) -> _Problem | str:
        if not isinstance(operation, ConvolutionForward) or len(matched.epilogue.stores) != 1:
            return "operations: expected one stored output, or data gradient of a last layer"
        return _Problem(operation, matched.epilogue)


def _kernel(problem: _Problem, tile: _Tile, functor: Functor, arch: ArchSpec) -> KernelRef:
    facts, filters = dtypes.info(problem.image.data_type), problem.filters
    row_params = problem.rows.params(facts.c_type, tile.height, tile.width)
    params = Params(
        OUT=filters.count,
        BLOCKS_M=tile.blocks_m,
        RUN_BLOCKS=filters.run_blocks,
        PASS_RUNS=filters.pass_runs,
        STAGES=tile.stages,
        THREADS=_THREADS,
        MIN_BLOCKS=_MAX_BLOCKS_PER_SM if tile.blocks_m == 2 else 1,
        OUTPUT_RANK=problem.output.space.rank,
    )
    parameters = (*macros(row_params), *macros(params))
    target = dependent_target(arch)
    label = f"{values_label(parameters)}_{target_label(target)}"
    return KernelRef(
        name=f"conv_stem_mma_{facts.short_name}_{label}_{functor.digest}",
        source="conv/stem/conv_stem_mma.cu",
        target=target,
        parameters=parameters,
        generated=functor.text,
    )


def _launch(problem: _Problem, tile: _Tile, functor: Functor, arch: ArchSpec) -> Launch:
    counts = problem.rows.tile_counts(tile.height, tile.width)
    count = prod(counts)
    first, strides = filter_walk(problem.operation)
    arguments = Struct(
        (
            problem.rows.argument,
            TensorPointer(problem.operation.w.uid),
            TensorPointer(problem.target.uid),
            *i64((first, *strides)),
            *i32(problem.rows.outputs),
            *problem.rows.tiles_argument(counts),
            *i32((count,)),
            problem.output.map,
            functor.arguments,
        )
    )
    depth = problem.steps * _STEP_WORDS * problem.rows.word
    work = Work(
        flops=2 * count * tile.units * tile.blocks_m * _BLOCK_M * problem.filters.padded * depth,
        bytes=bytes_of((problem.image, problem.operation.w)) + moved_bytes(problem.dag),
        unit=MMA_UNITS[problem.image.data_type],
        busy_s=problem.busy_s(tile, arch),
    )
    blocks = min(arch.sm_count * problem.blocks_per_sm(tile, arch), count)
    return Launch(
        0,
        (blocks, 1, 1),
        (_THREADS, 1, 1),
        (arguments,),
        problem.shared_bytes(tile),
        work=work,
        overlaps_previous=is_dependent(arch),
    )
