"""``conv_stem_dgrad_mma``: data gradients of first layers, of at most 4 channels, written in place.

One group, fp16 and bf16, no dilation in the last two axes, alpha 1 and beta 0, no operation after the gradient. The
gradient has dense channels-last rows, and the response dense channels-last pixels, which are repacked if they are not
whole pieces of 16 bytes. Kernel: ``conv_stem_dgrad_mma.cu``.
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
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.refusals import refuse_nothing, refuse_operand_types
from lowdnn.engines.conv.stem.rows import AXES, PIECE_BYTES, StemRows, filter_walk, values_label
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_UNITS
from lowdnn.engines.gemm.packing import Packing, packed_operand
from lowdnn.engines.launch import (
    bytes_of,
    ceil_div,
    dependent_target,
    divider,
    i32,
    i64,
    is_dependent,
    macros,
    target_label,
)
from lowdnn.engines.limits import reduced
from lowdnn.engines.model.clock import overlap
from lowdnn.engines.model.occupancy import resident_blocks
from lowdnn.engines.model.products import ProductCosts
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Pointer, Struct, TensorPointer, Work
from lowdnn.status import Status

_DATA_TYPES = frozenset({DataType.HALF, DataType.BFLOAT16})
#: Positions of a block of m.
_BLOCK_M = 16
#: Elements of a block of n.
_BLOCK_N = 8
#: Bytes of a lane's filters.
_LANE_BYTES = 16
#: Bytes of the filters that a product takes at a time.
_CHUNK_BYTES = 64
#: Choices of the blocks of positions of a warp.
_BLOCKS_M = (1, 2, 3, 4, 5)
#: Choices of the steps of rows that a warp walks.
_GROUPS = (4, 8, 16, 32)
_THREADS = 128
_WARPS = _THREADS // WARP_SIZE
#: Most registers of a thread for sums and inputs.
_MOST_REGISTERS = 190
#: Further registers of a thread.
_OTHER_REGISTERS = 48
_MAX_BLOCKS_PER_SM = 5
_MAX_FILTER_BYTES = 96 << 10
_PRODUCTS: Final = ProductCosts(product_clocks=1.5, read_clocks=0.7)
#: Warps on a multiprocessor for which products take twice as long as with many warps, fitted on an H200.
_SLOW_WARPS: Final = 12
#: Share of the shorter of arithmetic and copying that the longer one does not hide, fitted on an H200.
_EXPOSED: Final = 0.9


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_stem_dgrad_mma.cu``."""

    TYPE: str
    CHANNELS: int
    FILTERS: int
    TAPS_0: int
    TAPS_1: int
    TAPS_2: int
    STRIDE_0: int
    STRIDE_1: int
    STRIDE_2: int
    GAP_0: int
    PAD_0: int
    PAD_1: int
    BASE: int
    SHIFT: int
    BLOCKS_M: int
    GROUP: int
    TOGETHER: int
    THREADS: int
    MIN_BLOCKS: int


@dataclass(frozen=True)
class _Tile:
    """Blocks of 16 positions of a warp, and the steps of rows that it walks."""

    blocks_m: int
    group: int


