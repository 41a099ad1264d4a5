"""``conv_depthwise``: convolutions with one channel in each group, in three directions, summed in fp32.

Forward pass, data gradient and filter gradient; 1 to 3 spatial axes, any strides, dilations, paddings and layouts,
several filters for each channel, flipped filters; fp16, bf16 and fp32. Any pointwise epilogue, of which a value may be
reduced on its way, for each channel and as a whole; not behind a filter gradient.
Kernels: ``conv_depthwise.cu`` (forward pass and data gradient) and ``reduction/reduction_combine.cu``;
``conv_depthwise_filter.cu`` and ``conv_depthwise_filter_sum.cu`` (filter gradient, in shares that are added in a fixed
order). Over planes without strides, for long filters of lines and for gradients of many small images that are faster
walked along than each down its rows, ``conv_depthwise_planes.cu`` and ``conv_depthwise_filter_planes.cu`` in place of
the first of each.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, plan_of, resolve_choices
from lowdnn.engines.conv.depthwise import filter_gradient, filter_planes, planes, rows
from lowdnn.engines.conv.depthwise.filter_gradient import FilterGradient
from lowdnn.engines.conv.depthwise.filter_planes import PlaneFilterGradient
from lowdnn.engines.conv.depthwise.geometry import DepthwiseGeometry
from lowdnn.engines.conv.depthwise.planes import PlaneCorrelation
from lowdnn.engines.conv.depthwise.rows import Correlation
from lowdnn.engines.gemm.exits import NO_EXITS, OutputExits
from lowdnn.engines.gemm.output_space import output_space
from lowdnn.engines.gemm.plan_parts import PlanParts
from lowdnn.engines.launch import dependent_target, is_dependent
from lowdnn.engines.limits import reduced
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import Anchored, AnchoredWithExits, match_anchored_with_exits
from lowdnn.ops.convolution import ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import NotSupportedError, Status

#: Images from which on it may be faster to walk along them, and the positions of their largest responses (measured);
#: the share of the other walk's estimated time that this one's is then to be below: the estimates are of two models.
_LEAST_IMAGES = 16
_MOST_POSITIONS = 28 * 28
_WALK_SHARE = 0.85

Problem = Correlation | PlaneCorrelation | FilterGradient | PlaneFilterGradient


class ConvDepthwise:
    """See the module's docstring."""

    name = "conv_depthwise"
    index = 11
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (ConvolutionOperation,)
    limits = reduced(ConvolutionOperation)

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses groups of several channels, other data types, and filters that do not fit registers."""
        problem = graph.derive(self._problem, arch)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """What a thread works on: LOAD_SIZE channels, TILE_COLS columns, TILE_ROWS rows, STAGES rows read ahead.

        BLOCK_SIZE of the forward pass and the data gradient; SPLIT_K_SLC of the filter gradient. Along planes LOAD_SIZE
        counts the words of channels of a block, TILE_M and TILE_N its threads along rows and columns, STAGES planes in
        shared memory; SPLIT_P_SLC parts of the planes.
        """
        return _knobs(self._accepted(graph, arch), arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch and one for each exit, two for a filter gradient, none where the output is empty."""
        chosen = resolve_choices(self.name, graph.derive(self.knobs, arch), choices)
        problem = self._accepted(graph, arch)
        plan = self._plan(problem, graph, arch, chosen)
        overlaps = is_dependent(arch) and not (
            isinstance(problem, PlaneCorrelation) and planes.crowds(problem, chosen, arch)
        )
        launches = (replace(launch, overlaps_previous=overlaps) for launch in plan.launches)
        return replace(plan, launches=tuple(launches))

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _plan(self, problem: Problem, graph: OperationGraph, arch: ArchSpec, chosen: Choices) -> Plan:
        if isinstance(problem, FilterGradient):
            return self._filter_plan(problem, graph, arch, chosen)
        if isinstance(problem, PlaneFilterGradient):
            return self._filter_planes_plan(problem, graph, arch, chosen)
        if isinstance(problem, PlaneCorrelation):
            return self._planes_plan(problem, graph, arch, chosen)
        tile = rows.tile_of(problem, chosen)
        if isinstance(tile, str):
            raise NotSupportedError(f"{self.name}.{tile}")
        parts, functor, left = PlanParts(), rows.functor_of(problem, tile), problem.exit_slices(tile)
        totals = problem.exits.reserve(parts, left)
        parts.kernel(rows.kernel(problem, tile, functor, dependent_target(arch)))
        parts.launches.append(rows.launch(problem, tile, functor, totals))
        problem.exits.combine(parts, left, totals, overlaps=is_dependent(arch))
        return plan_of(self, graph, arch, chosen, parts.kernels, tuple(parts.launches), parts.workspace_bytes)

    def _planes_plan(
        self, correlation: PlaneCorrelation, graph: OperationGraph, arch: ArchSpec, chosen: Choices
    ) -> Plan:
        tile = planes.tile_of(correlation, chosen)
        if isinstance(tile, str):
            raise NotSupportedError(f"{self.name}.{tile}")
        functor = planes.functor_of(correlation)
        kernels = (planes.kernel(correlation, tile, functor, dependent_target(arch)),)
        return plan_of(self, graph, arch, chosen, kernels, (planes.launch(correlation, tile, functor),))

    def _filter_plan(self, gradient: FilterGradient, graph: OperationGraph, arch: ArchSpec, chosen: Choices) -> Plan:
        tile = filter_gradient.tile_of(gradient, chosen)
        if isinstance(tile, str):
            raise NotSupportedError(f"{self.name}.{tile}")
        functor, target = filter_gradient.functor_of(gradient.geometry), dependent_target(arch)
        kernels = (filter_gradient.filter_kernel(gradient, tile, target), filter_gradient.sum_kernel(functor, target))
        launches = (
            filter_gradient.filter_launch(gradient, tile, 0),
            filter_gradient.sum_launch(gradient.geometry, tile.shares, functor, 0),
        )
        return plan_of(self, graph, arch, chosen, kernels, launches, filter_gradient.slices_bytes(gradient, tile))

    def _filter_planes_plan(
        self, gradient: PlaneFilterGradient, graph: OperationGraph, arch: ArchSpec, chosen: Choices
    ) -> Plan:
        tile = filter_planes.tile_of(gradient, chosen)
        if isinstance(tile, str):
            raise NotSupportedError(f"{self.name}.{tile}")
        functor, target = filter_gradient.functor_of(gradient.geometry), dependent_target(arch)
        kernels = (filter_planes.filter_kernel(gradient, tile, target), filter_gradient.sum_kernel(functor, target))
        shares = filter_planes.slices_bytes(gradient, tile)
        launches = (
            filter_planes.filter_launch(gradient, tile, 0),
            filter_gradient.sum_launch(gradient.geometry, gradient.slice_count(tile), functor, 0),
        )
        return plan_of(self, graph, arch, chosen, kernels, launches, shares)

    def _accepted(self, graph: OperationGraph, arch: ArchSpec) -> Problem:
        problem = graph.derive(self._problem, arch)
        if isinstance(problem, Refusal):
            raise NotSupportedError(str(problem))
        return problem

    def _problem(self, graph: OperationGraph, arch: ArchSpec) -> Problem | Refusal:
        matched = match_anchored_with_exits(graph, ConvolutionOperation)
        if isinstance(matched, str):
            return Refusal(self.name, matched)
        geometry = DepthwiseGeometry.of(Anchored(matched.anchor, matched.epilogue))
        reason = geometry.refuse()
        if reason:
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        exits = _exits_of(matched)
        if isinstance(exits, str):
            return Refusal(self.name, exits)
        is_filter = isinstance(matched.anchor, ConvolutionBackwardFilter)
        walk = PlaneFilterGradient(geometry.along_columns) if is_filter else PlaneCorrelation(geometry.along_columns)
        can_walk = exits is NO_EXITS and not walk.refuse()
        if can_walk and not geometry.has_single_planes:
            return walk
        problem = FilterGradient(geometry) if is_filter else Correlation(geometry, exits)
        reason = problem.refuse()
        if reason:
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE)
        may_pay = can_walk and _may_walk_along_images(geometry)
        return walk if may_pay and _estimated_s(walk, arch) < _WALK_SHARE * _estimated_s(problem, arch) else problem


