"""The common part of the engines for grouped products without tensor cores: one kernel, with a choice of its tile."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Knob, Refusal
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.engines.moe import simt_tiles
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.plan import KernelRef, Launch
from lowdnn.status import Status


class SimtProblem(Protocol):
    """A grouped product as its kernel sees it, and its pointwise epilogue."""

    @property
    def epilogue(self) -> PointwiseDag: ...

    @property
    def accumulator(self) -> DataType: ...

    def blocks(self, tile: SimtTile) -> int: ...

    def extent_problem(self) -> str:
        """Why extents exceed the kernel's indices, or an empty string."""

    def launch(self, tile: SimtTile) -> tuple[KernelRef, Launch]: ...


class MoeSimtEngine(ProblemEngine[SimtProblem]):
    """An engine whose problems are grouped products of one kind."""

    @abstractmethod
    def grouped(self, graph: OperationGraph) -> SimtProblem | str:
        """The graph's problem, or why it has none."""

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> SimtProblem | Refusal:
        """Refuses other graphs than one grouped product with a pointwise epilogue, and extents beyond the kernel's
        indices.
        """
        problem = self.grouped(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.extent_problem()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem

    def knobs_of(self, problem: SimtProblem, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M and TILE_N, of the product as the kernel sees it."""
        return simt_tiles.knobs(problem.accumulator, problem.blocks, arch)

    def parts(self, problem: SimtProblem, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """One launch; none if the output is empty."""
        if 0 in problem.epilogue.dims:
            return PlanParts()
        return PlanParts([problem.launch(simt_tiles.tile_of(chosen[KnobType.TILE_M], chosen[KnobType.TILE_N]))])
