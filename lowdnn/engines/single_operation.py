"""Bases of engines that run one operation by itself, between tensors in device memory."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar, cast

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Choices, Refusal
from lowdnn.engines.limits import names_of
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, outputs_of
from lowdnn.plan import KernelRef, Launch
from lowdnn.status import Status

OperationT = TypeVar("OperationT", bound=HasPorts)


class SingleOperation(ProblemEngine[OperationT]):
    """An engine whose problem is the operation.

    anchors: the classes of the operation.  expects: its name in refusals.
    """

    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    expects: ClassVar[str]

    @abstractmethod
    def limit(self, operation: OperationT, arch: ArchSpec) -> str:
        """The reason why the kernel cannot count the elements, ``<field>: expected <limit>, got <value>``, or ''."""

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> OperationT | Refusal:
        """Refuses all but one such operation between tensors in device memory, and more elements than it counts."""
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, self.anchors):
            names = names_of(graph.operations)
            return Refusal(self.name, f"operations: expected {self.expects}, got {names}")
        for tensor in graph.tensors.values():
            if tensor.is_scalar_value or tensor.is_virtual:
                return Refusal(self.name, f"{tensor.label}: expected a tensor in device memory, got another one")
        found = cast(OperationT, operation)
        reason = self.limit(found, arch) if self.has_results(found) else ""
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else found

    def parts(self, operation: OperationT, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The operation's launches; none if it has no results."""
        return self.launches(operation, arch, chosen) if self.has_results(operation) else PlanParts()

    def has_results(self, operation: OperationT) -> bool:
        """Whether there is something to compute: elements in every output, unless overridden."""
        return all(tensor.element_count for tensor in outputs_of(operation).values())

    @abstractmethod
    def launches(self, operation: OperationT, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """Kernels, launches and workspace of an operation that has results."""


class OneLaunch(SingleOperation[OperationT]):
    """An engine without knobs that has one kernel, which is launched once."""

    @abstractmethod
    def kernel(self, operation: OperationT, arch: ArchSpec) -> KernelRef:
        """The kernel for the operation."""

    @abstractmethod
    def launch(self, operation: OperationT) -> Launch:
        """The launch of the kernel."""

    def launches(self, operation: OperationT, arch: ArchSpec, chosen: Choices) -> PlanParts:
        return PlanParts([(self.kernel(operation, arch), self.launch(operation))])
