"""``attention_backward_parts``: the gradients of attention that no engine computes in its own kernels, as a chain of
the plans of the operations that they are made of (``graph.attention_gradient``)."""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Engine,
    Refusal,
)
from lowdnn.engines.composite.assembly import assemble
from lowdnn.engines.composite.partition import Uncovered, find_uncovered, partition
from lowdnn.engines.composite.parts import Part
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.limits import alone, names_of
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.graph.attention_gradient import Parts, parts_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_backward import SdpaBackward


class AttentionBackwardParts(ProblemEngine[Parts]):
    """See the module's docstring. ``engines`` run the parts; a graph that one of them takes whole is refused here."""

    name = "attention_backward_parts"
    index = 44
    anchors: Anchors = (SdpaBackward,)
    limits = alone(SdpaBackward)

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> Parts | Refusal:
        """Refuses all but one such operation, a graph that another engine takes, and parts that no engine takes."""
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

    def parts(self, apart: Parts, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The chain of the parts' plans, each of them with its engine's defaults."""
        parts: list[Part] = []
        for stage in apart.stages:
            found = partition(apart.graph.subgraph(stage), arch, self._engines)
            assert not isinstance(found, Uncovered), "refused where a part has no engine"
            parts.extend(found)
        return assemble(apart.graph, parts)
