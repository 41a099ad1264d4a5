"""The skeleton of an engine, which is the same whatever it computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import BEHAVIOR_NOTES, Anchors, Choices, Knob, Refusal, plan_tensors, resolve_choices
from lowdnn.engines.limits import Limits
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.enums import BehaviorNote, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import BadParamError, NotSupportedError, SharedMemoryInsufficientError, Status

ProblemT = TypeVar("ProblemT")


class ProblemEngine(ABC, Generic[ProblemT]):
    """An ``Engine`` whose subclasses define the problem that a graph is, the problem's knobs, and its launches.

    A problem is an immutable value that says what the kernels compute. It is found once for a graph and an
    architecture, and so are its knobs, whose defaults may take a search.
    target: the PTX target of the kernels if only some architectures run it (``sm_90a``), otherwise empty.
    """

    name: str
    index: int
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes: tuple[BehaviorNote, ...] = BEHAVIOR_NOTES
    anchors: Anchors
    limits: Limits
    target: ClassVar[str] = ""

    @abstractmethod
    def problem(self, graph: OperationGraph, arch: ArchSpec) -> ProblemT | Refusal:
        """The problem that ``graph`` is, or the reason why the engine does not take it; ``arch`` runs ``target``."""

    def knobs_of(self, problem: ProblemT, arch: ArchSpec) -> tuple[Knob, ...]:
        """The knobs of ``problem`` with the defaults chosen for it; none unless overridden."""
        return ()

    @abstractmethod
    def parts(self, problem: ProblemT, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The kernels, launches and workspace of ``problem`` for a value of each knob."""

    def precompiled(self) -> tuple[KernelRef, ...]:
        """The kernels whose PTX is shipped in ``ptx/``; none unless overridden."""
        return ()

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """None if ``plan`` will succeed with the default knobs, otherwise the first reason why not."""
        found = graph.derive(self._found, arch)
        return found if isinstance(found, Refusal) else None

    def accepted(self, graph: OperationGraph, arch: ArchSpec) -> ProblemT:
        """The problem that ``graph`` is; raises NotSupportedError if the engine refuses it."""
        found = graph.derive(self._found, arch)
        if isinstance(found, Refusal):
            raise NotSupportedError(str(found))
        return found

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """The knobs for ``graph``; raises NotSupportedError if the engine refuses it."""
        return graph.derive(self._knobs, arch)

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The plan for ``choices``; knobs that it does not name take their defaults.

        Raises NotSupportedError if the engine refuses the graph; BadParamError for an unknown knob or value, and for
        knobs with which a block needs more shared memory than ``arch`` has.
        """
        _ = self.accepted(graph, arch)
        return self.replan(graph, arch, resolve_choices(self.name, self.knobs(graph, arch), choices))

    def replan(self, graph: OperationGraph, arch: ArchSpec, chosen: Choices) -> Plan:
        """As ``plan``, for a value of each knob, none of which is checked."""
        parts = self.parts(self.accepted(graph, arch), arch, chosen)
        self._check_shared_memory(parts, arch)
        return Plan(
            engine=self.name,
            engine_index=self.index,
            graph_key=graph.key,
            target_arch=arch.name,
            choices=tuple(chosen.items()),
            kernels=parts.kernels,
            launches=tuple(parts.launches),
            tensors=graph.derive(plan_tensors),
            workspace_bytes=parts.workspace_bytes,
            numerical_notes=self.numerical_notes if parts.numerical_notes is None else parts.numerical_notes,
            behavior_notes=self.behavior_notes if parts.behavior_notes is None else parts.behavior_notes,
            parts=parts.names,
        )

    def _found(self, graph: OperationGraph, arch: ArchSpec) -> ProblemT | Refusal:
        if self.target and not arch.runs(self.target):
            reason = f"arch: expected {self.target}, got {arch.name}"
            return Refusal(self.name, reason, Status.NOT_SUPPORTED_ARCH_MISMATCH)
        if not arch.lacks_shared_memory:
            return self.problem(graph, arch)
        # The search for default knobs may find nothing that fits, and the defaults may not fit.
        try:
            found = self.problem(graph, arch)
            return found if isinstance(found, Refusal) else self._fitting(found, arch)
        except (BadParamError, SharedMemoryInsufficientError) as error:
            return Refusal(self.name, error.detail, Status.NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT)

    def _fitting(self, problem: ProblemT, arch: ArchSpec) -> ProblemT:
        """``problem``; raises where its default knobs need more shared memory than ``arch`` has."""
        defaults = {knob.type: knob.default for knob in self.knobs_of(problem, arch)}
        self._check_shared_memory(self.parts(problem, arch, defaults), arch)
        return problem

    def _knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        return self.knobs_of(self.accepted(graph, arch), arch)

    def _check_shared_memory(self, parts: PlanParts, arch: ArchSpec) -> None:
        shared_bytes = max((launch.shared_bytes for launch in parts.launches), default=0)
        if shared_bytes > arch.shared_bytes_per_block:
            raise BadParamError.at(
                f"{self.name}.knob_choices",
                expected=f"at most {arch.shared_bytes_per_block} bytes of shared memory on {arch.name}",
                got=f"{shared_bytes} bytes",
                hint="take fewer stages or a smaller tile",
            )
