"""``attention_backward_parts``: the gradients of attention that no engine computes in its own kernels, as a chain of
the plans of the operations that they are made of (``graph.attention_gradient``)."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    BEHAVIOR_NOTES,
    Anchors,
    Choices,
    Engine,
    Knob,
    Refusal,
    accepted,
    resolve_choices,
)
from lowdnn.engines.composite.assembly import chain_of
from lowdnn.engines.composite.partition import Uncovered, find_uncovered, partition
from lowdnn.engines.composite.parts import Part
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.limits import alone, names_of
from lowdnn.enums import NumericalNote
from lowdnn.graph.attention_gradient import Parts, parts_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.plan import KernelRef, Plan


class AttentionBackwardParts:
    """See the module's docstring. ``engines`` run the parts; a graph that one of them takes whole is refused here."""

    name = "attention_backward_parts"
    index = 44
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = (SdpaBackward,)
    limits = alone(SdpaBackward)

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses all but one such operation, a graph that another engine takes, and parts that no engine takes."""
        found = graph.derive(self._parts, arch)
        return found if isinstance(found, Refusal) else None

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None: every part runs with its engine's defaults."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The chain of the parts' plans; ``Plan.parts`` names them in launch order."""
        resolve_choices(self.name, (), choices)
        apart = accepted(graph.derive(self._parts, arch))
        parts: list[Part] = []
        for stage in apart.stages:
            found = partition(apart.graph.subgraph(stage), arch, self._engines)
            assert not isinstance(found, Uncovered), "refused where a part has no engine"
            parts.extend(found)
        return chain_of(self, graph, arch, apart.graph, parts)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None, since the parts bring their own kernels."""
        return ()

    def _parts(self, graph: OperationGraph, arch: ArchSpec) -> Parts | Refusal:
        operation = graph.operations[0]
        if len(graph.operations) != 1 or not isinstance(operation, SdpaBackward):
            names = names_of(graph.operations)
            return Refusal(self.name, f"operations: expected one SdpaBackward, got {names}")
        for engine in anchored(self._engines, graph.operations):
            if graph.derive(engine.refuse, arch) is None:
                return Refusal(self.name, f"one engine takes the whole graph: {engine.name}")
        apart = parts_of(operation)
        uncovered = find_uncovered(apart.graph, arch, self._engines)
        return apart if uncovered is None else Refusal(self.name, uncovered.reason)
