"""``composite``: the engine of last resort. It runs a graph that no single engine takes as a chain of their plans, and
one that only engines take that round its inputs.

The cut is the one with the least estimated time (see ``partition``); intermediates lie in the workspace. Inputs are
never converted down (TF32) where an engine exists that keeps their precision.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    BEHAVIOR_NOTES,
    Anchors,
    Choices,
    Engine,
    Knob,
    LastResort,
    Refusal,
    keeps_precision,
    resolve_choices,
)
from lowdnn.engines.composite.assembly import chain_of
from lowdnn.engines.composite.partition import Uncovered, find_uncovered, partition
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.limits import UNLIMITED
from lowdnn.enums import NumericalNote
from lowdnn.graph.attention_values import with_existing_values
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.observable import with_unread_stored
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import NotSupportedError


class Composite(LastResort):
    """See the module's docstring. ``engines``: those that may run a part, in order of preference."""

    name = "composite"
    index = 6
    numerical_notes: tuple[NumericalNote, ...] = ()
    behavior_notes = BEHAVIOR_NOTES
    anchors: Anchors = ()
    limits = UNLIMITED

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def refuse(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        """Refuses a graph that one engine takes as it is, and one with an operation that no engine takes."""
        single = self._refuse_single(graph, arch)
        if single is not None:
            return single
        runs = graph.derive(with_existing_values)
        uncovered = find_uncovered(runs.derive(_with_unread_stored), arch, self._engines)
        return None if uncovered is None else Refusal(self.name, uncovered.reason)

    def knobs(self, graph: OperationGraph, arch: ArchSpec) -> tuple[Knob, ...]:
        """None: every part runs with its engine's defaults."""
        return ()

    def plan(self, graph: OperationGraph, arch: ArchSpec, choices: Choices) -> Plan:
        """The chain of the parts' plans; ``Plan.parts`` names them in launch order."""
        resolve_choices(self.name, (), choices)
        single = self._refuse_single(graph, arch)
        if single is not None:
            raise NotSupportedError(str(single))
        runs = graph.derive(with_existing_values)
        parts = partition(runs.derive(_with_unread_stored), arch, self._engines)
        if isinstance(parts, Uncovered):
            raise NotSupportedError(str(Refusal(self.name, parts.reason)))
        return chain_of(self, graph, arch, runs, parts)

    def precompiled(self) -> tuple[KernelRef, ...]:
        """None of its own."""
        return ()

    def _refuse_single(self, graph: OperationGraph, arch: ArchSpec) -> Refusal | None:
        keeping = (engine for engine in anchored(self._engines, graph.operations) if keeps_precision(engine, graph))
        taker = next((engine for engine in keeping if graph.derive(engine.refuse, arch) is None), None)
        return None if taker is None else Refusal(self.name, f"one engine takes the whole graph: {taker.name}")


def _with_unread_stored(graph: OperationGraph) -> OperationGraph:
    """``graph`` with unread outputs that their operations must write, as intermediates in memory."""
    operations = with_unread_stored(graph.operations)
    return graph if operations is graph.operations else OperationGraph(operations)
