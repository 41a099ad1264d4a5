"""``reduction``: reductions over any axes in one launch, or in two if one output is too much for a block.

The pointwise operations before the reduction run on the elements as they are read, those after it on the result. If the
axis that is contiguous in memory is reduced, a team of threads reduces its elements (``reduction_rows.cu``); if it is
kept, each thread owns neighbouring outputs (``reduction_columns.cu``). If that gives too few blocks for the device,
each output is cut into slices, whose totals a second launch combines (``reduction_combine.cu``). Many short rows that
lie one after the other in memory, aligned or not, are read as one row (``reduction_short_rows.cu``). The order of
summation depends only on the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec, all_specs
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X, aligned_bytes, ceil_div, ceil_power, floor_power, is_dependent
from lowdnn.engines.limits import fused
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.reduction.layout import MAX_VECTOR, ReductionLayout, layout_of
from lowdnn.engines.reduction.samples import samples
from lowdnn.engines.reduction.short_rows import FEWEST_OUTPUTS, ShortRows
from lowdnn.engines.reduction.stages import BLOCKS_PER_SM, THREADS, Stages, blocks_of_slice, threads_per_output
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.reduction_pattern import FusedReduction, match_reduction
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.reduction import ReductionOperation
from lowdnn.plan import KernelRef
from lowdnn.status import Status

_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_UNROLLS = (1, 2, 4, 8)
_SLICES = tuple(1 << power for power in range(11))
#: Blocks for each multiprocessor beyond which longer columns of a thread pay more than further blocks.
_MANY_BLOCKS_PER_SM = 16
#: Blocks of a large plane for each multiprocessor from which slices do not pay, measured on an H200.
_WHOLE_BLOCKS_PER_SM = 1.5
#: Blocks of a short plane for each multiprocessor from which slices do not pay, measured on an H200.
_SHORT_BLOCKS_PER_SM = 0.75
#: Groups of each thread in a short plane at most.
_SHORT_GROUPS = 16
#: Groups of a thread at least before an output gets more threads.
_MIN_GROUPS = 4


class ReductionEngine(ProblemEngine["_Problem"]):
    """Reductions, as the module's docstring says."""

    name = "reduction"
    index = 5
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    anchors: Anchors = (ReductionOperation, GenStats)
    limits = fused(ReductionOperation, GenStats)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses graphs that are not one reduction with pointwise operations around it, and extents past 32 bits."""
        fused = match_reduction(graph)
        if isinstance(fused, str):
            return Refusal(self.name, fused)
        reason = _refuse_size(fused)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else _Problem(fused, arch)

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """THREADS_PER_ROW (threads of an output, or side by side), MULTIPLY (groups in flight for each thread) and
        SPLIT_K_SLC; for short rows only TILE_ROWS, the rows of a block."""
        return _knobs(problem.layout, arch) if problem.short is None else _short_knobs(problem.short, arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, two if outputs are cut into slices, or none if there are no outputs."""
        layout, short = problem.layout, problem.short
        if short is not None:
            outputs = chosen[KnobType.TILE_ROWS]
            return PlanParts([(short.kernel(outputs), short.launch(outputs))])
        stages = Stages(
            problem.fused,
            layout,
            chosen[KnobType.THREADS_PER_ROW],
            chosen[KnobType.MULTIPLY],
            chosen[KnobType.SPLIT_K_SLC],
            overlaps=is_dependent(arch),
        )
        if not layout.outputs:
            return PlanParts()
        steps = zip(stages.kernels(), stages.launches(), strict=True)
        return PlanParts(steps, aligned_bytes(stages.partials_bytes))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """Sums of rows, of columns and of everything in fp32, fp16 and bf16."""
        plans = (self.plan(graph, arch, {}) for graph in samples() for arch in all_specs())
        return tuple(dict.fromkeys(kernel for plan in plans for kernel in plan.kernels))


@dataclass(frozen=True)
class _Problem:
    """A reduction on an architecture, and the axes of its kernels, which are computed when a plan needs them."""

    fused: FusedReduction
    arch: ArchSpec

    @cached_property
    def layout(self) -> ReductionLayout:
        return layout_of(self.fused)

    @cached_property
    def short(self) -> ShortRows | None:
        """The short rows of ``reduction_short_rows.cu``, if that kernel is faster; otherwise None."""
        return ShortRows.of(self.fused, self.layout, self.arch)


def _refuse_size(fused: FusedReduction) -> str:
    """The reason why the kernels' indices do not reach all of the tensors, or an empty string."""
    if prod(fused.before.dims) <= MAX_EXTENT:
        return ""
    layout = layout_of(fused)
    extent = max((*layout.radices[1 : layout.kept], *layout.radices[layout.kept + 1 :]), default=1)
    if extent > MAX_EXTENT:
        return f"ReductionOperation.x.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
    if layout.kept_groups > MAX_GRID_X:
        return f"ReductionOperation.y.dims: expected at most {MAX_GRID_X} groups of outputs, got {layout.kept_groups}"
    return ""