def _may_walk_along_images(geometry: DepthwiseGeometry) -> bool:
    """Of many small ones: filter gradients without strides and data gradients with them (measured)."""
    has_strides = any(axis.stride > 1 for axis in geometry.axes)
    directed = ConvolutionBackwardData if has_strides else ConvolutionBackwardFilter
    is_small = prod(axis.response for axis in geometry.axes) <= _MOST_POSITIONS
    return isinstance(geometry.operation, directed) and is_small and geometry.images >= _LEAST_IMAGES


def _exits_of(matched: AnchoredWithExits[ConvolutionOperation]) -> OutputExits | str:
    """The reductions, or why the kernels do not compute them."""
    if not matched.exits:
        return NO_EXITS
    name, dag = type(matched.exits[0]).__name__, matched.epilogue
    if isinstance(matched.anchor, ConvolutionBackwardFilter):
        return f"operations: expected a filter gradient without reductions, got {name}"
    pixels = (0, *range(2, len(dag.dims)))
    exits = OutputExits.of(matched.exits, dag, output_space(dag, pixels, (1,), kept=(1,), operands={}))
    if isinstance(exits, OutputExits) and exits.row:
        return f"{name}: expected results for channels or for everything, got pixels"
    return exits


def _estimated_s(problem: Problem, arch: ArchSpec) -> float:
    """Of the fastest tile."""
    if isinstance(problem, FilterGradient):
        return filter_gradient.estimated_s(problem, filter_gradient.best_tile(problem, arch), arch)
    if isinstance(problem, PlaneFilterGradient):
        return filter_planes.estimated_s(problem, filter_planes.best_tile(problem, arch), arch)
    if isinstance(problem, PlaneCorrelation):
        return planes.estimated_s(problem, planes.best_tile(problem, arch), arch)
    return rows.estimated_s(problem, rows.best_tile(problem, arch), arch)


def _knobs(problem: Problem, arch: ArchSpec) -> tuple[Knob, ...]:
    if isinstance(problem, FilterGradient):
        return filter_gradient.knobs(problem, arch)
    if isinstance(problem, PlaneFilterGradient):
        return filter_planes.knobs(problem, arch)
    if isinstance(problem, PlaneCorrelation):
        return planes.knobs(problem, arch)
    return rows.knobs(problem, arch)
