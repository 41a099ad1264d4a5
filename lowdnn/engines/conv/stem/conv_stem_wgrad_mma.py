"""``conv_stem_wgrad_mma``: filter gradients of first layers, of at most 4 channels, with the image in place.

One group, fp16 and bf16; an image with dense channels-last rows of pixels, and a dense channels-last response. Any
pointwise epilogue. Gradients of last layers, with equally few filters and stride 1, are computed as gradients with the
response as the image (``exchanged.py``). Kernels: ``conv_stem_wgrad_mma.cu``, and the one that sums its slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Final

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices
from lowdnn.engines.conv.stem.row_tiles import MAX_TILE_OUTPUTS, TILE_WIDTHS, RowTile, RowTiledMma, RowTiling, TileCosts
from lowdnn.engines.conv.stem.rows import PIECE_BYTES, WORD_BYTES, values_label, widest_copy
from lowdnn.engines.floor import Contraction, Floor, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, Slices, add_slice_sum, functor_of, output_space
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
)
from lowdnn.engines.model.clock import ALL_EXPOSED, overlap
from lowdnn.engines.model.occupancy import blocks_by_shared
from lowdnn.engines.model.products import ProductCosts
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import ConvolutionMode, DataType, KnobType
from lowdnn.graph.pattern import Anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work, WorkspacePointer

#: Outputs of a run.
_RUN = 16
#: Filters of a block.
_BLOCK_M = 16
#: Words of a block of n.
_BLOCK_WORDS = 8
#: Choices of the filters of a slab.
_SLABS = (128, 64)
_THREADS = 256
_WARPS = _THREADS // WARP_SIZE
_SUM_BYTES = 4
#: Most accumulators of a thread with which two blocks share a multiprocessor.
_MOST_SHARED_SUMS = 80
#: Most accumulators of a thread.
_MOST_SUMS = 128
#: lone_slowness applies to the arithmetic if registers would allow another block.
_COSTS: Final = TileCosts(
    products=ProductCosts(product_clocks=2.6, read_clocks=2.2),
    tile_clocks=1000,
    copied_bytes_per_clock=20,
    lone_slowness=1.3,
)
#: The shares of copying and of arithmetic that the other, if longer, does not hide, by the number of stages; fitted on
#: an H200.
_EXPOSED: Final = {1: (0.2, 0.8), 2: (0.15, 0.15)}
#: These shares for one stage of a lone block.
_ALONE: Final = (ALL_EXPOSED, ALL_EXPOSED)


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_stem_wgrad_mma.cu``, in addition to those of ``stem_rows.cuh``."""

    FLIPPED: int
    SLAB: int
    DY_COPY: int
    BLOCKS_M: int
    BLOCKS_N: int
    WARPS_M: int
    WARPS_N: int
    STAGES: int
    THREADS: int
    MIN_BLOCKS: int


@dataclass(frozen=True)
class _Team:
    """Warps that together have all sums of ``slab`` filters."""

    slab: int
    blocks_m: int
    blocks_n: int
    warps_m: int
    warps_n: int
    classes: int

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_n

    @property
    def filters(self) -> int:
        """Filters of the slab, rounded up to whole blocks of all warps."""
        return self.warps_m * self.blocks_m * _BLOCK_M

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.classes * self.blocks_m * self.blocks_n * 8

    @property
    def blocks_per_sm(self) -> int:
        return 2 if self.sums <= _MOST_SHARED_SUMS else 1

    @property
    def run_clocks(self) -> float:
        """Clocks of a run of outputs of each class."""
        products, lines = self.blocks_m * self.blocks_n * 2, (self.blocks_m + self.blocks_n) * 4
        return self.warps * self.classes * _COSTS.products.clocks(products, lines)


