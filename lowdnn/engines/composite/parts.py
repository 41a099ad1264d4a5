"""Parts of a cut: sub-graphs with the plans of the engines that run them best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.composite.forms import Form, Forms
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.floor import busy_time_s
from lowdnn.engines.model.clock import launch_s
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, outputs_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan


@dataclass(frozen=True)
class Part:
    """Some operations of a graph and the plan for them.

    stored: their outputs that lie in memory when the part runs as a graph of its own.
    plan: a plan for these operations or for others of the same form. uids: the uid here for each uid in the plan; empty
    if equal.
    seconds: see ``estimated_time_s``.
    """

    operations: tuple[Operation, ...]
    stored: tuple[Tensor, ...]
    plan: Plan
    uids: Mapping[int, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Planned:
    """The plan for all sub-graphs of one form, with the uids of its tensors in the order of ``Form.uids``."""

    plan: Plan
    uids: tuple[int, ...]
    seconds: float


class PartPlanner:
    """Plans sub-graphs of one graph.

    Sub-graphs that are equal but for the uids and names of their tensors (``Form``) share one plan.
    """

    def __init__(self, graph: OperationGraph, arch: ArchSpec) -> None:
        self._graph = graph
        self._arch = arch
        self._forms = Forms(graph)
        self._planned: dict[tuple[int, ...], _Planned | None] = {}
        self._taken: dict[tuple[int, ...], bool] = {}

    def part(self, operations: tuple[Operation, ...], engines: Sequence[Engine]) -> Part | None:
        """The best plan for all of ``operations`` by one of ``engines``; None where none of them takes them."""
        form = self._forms.of(operations)
        if form.key not in self._planned:
            self._planned[form.key] = self._plan(operations, form, engines)
        planned = self._planned[form.key]
        if planned is None:
            return None
        uids = {} if planned.uids == form.uids else dict(zip(planned.uids, form.uids, strict=True))
        written = (form.border.get(t.uid, t) for op in operations for t in outputs_of(op).values())
        stored = tuple(tensor for tensor in written if not tensor.is_virtual)
        return Part(operations, stored, planned.plan, uids, planned.seconds)

    def takes(self, operations: tuple[Operation, ...], engines: Sequence[Engine]) -> bool:
        """Whether one of ``engines`` takes all of ``operations``."""
        form = self._forms.of(operations)
        if form.key not in self._taken:
            graph = self._graph.subgraph(operations)
            taking = (
                engine for engine in anchored(tuple(engines), operations) if engine.refuse(graph, self._arch) is None
            )
            self._taken[form.key] = next(taking, None) is not None
        return self._taken[form.key]

    def _plan(self, operations: tuple[Operation, ...], form: Form, engines: Sequence[Engine]) -> _Planned | None:
        """The plan with the least estimate, one that keeps the inputs' precision if any does; None where none is."""
        possible = anchored(tuple(engines), operations)
        if not possible:
            return None
        graph = self._graph.subgraph(operations)
        plans = [engine.plan(graph, self._arch, {}) for engine in possible if engine.refuse(graph, self._arch) is None]
        if not plans:
            return None
        best = min(plans, key=lambda plan: (lowers_precision(plan), plan_us(plan, self._arch)))
        return _Planned(best, form.uids, estimated_time_s(best, self._arch))


def estimated_time_s(plan: Plan, arch: ArchSpec) -> float:
    """An upper estimate of the plan's time at the rates that ``arch`` attains: nothing overlaps."""
    return sum(launch_s(arch, busy_time_s(launch, arch)) for launch in plan.launches)


def lowers_precision(plan: Plan) -> bool:
    return NumericalNote.TF32_INPUTS in plan.numerical_notes
