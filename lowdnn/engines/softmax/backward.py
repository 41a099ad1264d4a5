"""The gradient of softmax as one launch over rows (``softmax_backward.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import bytes_of, moved_bytes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows import policy
from lowdnn.engines.rows.kernel import RowKernel
from lowdnn.engines.rows.layout import RowLayout, RowSpace, fused_space, reading
from lowdnn.engines.rows.next_row import NextRow
from lowdnn.engines.rows.register_cache import RegisterCache
from lowdnn.engines.rows.tile import BULK_ROW, tile_of
from lowdnn.enums import KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.softmax_pattern import SoftmaxGradient, match_softmax_gradient

#: Floating-point operations for each element.
_FLOPS = 5


@dataclass(frozen=True)
class BackwardSoftmax:
    """One gradient of softmax with its fused operations, and the axes of its kernel."""

    gradient: SoftmaxGradient
    space: RowSpace

    @staticmethod
    def of(graph: OperationGraph) -> BackwardSoftmax | str:
        """The graph as one gradient with pointwise operations around it, or why it is not one."""
        found = match_softmax_gradient(graph)
        if isinstance(found, str):
            return found
        return BackwardSoftmax(found, fused_space((found.before, found.after), found.axes, [found.y]))

    @cached_property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.space, (self.gradient.before, self.gradient.after), self.gradient.y)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        return policy.knobs(self.layout, arch, self._cache)

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or none if there are no rows."""
        chain, found = PlanParts(), self.gradient
        if not self.layout.row_groups:
            return chain
        shape = tile_of(self.layout, chosen, self._cache)
        sources, stages = ((found.y,), found.before.loads), chosen[KnobType.READ_AHEAD]
        ahead = NextRow(shape, self.layout, arch, sources, stages > 0, stages == BULK_ROW)
        kernel = RowKernel(
            source="softmax/softmax_backward.cu",
            data_type=found.y.data_type,
            compute_type=found.compute_type,
            layout=self.layout,
            tile=shape,
            needs_newer=ahead.is_bulk,
            switches=(("IS_LOG", int(found.is_log)), *ahead.switches),
            functors=(
                self.space.load(found.y, found.compute_type, "Data", ahead.is_ahead),
                self.space.functor(found.before, "Prologue", None, found.compute_type, ahead.is_ahead),
                self.space.functor(found.after, "Epilogue", found.compute_type, None),
            ),
        )
        moved = moved_bytes(found.before) + moved_bytes(found.after)
        if all(tensor.uid != found.y.uid for tensor in found.before.loads):
            moved += bytes_of([found.y])
        reference, flops = chain.kernel(kernel.kernel), _FLOPS * found.y.element_count
        chain.launches.append(kernel.launch(reference, flops, moved, ahead.blocks, ahead.shared_bytes))
        return chain

    @property
    def _cache(self) -> RegisterCache:
        sources = (reading(self.gradient.y), self.gradient.before)
        return RegisterCache.of(self.gradient.compute_type, *sources, looks_ahead=True)
