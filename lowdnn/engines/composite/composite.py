"""``composite``: the engine of last resort. It runs a graph that no single engine takes as a chain of their plans, and
one that only engines take that round its inputs.

The cut is the one with the least estimated time (see ``partition``); intermediates lie in the workspace. Inputs are
never converted down (TF32) where an engine exists that keeps their precision. Convolutions may run by transforms (FFT,
Winograd); a knob keeps them out, for whoever wants none of their notes or has less workspace to give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import (
    Anchors,
    Choices,
    Engine,
    Knob,
    LastResort,
    Refusal,
    keeps_precision,
)
from lowdnn.engines.composite.assembly import assemble
from lowdnn.engines.composite.partition import Uncovered, find_uncovered, partition
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.limits import UNLIMITED
from lowdnn.engines.plan_parts import PlanParts
from lowdnn.engines.problem_engine import ProblemEngine
from lowdnn.enums import KnobType
from lowdnn.graph.attention_values import with_existing_values
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.observable import with_unread_stored
from lowdnn.status import NotSupportedError


class Composite(ProblemEngine["_Runs"], LastResort):
    """See the module's docstring.

    engines: engines that may run a part, in order of preference.  transforming: engines that may run one by transforms.
    """

    name = "composite"
    index = 6
    anchors: Anchors = ()
    limits = UNLIMITED

    def __init__(self, engines: Sequence[Engine], transforming: Sequence[Engine] = ()) -> None:
        self._engines = engines
        self._transforming = transforming

    def problem(self, graph: OperationGraph, arch: ArchSpec) -> _Runs | Refusal:
        """Refuses a graph that one engine takes as it is, and one with an operation that no engine takes."""
        keeping = (engine for engine in anchored(self._engines, graph.operations) if keeps_precision(engine, graph))
        taker = next((engine for engine in keeping if graph.derive(engine.refuse, arch) is None), None)
        if taker is not None:
            return Refusal(self.name, f"one engine takes the whole graph: {taker.name}")
        whole = graph.derive(with_existing_values)
        stored = whole.derive(_with_unread_stored)
        uncovered = find_uncovered(stored, arch, self._engines)
        return _Runs(whole, stored) if uncovered is None else Refusal(self.name, uncovered.reason)

    def knobs_of(self, runs: _Runs, arch: ArchSpec) -> tuple[Knob, ...]:
        """TRANSFORMS, for graphs of several operations with convolutions."""
        possible = anchored(self._transforming, runs.whole.operations)
        if not possible or any(runs.whole.derive(engine.refuse, arch) is None for engine in possible):
            return ()
        return (Knob("transforms", KnobType.TRANSFORMS, (0, 1), 1, "whether convolutions may run by FFT or Winograd"),)

    def parts(self, runs: _Runs, arch: ArchSpec, chosen: Choices) -> PlanParts:
        """The chain of the parts' plans, each of them with its engine's defaults."""
        engines = anchored(self._engines, runs.stored.operations)
        if chosen.get(KnobType.TRANSFORMS):
            engines += anchored(self._transforming, runs.stored.operations)
        parts = partition(runs.stored, arch, engines)
        if isinstance(parts, Uncovered):
            raise NotSupportedError(str(Refusal(self.name, parts.reason)))
        return assemble(runs.whole, parts)


@dataclass(frozen=True)
class _Runs:
    """The graphs that the engine runs for a given graph.

    stored: ``whole``, with unread outputs that their operations must write as intermediates in memory.
    """

    whole: OperationGraph
    stored: OperationGraph


def _with_unread_stored(graph: OperationGraph) -> OperationGraph:
    """``graph`` with unread outputs that their operations must write, as intermediates in memory."""
    operations = with_unread_stored(graph.operations)
    return graph if operations is graph.operations else OperationGraph(operations)
