"""The forward pass of softmax as one launch over rows (``softmax_forward.cu``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

from lowdnn.arch.specs import ArchSpec
from lowdnn.codegen.functor import Functor
from lowdnn.engines.base import Choices, Knob
from lowdnn.engines.launch import bytes_of, moved_bytes
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.rows import policy
from lowdnn.engines.rows.kernel import RowKernel, number
from lowdnn.engines.rows.layout import RowLayout, RowSpace, fused_space
from lowdnn.engines.rows.next_row import NextRow
from lowdnn.engines.rows.register_cache import RegisterCache
from lowdnn.engines.rows.tile import BULK_ROW, tile_of
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag, dag_of
from lowdnn.graph.row_pattern import match_rows
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor

#: Registers of a thread for the numbers that the blocks of a cluster exchange.
_EXCHANGE_REGISTERS = 8


@dataclass(frozen=True)
class ForwardSoftmax:
    """One softmax with its fused operations, and the axes of its kernel."""

    operation: Softmax
    before: PointwiseDag
    after: PointwiseDag
    space: RowSpace

    @staticmethod
    def of(graph: OperationGraph) -> ForwardSoftmax | str:
        """The graph as one softmax with pointwise operations around it, or why it is not one."""
        fused = match_rows(graph, Softmax, "x", "y")
        if isinstance(fused, str):
            return fused
        operation, before = fused.operation, fused.before
        after = dag_of(operation.y.dims, fused.after, anchor=operation.y)
        of_rows = [tensor for tensor in (operation.sink, *_statistics(operation).values()) if tensor is not None]
        space = fused_space((before, after), operation.normalised_axes, of_rows)
        return ForwardSoftmax(operation, before, after, space)

    @property
    def compute_type(self) -> DataType:
        return self.operation.compute_type

    @cached_property
    def layout(self) -> RowLayout:
        return RowLayout.of(self.space, (self.before, self.after)).with_misaligned_lines(self.before.loads)

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]:
        return policy.knobs(self.layout, arch, self._cache)

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch, or none if there are no rows."""
        chain, operation = PlanParts(), self.operation
        if not self.layout.row_groups:
            return chain
        shape = tile_of(self.layout, chosen, self._cache)
        statistics, stages = _statistics(operation), chosen[KnobType.READ_AHEAD]
        ahead = NextRow(shape, self.layout, arch, (self.before.loads,), stages > 0, stages == BULK_ROW)
        kernel = RowKernel(
            source="softmax/softmax_forward.cu",
            data_type=operation.x.data_type,
            compute_type=self.compute_type,
            layout=self.layout,
            tile=shape,
            needs_newer=ahead.is_bulk,
            switches=(
                ("IS_LOG", int(operation.is_log)),
                ("SINK", int(operation.sink is not None)),
                *((name.upper(), int(tensor is not None)) for name, tensor in statistics.items()),
                *ahead.switches,
                ("LINE_GROUPS", ahead.line_groups),
            ),
            functors=self._functors(ahead.is_ahead),
            scalars=tuple(number(own, self.compute_type) for own in (operation.stats_factor, _masked(operation))),
        )
        of_rows = bytes_of(tensor for tensor in (operation.sink, *statistics.values()) if tensor is not None)
        moved = moved_bytes(self.before) + moved_bytes(self.after) + of_rows
        reference, shared_bytes = chain.kernel(kernel.kernel), ahead.shared_bytes
        chain.launches.append(kernel.launch(reference, operation.flops, moved, ahead.blocks, shared_bytes))
        return chain

    @property
    def _cache(self) -> RegisterCache:
        return RegisterCache.of(self.compute_type, self.before, sharing_registers=_EXCHANGE_REGISTERS, looks_ahead=True)

    def _functors(self, copies: bool) -> tuple[Functor, ...]:
        prologue = self.space.functor(self.before, "Prologue", None, self.compute_type, copies)
        epilogue = self.space.functor(self.after, "Epilogue", self.compute_type, None)
        sink = self.operation.sink
        sinks = () if sink is None else (self.space.load_of_row(sink, self.compute_type, "Sink"),)
        statistics = (
            self.space.store_of_row(tensor, self.compute_type, name.capitalize())
            for name, tensor in _statistics(self.operation).items()
            if tensor is not None
        )
        return (prologue, epilogue, *sinks, *statistics)


def _masked(operation: Softmax) -> float:
    """The factor of a masked row's exponentials, all 0; of the logarithm, what is subtracted from minus infinity."""
    if operation.masked_is_nan:
        return -inf if operation.is_log else inf
    return 0.0 if operation.is_log else 1.0


def _statistics(operation: Softmax) -> dict[str, Tensor | None]:
    """The tensors of statistics, by the lower-case name of their macro."""
    return {"stats": operation.stats, "max": operation.max, "sum": operation.sum_exp}
