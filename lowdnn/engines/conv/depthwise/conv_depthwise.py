"""``conv_depthwise``: convolutions with one channel in each group, in three directions, summed in fp32.

Forward pass, data gradient and filter gradient; 1 to 3 spatial axes, any strides, dilations, paddings and layouts,
several filters for each channel, flipped filters; fp16, bf16 and fp32. Any pointwise epilogue; one of its values may be
reduced for each channel and as a whole, except in a filter gradient.
Kernels: ``conv_depthwise.cu`` (forward pass and data gradient) and ``reduction/reduction_combine.cu``;
``conv_depthwise_filter.cu`` and ``conv_depthwise_filter_sum.cu`` (filter gradient, in shares that are added in a fixed
order).
``conv_depthwise_planes.cu`` and ``conv_depthwise_filter_planes.cu`` replace the first of each over planes without
strides, for long filters of lines, and for gradients of many small images that are faster walked along than down the
rows of each.
With taps along one axis, where that is faster: ``conv_depthwise_lines.cu``, on tensor cores
``conv_depthwise_lines_mma.cu``, and ``conv_depthwise_filter_lines.cu``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.conv.depthwise import filter_sum, planes, rows
from lowdnn.engines.conv.depthwise.choice import PLANNERS, Gradient, Problem, knobs_of, problem_of
from lowdnn.engines.conv.depthwise.correlation import Correlation, RowsTile
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.planes import PlaneCorrelation
from lowdnn.engines.gemm.epilogue_reductions import NO_REDUCTIONS, EpilogueReductions
from lowdnn.engines.gemm.output_space import output_space
from lowdnn.engines.launch import aligned_bytes, dependent_target, is_dependent
from lowdnn.engines.limits import reduced
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, AnchoredWithReductions, match_anchored_with_reductions
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.status import NotSupportedError, Status


class ConvDepthwise(ProblemEngine[Problem]):
    """See the module's docstring."""

    name = "conv_depthwise"
    index = 11
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> Problem | Refusal:
        """Refuses groups of several channels, other data types, and filters that do not fit in registers."""
        matched = match_anchored_with_reductions(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        geometry = DepthwiseGeometry.of(Anchored(matched.anchor, matched.epilogue))
        reason = geometry.refuse()
        if reason:
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        reductions = _reductions_of(matched)
        if isinstance(reductions, str):
            return Refusal(self.name, reductions)
        problem = problem_of(geometry, reductions, arch)
        if isinstance(problem, str):
            return Refusal(self.name, problem, Status.NOT_SUPPORTED_SHAPE)
        return problem

    def knobs_of(self, problem: Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """A thread's work: LOAD_SIZE channels, TILE_COLS columns, TILE_ROWS rows, STAGES rows read ahead.

        BLOCK_SIZE: threads of the forward pass and the data gradient.  SPLIT_K_SLC: shares of the filter gradient.
        Along planes, BLOCK_CHANNELS counts the words of channels of a block, BLOCK_ROWS and BLOCK_COLS its threads
        along rows and columns, STAGES the planes in shared memory, SPLIT_P_SLC parts of the planes.
        Along lines, CHANNEL_LANES counts the channels of a warp, BLOCK_COLS a block's threads along a line (on tensor
        cores its strips of targets), BLOCK_CHANNELS and BLOCK_BATCHES its rows of channels and of batches. TILEK counts
        positions of a thread of the filter gradient, WARP_TILES the tiles of a warp's task on tensor cores.
        """
        return knobs_of(problem, arch)

    def parts(self, problem: Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch and one for each reduction; two for a filter gradient; none if the output is empty."""
        tile = PLANNERS[type(problem)].tile_of(problem, chosen)
        if isinstance(tile, str):
            raise NotSupportedError(f"{self.name}.{tile}")
        parts = _parts(problem, tile, arch)
        overlaps = is_dependent(arch) and not (
            isinstance(problem, PlaneCorrelation) and planes.crowds(problem, chosen, arch)
        )
        parts.launches = [replace(launch, overlaps_previous=overlaps) for launch in parts.launches]
        return parts


def _parts(problem: Problem, tile: Any, arch: ArchSpec) -> PlanParts:
    if isinstance(problem, Gradient):
        return _filter_parts(problem, tile, arch)
    if isinstance(problem, Correlation):
        return _rows_parts(problem, tile, arch)
    planner = PLANNERS[type(problem)]
    functor = planner.functor_of(problem, tile)
    kernel = planner.kernel(problem, tile, functor, dependent_target(arch))
    return PlanParts([(kernel, planner.launch(problem, tile, functor))])


def _rows_parts(problem: Correlation, tile: RowsTile, arch: ArchSpec) -> PlanParts:
    parts, functor, left = PlanParts(), rows.functor_of(problem, tile), problem.reduction_slices(tile)
    totals = problem.reductions.reserve(parts, left)
    kernel = rows.kernel(problem, tile, functor, dependent_target(arch))
    parts.add(kernel, rows.launch(problem, tile, functor, totals))
    problem.reductions.combine(parts, left, totals, overlaps=is_dependent(arch))
    return parts


def _filter_parts(gradient: Gradient, tile: Any, arch: ArchSpec) -> PlanParts:
    """The launches that write slices of sums, and that add them."""
    planner, functor = PLANNERS[type(gradient)], filter_sum.functor_of(gradient.geometry)
    target, slices = dependent_target(arch), planner.slice_count(gradient, tile)
    product = planner.filter_kernel(gradient, tile, target), planner.filter_launch(gradient, tile, 0)
    summed = filter_sum.sum_launch(gradient.geometry, slices, functor, 0)
    steps = (product, (filter_sum.sum_kernel(functor, target), summed))
    return PlanParts(steps, aligned_bytes(slices * gradient.elements * 4))


def _reductions_of(matched: AnchoredWithReductions[ConvolutionOperation]) -> EpilogueReductions | str:
    """The reductions, or why the kernels do not compute them."""
    if not matched.reductions:
        return NO_REDUCTIONS
    name, dag = type(matched.reductions[0]).__name__, matched.epilogue
    if isinstance(matched.anchor, ConvolutionBackwardFilter):
        return f"operations: expected a filter gradient without reductions, got {name}"
    pixels = (0, *range(2, len(dag.dims)))
    reductions = EpilogueReductions.of(matched.reductions, dag, output_space(dag, pixels, (1,), kept=(1,), operands={}))
    if isinstance(reductions, EpilogueReductions) and reductions.row:
        return f"{name}: expected results for channels or for everything, got pixels"
    return reductions
