"""``conv_narrow_mma``: convolutions of one tap with few channels, forward and backward in the data, for sm_90a.

Stride 1, no padding, one group; fp16, bf16, fp32 by TF32 and int8 forward. Dense channels-last pixels of any whole
number of words, which are read and written in whole stretches of memory: pixels that no tensor map can describe need no
repacking. Any pointwise epilogue with one stored tensor. Kernel: ``conv_narrow_mma.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

from lowdnn import dtypes
from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.arch.targets import WGMMA_TARGET
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Knob,
    Refusal,
)
from lowdnn.engines.conv.refusals import refuse_operand_types, refuse_pixels, refuse_several_taps
from lowdnn.engines.conv.wgmma.pixel_output import pixel_rows
from lowdnn.engines.floor import Contraction, Floor, Floored, Multipliers
from lowdnn.engines.gemm import tiles
from lowdnn.engines.gemm.instructions import MMA_ACCUMULATORS, MMA_UNITS
from lowdnn.engines.gemm.output_space import OutputSpace, full_loads
from lowdnn.engines.gemm.wgmma_output import handing_back
from lowdnn.engines.indices import MAX_INDEX
from lowdnn.engines.launch import BARRIER_BYTES, bytes_of, ceil_div, i32, i64, macros, moved_bytes
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, match_anchored
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import KernelRef, Launch, Struct, TensorPointer, Work
from lowdnn.status import NotSupportedError, Status

#: Bytes of which a bulk copy's addresses and sizes are multiples.
_PIECE_BYTES = 16
_WORD_BYTES = 4
#: Bytes of a pixel's inputs that a product takes at a time.
_CHUNK_BYTES = 64
#: Outputs of a run.
_RUN = 32
_BLOCK_M = 16
_LANE_FILTER_BYTES = 16
#: Most registers of a thread for its inputs.
_MAX_INPUT_WORDS = 64
#: Choices of the blocks of 16 pixels in a tile (TILE_M), the best first.
_BLOCKS_M = (2, 1)
#: Choices of STAGES, the best first.
_STAGES = (3, 2, 1)
#: Threads of a block.
_THREADS = 512
_WARPS = _THREADS // WARP_SIZE
#: Bytes in flight to a multiprocessor that keep the device memory busy.
_ENOUGH_BYTES = 40 << 10


@dataclass(frozen=True)
class Costs:
    """Costs of ``conv_narrow_mma.cu``, fitted on an H200."""

    #: Seconds for each thread's next 16 bytes of the filter, element by element; the first 16 bytes load while the
    #: first tiles do. Fitted to filters of 4 to 42 KiB.
    filter_round_s: float
    #: Share of the time to write the last tiles' outputs that is added, since no inputs are loaded meanwhile.
    last_outputs_share: float
    #: Time of the epilogue's plain loads, which a warp waits for, as a multiple of a copy of as many bytes.
    plain_loads_slowness: float


_COSTS: Final = Costs(filter_round_s=1.8e-6, last_outputs_share=0.15, plain_loads_slowness=2.5)


@dataclass(frozen=True)
class Params:
    """Macros of ``conv_narrow_mma.cu``."""

    TYPE: str
    IN: int
    OUT: int
    BLOCKS_M: int
    STAGES: int
    THREADS: int
    OUTPUT_RANK: int


@dataclass(frozen=True)
class _Tile:
    """A warp's tile: blocks of 16 pixels that it computes at a time, and tiles in flight."""

    blocks_m: int
    stages: int

    @property
    def pixels(self) -> int:
        return self.blocks_m * _BLOCK_M


@dataclass(frozen=True)
class _Problem:
    """A product of dense rows of pixels, ``source`` (x, or dy backward), and the filter."""

    operation: ConvolutionOperation
    dag: PointwiseDag

    @property
    def source(self) -> Tensor:
        return self.operation.response if self._is_backward else self.operation.image

    @property
    def target(self) -> Tensor:
        return self.dag.stores[0]

    @property
    def inputs(self) -> int:
        return self.source.dims[1]

    @property
    def outputs(self) -> int:
        return self.target.dims[1]

    @property
    def pixels(self) -> int:
        return self.source.dims[0] * prod(self.source.dims[2:])

    @cached_property
    def output(self) -> OutputSpace:
        return pixel_rows(self.dag, groups=1, in_parts=False)

    @cached_property
    def filter_strides(self) -> tuple[int, int]:
        """Strides of outputs and inputs in the filter."""
        filters, channels, *_ = self.operation.filter.strides
        return (channels, filters) if self._is_backward else (filters, channels)

    @cached_property
    def chunks(self) -> int:
        """Chunks of a pixel's inputs."""
        return ceil_div(self._in_bytes, _CHUNK_BYTES)

    @cached_property
    def filter_bytes(self) -> int:
        runs = ceil_div(self.outputs, _RUN)
        return runs * (_RUN // 8) * self.chunks * WARP_SIZE * _LANE_FILTER_BYTES

    def tiles(self, arch: ArchSpec) -> tuple[_Tile, ...]:
        """Tiles whose inputs fit the registers and that fit in shared memory, the best first."""
        found = (_Tile(blocks_m, stages) for blocks_m in _BLOCKS_M for stages in _STAGES)
        return tuple(
            tile
            for tile in found
            if tile.blocks_m * self.chunks * 8 <= _MAX_INPUT_WORDS
            and self.shared_bytes(tile) <= arch.shared_bytes_per_block
        )

    def shared_bytes(self, tile: _Tile) -> int:
        stages = tile.stages * (tile.pixels * self._in_bytes + BARRIER_BYTES)
        return self.filter_bytes + _WARPS * (stages + tile.pixels * self._out_bytes)

    def best_tile(self, arch: ArchSpec) -> _Tile:
        """The first tile with at least ``_ENOUGH_BYTES`` in flight, otherwise the tile with the most bytes in
        flight."""
        fitting = self.tiles(arch)
        enough = (tile for tile in fitting if self._coming_bytes(tile) >= _ENOUGH_BYTES)
        return next(enough, max(fitting, key=self._coming_bytes))

    def busy_s(self, tile: _Tile, arch: ArchSpec) -> float:
        """Seconds after the filter of a multiprocessor whose warps all have the most tiles."""
        at_once = tile.pixels * _WARPS * arch.sm_count
        copied = ceil_div(self.pixels, at_once) * at_once * (self._in_bytes + self._out_bytes)
        last = at_once * self._out_bytes * _COSTS.last_outputs_share
        loaded = bytes_of(full_loads(self.dag, self.output)) * _COSTS.plain_loads_slowness
        filter_rounds = self.filter_bytes / (_THREADS * _LANE_FILTER_BYTES) - 1
        return (copied + last + loaded) / arch.copy_bytes_per_s + max(filter_rounds, 0) * _COSTS.filter_round_s

    @property
    def functor(self) -> Functor:
        return handing_back(self.dag, self.output, MMA_ACCUMULATORS[self.source.data_type])

    def _coming_bytes(self, tile: _Tile) -> int:
        return _WARPS * tile.stages * tile.pixels * self._in_bytes

    @property
    def _is_backward(self) -> bool:
        return isinstance(self.operation, ConvolutionBackwardData)

    @property
    def _in_bytes(self) -> int:
        return self.inputs * self.source.element_bytes

    @property
    def _out_bytes(self) -> int:
        return self.outputs * self.target.element_bytes


class ConvNarrowMma(ProblemEngine["_Problem"], Floored):
    """See the module's docstring."""

    name = "conv_narrow_mma"
    index = 39
    numerical_notes = tiles.NUMERICAL_NOTES
    anchors: Anchors = (ConvolutionForward, ConvolutionBackwardData)
    limits = reduced(ConvolutionOperation)
    target = WGMMA_TARGET

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses several taps or groups, strides, pixels that are not dense, and filters that do not fit."""
        problem = _problem_of(graph)
        if isinstance(problem, Refusal) or problem.tiles(arch):
            return problem
        reason = f"expected filters of at most {arch.shared_bytes_per_block} bytes of shared memory besides the pixels'"
        return Refusal(
            self.name,
            f"{problem.operation.label}.filter.dims: {reason}, got {problem.filter_bytes}",
            Status.NOT_SUPPORTED_SHAPE,
        )

    def floor(self, contraction: Contraction) -> Floor:
        """One launch."""
        return Floor(Multipliers.MMA_SYNC)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M, the pixels of a warp's tile; STAGES, its tiles in flight."""
        fitting, best = problem.tiles(arch), problem.best_tile(arch)
        pixels = tuple(sorted({tile.pixels for tile in fitting}))
        stages = tuple(sorted({tile.stages for tile in fitting}))
        return (
            Knob("tile_m", KnobType.TILE_M, pixels, best.pixels, "pixels of a warp's tile"),
            Knob("stages", KnobType.STAGES, stages, best.stages, "tiles in flight to a warp"),
        )

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch."""
        tile = _Tile(chosen[KnobType.TILE_M] // _BLOCK_M, chosen[KnobType.STAGES])
        if tile not in (fitting := problem.tiles(arch)):
            allowed = ", ".join(f"{found.pixels}x{found.stages}" for found in fitting)
            got = f"{tile.pixels}x{tile.stages}"
            raise NotSupportedError.at(f"{self.name}.TILE_M x STAGES", expected=f"one of {allowed}", got=got)
        functor = problem.functor
        step = _kernel(problem, tile, functor), _launch(problem, tile, functor, arch)
        return PlanParts([step], numerical_notes=tiles.numerical_notes(problem.source.data_type))


def _problem_of(graph: OperationGraph) -> _Problem | Refusal:
    name = ConvNarrowMma.name
    matched = match_anchored(graph, ConvolutionOperation)
    if isinstance(matched, str):
        return Refusal(name, matched)
    operation = matched.anchor
    if isinstance(operation, ConvolutionBackwardFilter) or len(matched.epilogue.stores) != 1:
        return Refusal(name, "operations: expected one stored output or data gradient")
    problem = _Problem(operation, matched.epilogue)
    if refusal := refuse_operand_types(name, operation):
        return refusal
    if refused := _refuse_shape(problem):
        return Refusal(name, f"{operation.label}.{refused}", Status.NOT_SUPPORTED_SHAPE)
    return problem


def _refuse_shape(problem: _Problem) -> str:
    """Why the operation is no product of dense rows, or an empty string."""
    operation = problem.operation
    if refused := refuse_several_taps(operation):
        return refused
    if problem.pixels > MAX_INDEX:
        return f"image.dims: expected at most {MAX_INDEX} pixels, got {problem.pixels}"
    for tensor in (problem.source, problem.target):
        if refused := refuse_pixels(tensor, _PIECE_BYTES):
            return refused
        if tensor.element_count * tensor.element_bytes % _PIECE_BYTES:
            return f"{tensor.label}.dims: expected whole pieces of {_PIECE_BYTES} bytes, got {list(tensor.dims)}"
        if tensor.dims[1] * tensor.element_bytes % _WORD_BYTES:
            return f"{tensor.label}.dims[1]: expected whole words of channels, got {tensor.dims[1]}"
    return ""


def _kernel(problem: _Problem, tile: _Tile, functor: Functor) -> KernelRef:
    facts = dtypes.info(problem.source.data_type)
    params = Params(
        TYPE=facts.c_type,
        IN=problem.inputs,
        OUT=problem.outputs,
        BLOCKS_M=tile.blocks_m,
        STAGES=tile.stages,
        THREADS=_THREADS,
        OUTPUT_RANK=problem.output.space.rank,
    )
    shape = f"{params.IN}to{params.OUT}_m{tile.blocks_m}s{tile.stages}"
    return KernelRef(
        name=f"conv_narrow_mma_{facts.short_name}_{shape}_r{params.OUTPUT_RANK}_sm90a_{functor.digest}",
        source="conv/narrow/conv_narrow_mma.cu",
        target=WGMMA_TARGET,
        parameters=macros(params),
        generated=functor.text,
    )


def _launch(problem: _Problem, tile: _Tile, functor: Functor, arch: ArchSpec) -> Launch:
    operation, count = problem.operation, ceil_div(problem.pixels, tile.pixels)
    arguments = Struct(
        (
            TensorPointer(problem.source.uid),
            TensorPointer(operation.filter.uid),
            TensorPointer(problem.target.uid),
            *i64(problem.filter_strides),
            *i32((problem.pixels, count)),
            problem.output.map,
            functor.arguments,
        )
    )
    padded = ceil_div(problem.outputs, _RUN) * _RUN * problem.chunks * _CHUNK_BYTES // problem.source.element_bytes
    work = Work(
        flops=2 * count * tile.pixels * padded,
        bytes=bytes_of((problem.source, operation.filter)) + moved_bytes(problem.dag),
        unit=MMA_UNITS[problem.source.data_type],
        busy_s=problem.busy_s(tile, arch),
    )
    blocks = min(arch.sm_count, ceil_div(count, _WARPS))
    return Launch(
        0, (blocks, 1, 1), (_THREADS, 1, 1), (arguments,), problem.shared_bytes(tile), work=work, overlaps_previous=True
    )
