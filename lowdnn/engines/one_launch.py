"""Engines without knobs that run one operation between tensors in device memory by one launch of one kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar, cast

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    BEHAVIOR_NOTES,
    Anchors,
    Choices,
    Knob,
    Refusal,
    accepted,
    plan_of,
    resolve_choices,
)
from lowdnn.engines.limits import Limits, alone, names_of
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import HasPorts, outputs_of
from lowdnn.plan import KernelRef, Launch, Plan
from lowdnn.status import Status

OperationT = TypeVar("OperationT", bound=HasPorts)


class OneLaunch(ABC, Generic[OperationT]):
    """The methods of an ``Engine`` by those of one operation, which the engine declares.

    anchors: the classes of the operation.  expects: its name in refusals.
    """

    name: str
    index: int
    numerical_notes: tuple[NumericalNote, ...] = (NumericalNote.STRICT_NAN_PROP,)
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors
    expects: ClassVar[str]

    @property
    def limits(self) -> Limits:
        return alone(*self.anchors)

    @abstractmethod
    def limit(self, operation: OperationT) -> str:
        """Why the kernel cannot count the elements, ``<field>: expected <limit>, got <value>``, or an empty string."""

    @abstractmethod
    def kernel(self, operation: OperationT, arch: ArchSpec) -> KernelRef:
        """The kernel for the operation."""

    @abstractmethod
    def launch(self, operation: OperationT) -> Launch:
        """The launch of kernel 0 of the plan."""

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses all but one such operation between tensors in device memory, and more elements than it can count."""
        found = graph.derive(self._matched)
        return found if isinstance(found, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """One launch, none where the output is empty."""
        operation = accepted(graph.derive(self._matched))
        chosen = resolve_choices(self.name, (), choices)
        if not all(tensor.element_count for tensor in outputs_of(operation).values()):
            return plan_of(self, graph, arch, chosen, (), ())
        return plan_of(self, graph, arch, chosen, (self.kernel(operation, arch),), (self.launch(operation),))

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None by default, since such operations are rare."""
        return ()

    def _matched(self, graph: OperationGraph) -> OperationT | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, self.anchors):
            names = names_of(graph.operations)
            return Refusal(self.name, f"operations: expected {self.expects}, got {names}")
        for tensor in graph.tensors.values():
            if tensor.is_scalar_value or tensor.is_virtual:
                return Refusal(self.name, f"{tensor.label}: expected a tensor in device memory, got another one")
        found = cast(OperationT, operation)
        reason = self.limit(found)
        return Refusal(self.name, reason, Status.NOT_SUPPORTED_SHAPE) if reason else found
