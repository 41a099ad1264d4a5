"""What engines over rows have in common: everything but the graphs that they take."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.limits import Limits, fused
from lowdnn.engines.rows.chain import Chain
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import Status


class RowProblem(Protocol):
    """A graph that an engine takes, and how its kernel walks over it."""

    @property
    def layout(self) -> RowLayout: ...

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]: ...

    def plan(self, arch: ArchSpec, chosen: Choices) -> Chain: ...


class RowEngine(ABC):
    """An engine whose problems are of one kind."""

    name: str
    index: int
    anchors: Anchors
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes: tuple[BehaviorNote, ...] = BEHAVIOR_NOTES

    @property
    def limits(self) -> Limits:
        return fused(*self.anchors)

    @abstractmethod
    def problem(self, graph: OperationGraph) -> RowProblem | str:
        """The problem that the graph is, or why it is none."""

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses graphs that are no problem of the engine with pointwise operations around it, and extents past 32
        bits."""
        problem = graph.derive(self._matched)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_ROWS, MULTIPLY and TILE_CGA_M: threads of a row, groups that one holds, blocks that share rows."""
        return accepted(graph.derive(self._matched)).knobs(arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch over the rows, none where there are no rows; more for what is summed over several rows."""
        problem = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, problem.knobs(arch), choices)
        chain = problem.plan(arch, chosen)
        return plan_of(self, graph, arch, chosen, chain.kernels, tuple(chain.launches), chain.workspace_bytes)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None: what is fused with a row decides the kernel."""
        return ()

    def _matched(self, graph: OperationGraph) -> RowProblem | Refusal:
        problem = self.problem(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.layout.refuse_size()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem
