"""The base of engines over rows: knobs, refusals and plans, given a row problem."""

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
    """A graph that an engine takes, and the layout of its rows."""

    @property
    def layout(self) -> RowLayout: ...

    def knobs(self, arch: ArchSpec) -> tuple[Knob, ...]: ...

    def plan(self, arch: ArchSpec, chosen: Choices) -> PlanParts: ...


class RowEngine(ProblemEngine[RowProblem]):
    """An engine with one kernel, in which a team of threads owns each row."""

    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)

    @abstractmethod
    def rows_of(self, graph: OperationGraph) -> RowProblem | str:
        """The row problem of ``graph``, or the reason why it has none."""

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> RowProblem | Refusal:
        """Refuses graphs without a row problem, and extents that 32-bit indices do not reach."""
        problem = self.rows_of(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.layout.refuse_size()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: RowProblem, arch: ArchSpec) -> tuple[Knob, ...]:
        """THREADS_PER_ROW; MULTIPLY, the groups of a row in each thread; TILE_CGA_M, the blocks that share a row."""
        return problem.knobs(arch)

    def parts(self, problem: RowProblem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch over the rows, or none if there are no rows; further launches where sums span several rows."""
        return problem.plan(arch, chosen)
