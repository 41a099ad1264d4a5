"""What engines over rows have in common: everything but the graphs that they take."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob, Refusal
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.engines.rows.layout import RowLayout
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.status import Status


class RowProblem(Protocol):
    """A graph that an engine takes, and how its kernel walks over it."""

    @property
    def layout(self) -> RowLayout: ...

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]: ...

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts: ...


class RowEngine(ProblemEngine[RowProblem]):
    """An engine whose problems are rows, each with one kernel that owns it."""

    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)

    @abstractmethod
    def rows_of(self, graph: OperationGraph) -> RowProblem | str:
        """The problem that the graph is, or why it is none."""

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> RowProblem | Refusal:
        """Refuses graphs that are no problem of the engine with pointwise operations around it, and extents past 32
        bits."""
        problem = self.rows_of(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.layout.refuse_size()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: RowProblem, arch: ArchSpec) -> tuple[Knob, ...]:
        """THREADS_PER_ROW, MULTIPLY, groups that one of them holds, and TILE_CGA_M, blocks that share rows."""
        return problem.knobs(arch)

    def parts(self, problem: RowProblem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch over the rows, none where there are no rows; more for what is summed over several rows."""
        return problem.plan(arch, chosen)
