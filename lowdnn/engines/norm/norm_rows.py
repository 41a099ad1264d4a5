"""``norm_rows``: norms over any axes, each row owned by a team of threads that holds it in registers, in one pass."""

from __future__ import annotations

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.norm.forward import ForwardRows
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import Status


class NormRows:
    """See the module's docstring."""

    name = "norm_rows"
    index = 20
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses graphs that are not one norm with pointwise operations around it, and extents past 32 bits."""
        problem = graph.derive(self._matched)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_ROWS, MULTIPLY and TILE_CGA_M: threads of a row, groups that one holds, blocks that share rows."""
        return accepted(graph.derive(self._matched)).knobs(arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where there are no rows."""
        problem = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, problem.knobs(arch), choices)
        kernels, launches = problem.plan(chosen)
        return plan_of(self, graph, arch, chosen, kernels, launches)

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _matched(self, graph: OperationGraph) -> ForwardRows | Refusal:
        problem = ForwardRows.of(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.layout.refuse_size()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem
