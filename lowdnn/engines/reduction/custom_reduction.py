"""``custom_reduction``: reductions by a given operator, in one launch, or in two if one output is too much for a block.

The operator and the pointwise operations around the reduction are generated (``codegen.reducer``). The operator need
not
be commutative: neighbouring threads combine neighbouring elements. If the axis that is contiguous in memory is reduced,
lanes of a warp share an output (``custom_reduction.cu``); if it is kept, each thread has an output, or a part of one,
to itself. If that gives too few blocks for the device, outputs are cut into slices, which a second launch combines
(``custom_reduction_combine.cu``).

With THREADS_PER_ROW 1 and SPLIT_K_SLC 1 everything is combined from left to right, beginning with the initial values,
whatever the operator; otherwise the bracketing depends only on the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from lowdnn.arch.multiprocessor import WARP_SIZE
from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Anchors, Choices, Knob, Refusal
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X, ceil_div, ceil_power, floor_power
from lowdnn.engines.limits import fused
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.reduction.custom_stages import CustomLayout, CustomStages, layout_of
from lowdnn.engines.reduction.stages import BLOCKS_PER_SM, THREADS
from lowdnn.enums import KnobType
from lowdnn.graph.custom_reduction_pattern import FusedCustomReduction, match_custom_reduction
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.status import Status

_WIDTHS = tuple(1 << power for power in range(9))
_UNROLLS = (1, 2, 4)
_SLICES = tuple(1 << power for power in range(11))
#: Groups of a thread at least before an output gets more threads, or a slice a block of its own.
_MIN_GROUPS = 4
#: Elements in flight for each thread.
_IN_FLIGHT = 8


class CustomReductionEngine(ProblemEngine["_Problem"]):
    """Custom reductions, as the module's docstring says."""

    name = "custom_reduction"
    index = 48
    anchors: Anchors = (CustomReduction,)
    limits = fused(CustomReduction)

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Problem | Refusal:
        """Refuses graphs that are not one custom reduction with pointwise operations, and extents past 32 bits."""
        found = match_custom_reduction(graph)
        if isinstance(found, str):
            return Refusal(self.name, found)
        problem = _Problem(found)
        reason = problem.limit()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: _Problem, arch: ArchSpec) -> tuple[Knob, ...]:
        """THREADS_PER_ROW (threads of an output), MULTIPLY (groups in flight per thread), SPLIT_K_SLC."""
        return problem.knobs(arch)

    def parts(self, problem: _Problem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, two if outputs are cut into slices, or none if there are no outputs."""
        if not problem.layout.outputs:
            return PlanParts()
        width, unroll = chosen[KnobType.THREADS_PER_ROW], chosen[KnobType.MULTIPLY]
        stages = CustomStages(problem.fused, problem.layout, width, unroll, chosen[KnobType.SPLIT_K_SLC])
        return PlanParts(stages.steps(), stages.partials_bytes)


@dataclass(frozen=True)
class _Problem:
    """A custom reduction, and the axes of its kernels."""

    fused: FusedCustomReduction

    @cached_property
    def layout(self) -> CustomLayout:
        return layout_of(self.fused)

    def limit(self) -> str:
        """The reason why the kernels' indices do not reach all of the tensors, or an empty string."""
        if prod(self.fused.operation.x[0].dims) <= MAX_EXTENT:
            return ""
        layout = self.layout
        extent = max((*layout.radices[1 : layout.kept], *layout.radices[layout.kept + 1 :]), default=1)
        if extent > MAX_EXTENT:
            return f"CustomReduction.x.dims: expected at most {MAX_EXTENT} groups along an axis, got {extent}"
        if layout.outputs > MAX_GRID_X:
            return f"CustomReduction.y.dims: expected at most {MAX_GRID_X} outputs, got {layout.outputs}"
        return ""

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        layout = self.layout
        unroll = min(_UNROLLS[-1], _IN_FLIGHT // layout.vector)
        width = self._width(arch, unroll)
        slices = self._slices(arch, width, unroll)
        return (
            Knob("width", KnobType.THREADS_PER_ROW, _WIDTHS, width, "threads that share one output"),
            Knob("unroll", KnobType.MULTIPLY, _UNROLLS, unroll, "groups in flight per thread"),
            Knob("slices", KnobType.SPLIT_K_SLC, _SLICES, slices, "parts of one output"),
        )

    def _width(self, arch: ArchSpec, unroll: int) -> int:
        """Threads of an output: as many as have work, but no more than fill the device.

        If the contiguous axis is kept, a warp has outputs side by side.
        """
        layout = self.layout
        useful = floor_power(layout.reduced_groups // (unroll * (1 if layout.is_row else _MIN_GROUPS)))
        filling = ceil_power(ceil_div(arch.sm_count * arch.threads_per_sm, max(1, layout.outputs)))
        least, most = (WARP_SIZE, THREADS) if layout.is_row else (1, THREADS // min(WARP_SIZE, layout.side_by_side))
        return min(useful, most, max(least, filling))

    def _slices(self, arch: ArchSpec, width: int, unroll: int) -> int:
        """Slices of an output: as many as fill the device, each long enough to be worth a block."""
        blocks = max(1, ceil_div(self.layout.outputs, THREADS // width))
        longest = self.layout.reduced_groups // (width * unroll * _MIN_GROUPS)
        return min(floor_power(arch.sm_count * BLOCKS_PER_SM // blocks), floor_power(longest), _SLICES[-1])
