"""Reductions over any axes in one launch, or in two where one output has more work than a block should do.

The pointwise operations before the reduction run on the elements as they are read, those after it on the result. Where
the axis that is contiguous in memory is reduced, a team of threads joins its elements (``reduction_rows.cu``);
where it is kept, each thread owns neighbouring outputs (``reduction_columns.cu``). If that gives too few blocks for the
device, every output is cut into slices, whose totals a second launch joins (``reduction_combine.cu``). Many short rows
behind each other, which begin anywhere, are read as one (``reduction_short_rows.cu``).
The order of summation depends on the plan only.
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
#: Blocks per multiprocessor beyond which longer columns of a thread are worth more.
_MANY_BLOCKS_PER_SM = 16
#: Blocks of each multiprocessor, one for a large plane, that need no slices: of any planes, and of those of which a
#: thread has no more than so many groups. Measured on an H200.
_WHOLE_BLOCKS_PER_SM, _SHORT_BLOCKS_PER_SM, _SHORT_GROUPS = 1.5, 0.75, 16
#: Groups that a thread should have before an output is worth more threads.
_MIN_GROUPS = 4


class ReductionEngine(ProblemEngine["_Problem"]):
    """See the module's docstring."""

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
        """THREADS_PER_ROW (threads of an output, or side by side), MULTIPLY (groups in flight per thread), SPLIT_K_SLC;
        for short rows TILE_ROWS alone: the rows of a block."""
        return _knobs(problem.layout, arch) if problem.short is None else _short_knobs(problem.short, arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, two where outputs are cut into slices, none where there are no outputs."""
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
    """A reduction on an architecture, and how the kernels walk over it, worked out where there is to be a plan."""

    fused: FusedReduction
    arch: ArchSpec

    @cached_property
    def layout(self) -> ReductionLayout:
        return layout_of(self.fused)

    @cached_property
    def short(self) -> ShortRows | None:
        """The rows of a kernel for short ones, where it is faster."""
        return ShortRows.of(self.fused, self.layout, self.arch)


def _refuse_size(fused: FusedReduction) -> str:
    """Why the kernels' indices do not reach all of the tensors, or an empty string."""
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
    side = "threads that join one output" if layout.is_row else "threads side by side"
    return (
        Knob("width", KnobType.THREADS_PER_ROW, _WIDTHS, width, side),
        Knob("unroll", KnobType.MULTIPLY, _UNROLLS, unroll, "groups in flight per thread"),
        Knob("slices", KnobType.SPLIT_K_SLC, tuple(sorted({*_SLICES, slices})), slices, "parts of one output"),
    )


def _short_knobs(short: ShortRows, arch: ArchSpec) -> tuple[Knob, ...]:
    values = tuple(1 << power for power in range(FEWEST_OUTPUTS.bit_length() - 1, short.most_outputs.bit_length()))
    return (Knob("outputs", KnobType.TILE_ROWS, values, short.default_outputs(arch), "rows that a block reduces"),)


def _default_width(layout: ReductionLayout, arch: ArchSpec) -> int:
    """Large planes: a block. Other rows: as many threads as lie along the contiguous axis, no more than have work (but
    a whole memory sector of two 16-byte vectors), and no idle teams.

    Columns: one warp along the contiguous axis, more where there are few steps or many blocks, fewer where there are
    few outputs.
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
    """Up to 64 bytes a thread in flight, and not more than it has; of large planes as many groups as these have
    elements."""
    if _reduces_large_planes(layout, arch):
        return layout.vector
    groups = max(1, layout.reduced_groups // threads_per_output(layout, width))
    most = 8 if layout.vector <= 2 else 2 if _reduces_planes(layout) else 4
    return min(floor_power(groups), most)


def _default_slices(layout: ReductionLayout, width: int, arch: ArchSpec) -> int:
    """As many slices as fill the device, each long enough to be worth a block; of large planes one where that does."""
    blocks = max(1, blocks_of_slice(layout, width))
    longest = max(1, layout.reduced_groups // (threads_per_output(layout, width) * _MIN_GROUPS))
    wanted = arch.sm_count * BLOCKS_PER_SM
    if _reduces_large_planes(layout, arch):
        if _stay_whole(layout, arch):
            return 1
    elif _reduces_planes(layout):
        wanted *= 2
    return min(max(1, wanted // blocks), longest, _SLICES[-1])


def _reduces_planes(layout: ReductionLayout) -> bool:
    """Whether threads step from row to row: each group has a place of its own, so that few in flight per thread but
    more threads are faster."""
    return layout.is_row and layout.vector > 2 and layout.space.rank - layout.kept > 1


def _reduces_large_planes(layout: ReductionLayout, arch: ArchSpec) -> bool:
    """Whether a block is best for each: all its threads have work, in groups of as many elements as there can be or
    without a second launch."""
    is_large = layout.reduced_groups >= _MIN_GROUPS * THREADS
    return _reduces_planes(layout) and is_large and (layout.vector == MAX_VECTOR or _stay_whole(layout, arch))


def _stay_whole(layout: ReductionLayout, arch: ArchSpec) -> bool:
    """Whether blocks of one large plane each keep memory busy, or end before a second launch would begin."""
    are_short = layout.reduced_groups <= _SHORT_GROUPS * THREADS
    return layout.outputs >= (_SHORT_BLOCKS_PER_SM if are_short else _WHOLE_BLOCKS_PER_SM) * arch.sm_count
