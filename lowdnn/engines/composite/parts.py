"""Parts of a cut: sub-graphs with the plans of the engines that run them best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from lowdnn.arch.specs import ArchSpec
from lowdnn.engines.base import Engine
from lowdnn.engines.composite.forms import Form, Forms
from lowdnn.engines.engine_set import anchored
from lowdnn.engines.floor import bound_us, modelled_us
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, outputs_of
from lowdnn.ops.tensor import Tensor
from lowdnn.plan import Plan

#: Whole numbers of these have the same sum in any order.
PICOSECONDS_PER_US = 10**6


class Cost(NamedTuple):
    """The cost of plans, which are compared by the first field in which they differ.

    lowering: how many lower the inputs' precision.  time_ps: picoseconds by ``plan_us``.  moved_bytes: bytes that their
    launches move, which tell cuts apart where arithmetic takes longer.
    """

    lowering: int = 0
    time_ps: int = 0
    moved_bytes: int = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(*(one + another for one, another in zip(self, other, strict=True)))


NOTHING = Cost()


@dataclass(frozen=True)
class Part:
    """Some operations of a graph and the plan for them.

    stored: their outputs that lie in memory when the part runs as a graph of its own.
    plan: a plan for these operations or for others of the same form. uids: the uid here for each uid in the plan; empty
    if equal.
    cost: the plan's.
    """

    operations: tuple[Operation, ...]
    stored: tuple[Tensor, ...]
    plan: Plan
    uids: Mapping[int, int] = field(default_factory=dict)
    cost: Cost = NOTHING


@dataclass(frozen=True)
class _Planned:
    """The plan for all sub-graphs of one form, with the uids of its tensors in the order of ``Form.uids``."""

    plan: Plan
    uids: tuple[int, ...]
    cost: Cost


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
        return Part(operations, stored, planned.plan, uids, planned.cost)

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
        """The plan with the least cost; None where no engine takes the form."""
        possible = anchored(tuple(engines), operations)
        if not possible:
            return None
        graph = self._graph.subgraph(operations)
        bounded = sorted((bound_us(graph, engine, self._arch), turn) for turn, engine in enumerate(possible))
        best: tuple[Cost, int, Plan] | None = None
        for bound, turn in bounded:
            engine = possible[turn]
            if _is_beaten(bound, best) or engine.refuse(graph, self._arch) is not None:
                continue
            if not _is_beaten(modelled_us(graph, engine, self._arch), best):
                plan = engine.plan(graph, self._arch, {})
                found = (cost_of(plan, self._arch), turn, plan)
                best = found if best is None else min(best, found, key=itemgetter(0, 1))
        return None if best is None else _Planned(best[2], form.uids, best[0])


def _is_beaten(least_us: float, best: tuple[Cost, int, Plan] | None) -> bool:
    """Whether a plan of at least so many microseconds costs more than the best one."""
    return best is not None and Cost(time_ps=int(least_us * PICOSECONDS_PER_US)) > best[0]


def cost_of(plan: Plan, arch: ArchSpec) -> Cost:
    is_lowering = NumericalNote.TF32_INPUTS in plan.numerical_notes
    return Cost(int(is_lowering), round(plan_us(plan, arch) * PICOSECONDS_PER_US), plan.work.bytes)