@dataclass(frozen=True)
class _Problem:
    operation: ConvolutionBackwardData

    @cached_property
    def rows(self) -> StemRows:
        return StemRows(self.operation)

    @property
    def response(self) -> Tensor:
        return self.operation.dy

    @cached_property
    def packing(self) -> Packing | None:
        """The packing of a response whose pixels are not whole pieces."""
        size = self.response.element_bytes
        if self.response.dims[1] * size % PIECE_BYTES == 0 and self.response.alignment_bytes >= PIECE_BYTES:
            return None
        return Packing(self.response, 1, PIECE_BYTES)

    @property
    def filters(self) -> int:
        return self.packing.channels if self.packing else self.response.dims[1]

    @property
    def response_strides(self) -> tuple[int, ...]:
        """Strides of images, planes and rows."""
        images, _, *spatial = self.packing.strides if self.packing else self.response.strides
        return (images, *((0,) * (AXES - len(spatial)) + tuple(spatial))[:2])

    @cached_property
    def chunks(self) -> int:
        return ceil_div(self.filters * self.response.element_bytes, _CHUNK_BYTES)

    @property
    def shift(self) -> int:
        """Columns by which positions begin before the padding does, so that pairs of elements are whole words."""
        return int(self.rows.step % 2 == 0 and self.rows.paddings[2] * self.rows.channels % 2)

    @property
    def base(self) -> int:
        return self.rows.paddings[2] + self.shift

    @property
    def shifts(self) -> int:
        return ceil_div(self.rows.taps[2] + self.shift, self.rows.strides[2])

    @property
    def column_blocks(self) -> int:
        return ceil_div(self.rows.step, _BLOCK_N)

    @property
    def open_rows(self) -> int:
        return max(self.rows.taps[1], self.rows.strides[1])

    @property
    def positions(self) -> tuple[int, int]:
        """Positions of a row: the first one, and the end after the last one."""
        return self._span(self.base, self.rows.strides[2], self.operation.dx.dims[-1])

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of a plane's rows: the first one, and the end after the last one."""
        return self._span(self.rows.paddings[1], self.rows.strides[1], self.rows.extents[1])

    @property
    def width(self) -> int:
        """Elements of a store."""
        places = (self.rows.step, self.base * self.rows.channels, self.rows.extents[2], *self.rows.image_strides)
        is_aligned = self.operation.dx.alignment_bytes >= 2 * self.operation.dx.element_bytes
        return 2 if is_aligned and not any(place % 2 for place in places) else 1

    @property
    def filter_bytes(self) -> int:
        taps_0, taps_1, _ = self.rows.taps
        return taps_0 * self.chunks * self.shifts * taps_1 * self.column_blocks * WARP_SIZE * _LANE_BYTES

    def registers(self, blocks_m: int) -> int:
        """Registers of a thread for sums and inputs."""
        return self.open_rows * self.column_blocks * blocks_m * 4 + (blocks_m + self.shifts - 1) * 8

    def blocks_per_sm(self, tile: _Tile, arch: ArchSpec) -> int:
        """Blocks that shared memory and registers let share a multiprocessor."""
        registers = self.registers(tile.blocks_m) + _OTHER_REGISTERS
        blocks = resident_blocks(arch, _THREADS, registers, self.filter_bytes)
        return max(min(blocks, _MAX_BLOCKS_PER_SM), 1)

    def tiles(self) -> Iterator[_Tile]:
        """Tiles whose sums and inputs fit the registers."""
        for blocks_m in _BLOCKS_M:
            if self.registers(blocks_m) <= _MOST_REGISTERS:
                yield from (_Tile(blocks_m, group) for group in _GROUPS)

    def units(self, tile: _Tile) -> tuple[int, ...]:
        """Images, planes, groups of rows and segments of rows."""
        (first, end), (begin, stop) = self.positions, self.steps
        segments = ceil_div(end - first, tile.blocks_m * _BLOCK_M)
        return self.rows.image.dims[0], self.rows.extents[0], ceil_div(stop - begin, tile.group), segments

    def busy_s(self, tile: _Tile, arch: ArchSpec) -> float:
        """Seconds of the multiprocessor with the most units."""
        at_once = _WARPS * self.blocks_per_sm(tile, arch)
        rounds = ceil_div(prod(self.units(tile)), at_once * arch.sm_count)
        taps_0, taps_1, _ = self.rows.taps
        blocks_n = self.shifts * taps_1 * self.column_blocks
        products, lines = blocks_n * tile.blocks_m * 2, blocks_n * 4 + (tile.blocks_m + self.shifts - 1) * 8
        reach = (taps_1 - 1) // self.rows.strides[1]
        row_taps = ceil_div(taps_0, self.rows.strides[0])
        row_clocks = row_taps * self.chunks * _PRODUCTS.clocks(products, lines)
        slowness = 1 + _SLOW_WARPS / at_once
        compute_s = rounds * at_once * (tile.group + reach) * row_clocks * slowness / arch.clock_hz
        copied_s = bytes_of((self.response, self.operation.dx)) / arch.copy_bytes_per_s
        return overlap(compute_s, copied_s, _EXPOSED)

    @staticmethod
    def _span(padding: int, stride: int, extent: int) -> tuple[int, int]:
        return padding // stride, (extent - 1 + padding) // stride + 1


