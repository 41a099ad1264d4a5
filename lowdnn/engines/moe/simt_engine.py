"""What the engines for grouped products without tensor cores have in common: one kernel, whose tile is the choice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, accepted, plan_of, resolve_choices
from lowdnn.engines.gemm.simt_tile import SimtTile
from lowdnn.engines.limits import Limits, fused
from lowdnn.engines.moe import simt_tiles
from lowdnn.enums import BehaviorNote, DataType, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import PointwiseDag
from lowdnn.plan import KernelRef, Launch, Plan
from lowdnn.status import Status


class SimtProblem(Protocol):
    """A grouped product as its kernel sees it, and the pointwise operations behind it."""

    @property
    def epilogue(self) -> PointwiseDag: ...

    @property
    def accumulator(self) -> DataType: ...

    def blocks(self, tile: SimtTile) -> int: ...

    def extent_problem(self) -> str:
        """Why the kernel cannot count so many, or an empty string."""

    def launch(self, tile: SimtTile) -> tuple[KernelRef, Launch]: ...


class MoeSimtEngine(ABC):
    """An engine whose problems are of one kind."""

    name: str
    index: int
    anchors: Anchors
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes: tuple[BehaviorNote, ...] = BEHAVIOR_NOTES

    @property
    def limits(self) -> Limits:
        return fused(*self.anchors)

    @abstractmethod
    def problem(self, graph: OperationGraph) -> SimtProblem | str:
        """The problem that the graph is, or why it is none."""

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses what is no problem of the engine with a pointwise epilogue, and more than the kernel can count."""
        problem = graph.derive(self._problem)
        return problem if isinstance(problem, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """TILE_M and TILE_N, of the product as the kernel sees it."""
        problem = accepted(graph.derive(self._problem))
        return simt_tiles.knobs(problem.accumulator, problem.blocks, arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where the output is empty."""
        problem = accepted(graph.derive(self._problem))
        chosen = resolve_choices(self.name, simt_tiles.knobs(problem.accumulator, problem.blocks, arch), choices)
        if 0 in problem.epilogue.dims:
            return plan_of(self, graph, arch, chosen, (), ())
        kernel, launch = problem.launch(simt_tiles.tile_of(chosen[KnobType.TILE_M], chosen[KnobType.TILE_N]))
        return plan_of(self, graph, arch, chosen, (kernel,), (launch,))

    def precompiled(self) -> tuple[KernelRef, ...]:
        return ()

    def _problem(self, graph: OperationGraph) -> SimtProblem | Refusal:
        problem = self.problem(graph)
        if isinstance(problem, str):
            return Refusal(self.name, problem)
        reason = problem.extent_problem()
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else problem
