"""The plan list of a pygraph: what its plans are called, need and note, and which of them ``execute`` runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from lowdnn.backend.handle import Handle
from lowdnn.backend.override_shapes import Shapes
from lowdnn.engines.base import Engine
from lowdnn.engines.engine_set import EngineSet
from lowdnn.frontend.enums import behavior_note, frontend_behavior_note, frontend_knob, knob_type
from lowdnn.frontend.knobs import knob, ranged
from lowdnn.frontend.plans import PlanEntry, PlanList
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import NotSupportedError


@dataclass(frozen=True)
class PlanConfig:
    """A plan of the list as ``create_execution_plan`` takes it."""

    engine_id: int
    knobs: Mapping[knob_type, int]


@dataclass(frozen=True)
class ParetoPlan:
    """A plan on the frontier of time against workspace.

    index: its place in the plan list.  estimated_us: microseconds by the cost model, or measured where a tuning record
    says so (``is_measured``).  workspace_bytes: bytes that it needs, at any address.
    """

    index: int
    name: str
    estimated_us: float
    is_measured: bool
    workspace_bytes: int


class PlanMethods:
    """See the module's docstring."""

    name: str
    _plans: PlanList | None

    @property
    def plan(self) -> Plan:
        """The plan that ``execute`` runs, as data; before build_plans the first one not deselected."""
        return self._selected().plan

    @property
    def plans(self) -> list[PlanConfig]:
        """The candidates, best first, deselected ones included; none before create_execution_plans."""
        return [PlanConfig(*self.get_engine_and_knobs_at_index(i)) for i in range(self.get_execution_plan_count())]

    def pareto_plans(self) -> list[ParetoPlan]:
        """The plans that need less workspace than each faster one, fastest first, without those deselected.

        ``build_plan_at_index`` and ``select_plan`` take one by its index. Plans between the best one and one without
        splits, with their sums in fewer parts, are among them, and then in the list as well.
        """
        return [
            ParetoPlan(
                index, found.plan.name, found.estimated_us, found.is_measured, size_anywhere(found.workspace_bytes)
            )
            for index, found in self._planned().frontier()
        ]

    def backend_plan_entries(self) -> list[PlanConfig]:
        """``plans``: cudnn-frontend has others beside those of its backend."""
        return self.plans

    @property
    def selected_engine(self) -> None:
        """None, which stands for the backend in cudnn-frontend: lowdnn has no engines of another kind."""
        return None

    def select_plan(self, index: int) -> Self:
        """``build_plans`` takes the plan at ``index`` from now on, and raises where it does not work."""
        plans = self._planned()
        plans.pinned = plans.usable(index)
        self._forget_selected()
        return self

    def get_execution_plan_count(self) -> int:
        """Candidates in the list, deselected ones included; 0 before create_execution_plans."""
        return 0 if self._plans is None else len(self._plans.entries)

    def get_plan_name_at_index(self, index: int) -> str:
        return self._planned().at(index).plan.name

    def get_workspace_size(
        self,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes that the selected plan needs, at any address; before build_plans, of the first one not deselected.

        override_uids: as in ``execute``, for the bytes that it needs with these shapes.  handle: any, changes nothing.
        """
        shapes = self._other_shapes(override_uids, override_shapes, override_strides)
        return self._selected().workspace_bytes(shapes, self._engines())

    def get_workspace_size_plan_at_index(
        self,
        index: int,
        handle: Handle | None = None,
        override_uids: Sequence[int] | None = None,
        override_shapes: Sequence[Sequence[int]] | None = None,
        override_strides: Sequence[Sequence[int]] | None = None,
    ) -> int:
        """Bytes of workspace that the plan at ``index`` needs."""
        shapes = self._other_shapes(override_uids, override_shapes, override_strides)
        return self._planned().at(index).workspace_bytes(shapes, self._engines())

    def get_predicted_slowdown(self) -> float:
        """Predicted time of the selected plan, relative to that of the plan in whose place it runs; 1 for the best.

        See ``compile_policy`` of ``create_handle``.
        """
        entry = self._selected()
        return entry.candidate.slowdown if entry.prepared is None else entry.prepared.slowdown

    def get_behavior_notes(self) -> list[behavior_note]:
        return [frontend_behavior_note(note) for note in self._selected().plan.behavior_notes]

    def get_behavior_notes_for_plan_at_index(self, index: int) -> list[behavior_note]:
        return [frontend_behavior_note(note) for note in self._planned().at(index).plan.behavior_notes]

    def get_engine_count(self) -> int:
        return len(self._engines())

    def get_knobs_for_engine(self, engine_id: int) -> list[knob]:
        """The knobs of an engine for this graph; raises NotSupportedError where the engine refuses it."""
        plans, engine = self._planned(), self._engine(engine_id)
        refusal = engine.refuse(plans.graph, plans.arch)
        if refusal is not None:
            raise NotSupportedError(f"pygraph {self.name!r}: {refusal}")
        return [ranged(found.type, found.values) for found in engine.knobs(plans.graph, plans.arch)]

    def get_engine_and_knobs_at_index(self, index: int) -> tuple[int, dict[knob_type, int]]:
        plan = self._planned().at(index).plan
        return plan.engine_index, {frontend_knob(kind): value for kind, value in plan.choices}

    def explain(self) -> str:
        """A table of at most 40 lines of 80 characters: a sentence on the choice; each candidate with its times,
        workspace and notes, or why it is left out; the engines that refused."""
        return str(self._planned().explanation())

    def _forget_selected(self) -> None:
        """``execute`` selects a plan anew."""
        raise NotImplementedError

    def _planned(self) -> PlanList:
        """The plan list; raises BadParamError before build_operation_graph."""
        raise NotImplementedError

    def _selected(self) -> PlanEntry:
        """The plan that ``execute`` runs; before build_plans the first one not deselected."""
        raise NotImplementedError

    def _other_shapes(self, uids: object, shapes: object, strides: object) -> Shapes:
        """The shapes that are given instead of the graph's."""
        raise NotImplementedError

    def _engines(self) -> EngineSet:
        raise NotImplementedError

    def _engine(self, engine_id: int) -> Engine:
        """The engine of this number; raises BadParamError where there is none."""
        raise NotImplementedError