class ConvStemDgradMma(ProblemEngine["_Problem"], Floored):
    """See the module's docstring."""

    name = "conv_stem_dgrad_mma"
    index = 42
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionBackwardData,)
    limits = reduced(*anchors)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses groups, more than 4 channels, dilation in the last two axes, epilogues, and tensors that are not
        dense.
        """
        operation, *others = graph.operations
        if others or not isinstance(operation, ConvolutionBackwardData) or (operation.alpha, operation.beta) != (1, 0):
            return Refusal(self.name, "operations: expected a data gradient alone, with alpha 1 and beta 0")
        if refusal := refuse_operand_types(self.name, operation, _DATA_TYPES):
            return refusal
        if (got := operation.dx.data_type) is not (expected := operation.dy.data_type):
            reason = f"{operation.label}.dx.data_type: expected {expected.name} as dy, got {got.name}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_DATA_TYPE)
        problem = _Problem(operation)
        if refused := refuse_nothing(operation):
            return Refusal(self.name, refused)
        if refused := _refuse_shape(problem):
            return Refusal(self.name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
        return problem

    def floor(self, contraction: Contraction) -> Floor:
        """One launch."""
        return Floor(Multipliers.MMA_SYNC)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, positions of a warp; TILE_ROWS, the steps of rows that it walks."""
        fitting = tuple(problem.tiles())
        best = min(fitting, key=lambda tile: problem.busy_s(tile, arch))
        positions = tuple(sorted({tile.blocks_m * _BLOCK_M for tile in fitting}))
        return (
            Knob("tile_m", KnobType.TILE_M, positions, best.blocks_m * _BLOCK_M, "positions of a warp"),
            Knob("tile_rows", KnobType.TILE_ROWS, _GROUPS, best.group, "steps of rows that a warp walks"),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """A repacking launch if necessary, and the gradient."""
        tile = _Tile(chosen[KnobType.TILE_M] // _BLOCK_M, chosen[KnobType.TILE_ROWS])
        parts = PlanParts(numerical_notes=tiles.numerical_notes(problem.response.data_type))
        dy = packed_operand(parts, problem.response.uid, problem.packing, overlaps=is_dependent(arch))
        kernel = parts.kernel(_kernel(problem, tile, arch))
        parts.launches.append(_launch(problem, tile, kernel, dy, arch))
        return parts


def _refuse_shape(problem: _Problem) -> str:
    rows = problem.rows
    if refused := rows.refuse_shape():
        return refused
    if rows.taps[1] > 1 and rows.gaps[1] > 1:
        return f"convolution.dilations: expected none in the last two axes, got {rows.gaps[1]}"
    if refused := rows.refuse_response():
        return refused
    if next(problem.tiles(), None) is None or problem.filter_bytes > _MAX_FILTER_BYTES:
        taps, strides = list(rows.taps), list(rows.strides)
        return f"w.dims: expected fewer filters, taps or strides, got {problem.filters}, {taps} and {strides}"
    return ""


def _kernel(problem: _Problem, tile: _Tile, arch: ArchSpec) -> KernelRef:
    facts, rows = dtypes.info(problem.response.data_type), problem.rows
    taps, strides, paddings = rows.taps, rows.strides, rows.paddings
    params = Params(
        TYPE=facts.c_type,
        CHANNELS=rows.channels,
        FILTERS=problem.filters,
        TAPS_0=taps[0],
        TAPS_1=taps[1],
        TAPS_2=taps[2],
        STRIDE_0=strides[0],
        STRIDE_1=strides[1],
        STRIDE_2=strides[2],
        GAP_0=rows.gaps[0],
        PAD_0=paddings[0],
        PAD_1=paddings[1],
        BASE=problem.base,
        SHIFT=problem.shift,
        BLOCKS_M=tile.blocks_m,
        GROUP=tile.group,
        TOGETHER=problem.width,
        THREADS=_THREADS,
        MIN_BLOCKS=problem.blocks_per_sm(tile, arch),
    )
    target = dependent_target(arch)
    label = f"{values_label(macros(params))}_{target_label(target)}"
    return KernelRef(
        name=f"conv_stem_dgrad_mma_{facts.short_name}_{label}",
        source="conv/stem/conv_stem_dgrad_mma.cu",
        target=target,
        parameters=macros(params),
    )


def _launch(problem: _Problem, tile: _Tile, kernel: int, dy: Pointer, arch: ArchSpec) -> Launch:
    operation, rows, units = problem.operation, problem.rows, problem.units(tile)
    count = prod(units)
    first, strides = filter_walk(operation)
    arguments = Struct(
        (
            dy,
            TensorPointer(operation.w.uid),
            TensorPointer(operation.dx.uid),
            *i64((*problem.response_strides, *rows.image_strides, first, *strides)),
            *i32((operation.w.dims[0], *rows.extents, *rows.outputs, *problem.steps, problem.positions[0])),
            *(Struct(divider(extent)) for extent in units),
            *i32((count,)),
        )
    )
    work = Work(
        flops=operation.flops,
        bytes=bytes_of((problem.response, operation.w, operation.dx)),
        unit=MMA_UNITS[problem.response.data_type],
        busy_s=problem.busy_s(tile, arch),
    )
    blocks = min(arch.sm_count * problem.blocks_per_sm(tile, arch), ceil_div(count, _WARPS))
    return Launch(
        kernel,
        (blocks, 1, 1),
        (_THREADS, 1, 1),
        (arguments,),
        problem.filter_bytes,
        work=work,
        overlaps_previous=is_dependent(arch),
    )