@dataclass(frozen=True)
class _Problem(RowTiling[RowTile]):
    """is_exchanged: whether the operation is not the graph's own one (``exchanged.py``)."""

    operation: ConvolutionBackwardFilter
    is_exchanged: bool

    @property
    def filters(self) -> int:
        return self.operation.dw.dims[0]

    @cached_property
    def output(self) -> OutputSpace:
        """The output of the graph's own gradient: its filters are rows, or columns if the operation is exchanged."""
        taps = range(2, len(self.dag.dims))
        filters, channels = (1, 0) if self.is_exchanged else (0, 1)
        return output_space(self.dag, row_axes=(filters,), column_axes=(*taps, channels), kept=(filters,), operands={})

    @cached_property
    def dy_copy(self) -> int:
        return widest_copy(self.operation.dy, (self.filters,))

    @cached_property
    def team(self) -> _Team:
        """The team whose runs take the least time; it exists if ``has_team``."""
        return min(self._teams(), key=self._clocks)

    @property
    def has_team(self) -> bool:
        return next(self._teams(), None) is not None

    @property
    def slabs(self) -> int:
        return ceil_div(self.filters, self.team.slab)

    def refuse_shape(self) -> str:
        if refused := self.rows.refuse_shape() or self.rows.refuse_response():
            return refused
        response = self.operation.dy
        if self.dy_copy * response.element_bytes < WORD_BYTES:
            return f"dy.dims[1]: expected whole words of filters, got {response.dims[1]}"
        if not self.has_team:
            return f"dw.dims: expected fewer taps, got {list(self.operation.dw.dims[2:])}"
        return ""

    def stage_bytes(self, tile: RowTile) -> int:
        pitch = self.team.filters * self.operation.dy.element_bytes + PIECE_BYTES
        return self.rows.box_bytes(tile.height, tile.width) + tile.height * tile.width * pitch

    def shared_bytes(self, tile: RowTile) -> int:
        columns = prod(self.rows.taps) * self.rows.channels
        sums = _WARPS // self.team.warps * self.team.slab * columns * _SUM_BYTES
        return max(tile.stages * self.stage_bytes(tile), sums)

    def blocks_per_sm(self, tile: RowTile, arch: ArchSpec) -> int:
        """Blocks that shared memory and registers let share a multiprocessor."""
        return min(blocks_by_shared(arch, self.shared_bytes(tile)), self.team.blocks_per_sm)

    def tiles(self, arch: ArchSpec) -> Iterator[RowTile]:
        """Tiles that fit."""
        _, rows, columns = self.rows.outputs
        run = _RUN * self.rows.classes
        whole = ceil_div(columns, run) * run
        for width in (whole, *self.rows.widths(TILE_WIDTHS)):
            for height in range(1, min(rows, max(MAX_TILE_OUTPUTS // width, 1)) + 1):
                for stages in (2, 1) if self.rows.is_copied_asynchronously else (1,):
                    tile = RowTile(height, width, stages)
                    if self.blocks_per_sm(tile, arch):
                        yield tile

    def splits(self, tile: RowTile, arch: ArchSpec) -> int:
        """Parts of the sum, of about equally many tiles."""
        count = prod(self.rows.tile_counts(tile.height, tile.width))
        most = max(arch.sm_count * self.blocks_per_sm(tile, arch) // self.slabs, 1)
        return ceil_div(count, ceil_div(count, most))

    def busy_s(self, tile: RowTile, arch: ArchSpec) -> float:
        """Seconds of the multiprocessor with the most tiles."""
        counts, splits = self.rows.tile_counts(tile.height, tile.width), self.splits(tile, arch)
        at_once = ceil_div(splits * self.slabs, arch.sm_count)
        teams = _WARPS // self.team.warps
        runs = ceil_div(tile.height * tile.width // (_RUN * self.rows.classes), teams) * teams
        slowness = _COSTS.lone_slowness if at_once < self.team.blocks_per_sm else 1.0
        compute = runs * self.team.run_clocks * slowness
        copied = self.rows.box_bytes(tile.height, tile.width) + self._response_bytes(tile)
        staging = copied / _COSTS.copied_bytes_per_clock
        exposed = _EXPOSED[tile.stages] if tile.stages > 1 or at_once > 1 else _ALONE
        clocks = at_once * overlap(compute, staging, *exposed) + _COSTS.tile_clocks
        return ceil_div(prod(counts), splits) * clocks / arch.clock_hz

    def _response_bytes(self, tile: RowTile) -> int:
        """Bytes of dy for a tile and a slab."""
        filters = min(self.team.slab, self.filters)
        return tile.height * tile.width * filters * self.operation.dy.element_bytes

    def slices(self, tile: RowTile, arch: ArchSpec) -> Slices:
        return Slices(self.splits(tile, arch), self.filters, prod(self.rows.taps) * self.rows.channels)

    def _teams(self) -> Iterator[_Team]:
        whole = ceil_div(self.filters, _BLOCK_M) * _BLOCK_M
        blocks_n, warps = ceil_div(self.rows.words, _BLOCK_WORDS), (1, 2, 4, 8)
        for slab, warps_m, warps_n in product([whole] if whole <= _SLABS[0] else _SLABS, warps, warps):
            blocks = ceil_div(slab // _BLOCK_M, warps_m), ceil_div(blocks_n, warps_n)
            team = _Team(slab, *blocks, warps_m, warps_n, self.rows.classes)
            if team.warps <= _WARPS and team.sums <= _MOST_SUMS:
                yield team

    def _clocks(self, team: _Team) -> float:
        return ceil_div(self.filters, team.slab) * team.run_clocks


class ConvStemWgradMma(RowTiledMma[_Problem]):
    """See the module's docstring."""

    name = "conv_stem_wgrad_mma"
    index = 41
    anchors: Anchors = (ConvolutionBackwardFilter,)
    data_types = frozenset({DataType.HALF, DataType.BFLOAT16})

    def floor(self, contraction: Contraction) -> Floor:
        """The products and their sum."""
        return Floor(Multipliers.MMA_SYNC, launches=2)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The products of each split, and their sum."""
        tile = RowTile(chosen[KnobType.TILE_ROWS], chosen[KnobType.TILE_COLS], chosen[KnobType.STAGES])
        parts, slices = PlanParts(), problem.slices(tile, arch)
        slices_at = parts.reserve(slices.size_bytes)
        parts.kernel(_kernel(problem, tile, dependent_target(arch)))
        parts.launches.append(_launch(problem, tile, slices, slices_at, arch))
        functor = functor_of(problem.dag, problem.operation.x.data_type, problem.output)
        stored, overlaps = moved_bytes(problem.dag), is_dependent(arch)
        vector = problem.output.vector(functor)
        add_slice_sum(parts, problem.output, functor, vector, slices, slices_at, stored, overlaps=overlaps)
        parts.numerical_notes = tiles.numerical_notes(problem.operation.x.data_type)
        return parts

    def problem_of(self, operation: ConvolutionOperation, matched: Anchored[ConvolutionOperation]) -> _Problem | str:
        if not isinstance(operation, ConvolutionBackwardFilter):
            return "operations: expected a filter gradient"
        return _Problem(operation, matched.epilogue, operation is not matched.anchor)


def _kernel(problem: _Problem, tile: RowTile, target: str) -> KernelRef:
    facts, team = dtypes.info(problem.operation.x.data_type), problem.team
    is_flipped = problem.operation.convolution.mode is ConvolutionMode.CONVOLUTION
    params = Params(
        FLIPPED=int(is_flipped),
        SLAB=min(team.slab, problem.filters),
        DY_COPY=problem.dy_copy,
        BLOCKS_M=team.blocks_m,
        BLOCKS_N=team.blocks_n,
        WARPS_M=team.warps_m,
        WARPS_N=team.warps_n,
        STAGES=tile.stages,
        THREADS=_THREADS,
        MIN_BLOCKS=team.blocks_per_sm,
    )
    parameters = (*macros(problem.rows.params(facts.c_type, tile.height, tile.width)), *macros(params))
    return KernelRef(
        name=f"conv_stem_wgrad_mma_{facts.short_name}_{values_label(parameters)}_{target_label(target)}",
        source="conv/stem/conv_stem_wgrad_mma.cu",
        target=target,
        parameters=parameters,
    )


def _launch(problem: _Problem, tile: RowTile, slices: Slices, slices_at: int, arch: ArchSpec) -> Launch:
    counts, operation = problem.rows.tile_counts(tile.height, tile.width), problem.operation
    count = prod(counts)
    arguments = Struct(
        (
            problem.rows.argument,
            TensorPointer(operation.dy.uid),
            WorkspacePointer(slices_at),
            *i64((slices.pitch, slices.slice_elements)),
            *i32(problem.rows.outputs),
            *problem.rows.tiles_argument(counts),
            *i32((count, slices.splits, problem.filters)),
            Struct(divider(problem.slabs)),
        )
    )
    work = Work(
        flops=operation.flops,
        bytes=bytes_of((operation.x, operation.dy)) + slices.size_bytes,
        unit=MMA_UNITS[operation.x.data_type],
        busy_s=problem.busy_s(tile, arch),
    )
    grid, shared_bytes = (slices.splits * problem.slabs, 1, 1), problem.shared_bytes(tile)
    return Launch(
        0, grid, (_THREADS, 1, 1), (arguments,), shared_bytes, work=work, overlaps_previous=is_dependent(arch)
    )