def _knobs(layout: ReductionLayout, arch: ArchSpec) -> tuple[Knob, ...]:
    width = _default_width(layout, arch)
    unroll = _default_unroll(layout, width, arch)
    slices = _default_slices(layout, width, arch)
    side = "threads that share one output" if layout.is_row else "threads side by side"
    return (
        Knob("width", KnobType.THREADS_PER_ROW, _WIDTHS, width, side),
        Knob("unroll", KnobType.MULTIPLY, _UNROLLS, unroll, "groups in flight per thread"),
        Knob("slices", KnobType.SPLIT_K_SLC, tuple(sorted({*_SLICES, slices})), slices, "parts of one output"),
    )


def _short_knobs(short: ShortRows, arch: ArchSpec) -> tuple[Knob, ...]:
    values = tuple(1 << power for power in range(FEWEST_OUTPUTS.bit_length() - 1, short.most_outputs.bit_length()))
    return (Knob("outputs", KnobType.TILE_ROWS, values, short.default_outputs(arch), "rows that a block reduces"),)


def _default_width(layout: ReductionLayout, arch: ArchSpec) -> int:
    """The default of THREADS_PER_ROW.

    Large planes have a block. Other rows have as many threads as lie along the contiguous axis and have work (but at
    least a memory sector of two 16-byte vectors), with no idle teams. Columns have one warp along the contiguous axis,
    more if there are few steps or many blocks, and fewer if there are few outputs.
    """
    if _reduces_large_planes(layout, arch):
        return THREADS
    if layout.is_row:
        along = min(floor_power(layout.radices[-1]), max(2, floor_power(layout.reduced_groups // _MIN_GROUPS)))
        return min(THREADS, max(along, THREADS // ceil_power(layout.outputs)))
    rows = min(THREADS // WARP_SIZE, ceil_power(ceil_div(layout.reduced_groups, _MIN_GROUPS)))
    while rows > 1 and layout.kept_groups * rows >= 2 * THREADS * arch.sm_count * _MANY_BLOCKS_PER_SM:
        rows //= 2
    return min(THREADS // rows, ceil_power(layout.kept_groups))


def _default_unroll(layout: ReductionLayout, width: int, arch: ArchSpec) -> int:
    """The default of MULTIPLY: up to 64 bytes of each thread in flight, as far as it has them.

    For large planes it is the number of elements in a group.
    """
    if _reduces_large_planes(layout, arch):
        return layout.vector
    groups = max(1, layout.reduced_groups // threads_per_output(layout, width))
    most = 8 if layout.vector <= 2 else 2 if _reduces_planes(layout) else 4
    return min(floor_power(groups), most)


def _default_slices(layout: ReductionLayout, width: int, arch: ArchSpec) -> int:
    """The default of SPLIT_K_SLC: slices that fill the device, each long enough for a block; 1 if planes do without."""
    blocks = max(1, blocks_of_slice(layout, width))
    longest = max(1, layout.reduced_groups // (threads_per_output(layout, width) * _MIN_GROUPS))
    wanted = arch.sm_count * BLOCKS_PER_SM
    if _reduces_large_planes(layout, arch):
        if _fill_without_slices(layout, arch):
            return 1
    elif _reduces_planes(layout):
        wanted *= 2
    return min(max(1, wanted // blocks), longest, _SLICES[-1])


def _reduces_planes(layout: ReductionLayout) -> bool:
    """Whether threads step from row to row. Each group then needs an address of its own, so that more threads with few
    groups in flight are faster."""
    return layout.is_row and layout.vector > 2 and layout.space.rank - layout.kept > 1


def _reduces_large_planes(layout: ReductionLayout, arch: ArchSpec) -> bool:
    """Whether each plane should have a block: all its threads have work, in groups of the largest size or without a
    second launch."""
    is_large = layout.reduced_groups >= _MIN_GROUPS * THREADS
    return _reduces_planes(layout) and is_large and (layout.vector == MAX_VECTOR or _fill_without_slices(layout, arch))


def _fill_without_slices(layout: ReductionLayout, arch: ArchSpec) -> bool:
    """Whether blocks with one large plane each keep memory busy, or end before a second launch would begin."""
    are_short = layout.reduced_groups <= _SHORT_GROUPS * THREADS
    return layout.outputs >= (_SHORT_BLOCKS_PER_SM if are_short else _WHOLE_BLOCKS_PER_SM) * arch.sm_count
