"""The execution plans of a pygraph: candidates from the heuristics, filters over them, and those that are built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from lowdnn.arch.specs import ArchSpec
from lowdnn.backend.at_hand import choice_at_hand
from lowdnn.backend.handle import Handle
from lowdnn.backend.override_shapes import Shapes, candidate_with
from lowdnn.engines.base import Engine, Refusal
from lowdnn.engines.engine_set import reasons, related
from lowdnn.enums import HeurMode, KnobType
from lowdnn.events import emit, event_logger
from lowdnn.frontend.arguments import integer
from lowdnn.frontend.enums import build_plan_policy
from lowdnn.frontend.execution import PreparedExecution
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.kernel_caches import kernel_cache
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.explanation import Explanation, Outcome
from lowdnn.heuristics.frontier import best_allowed, frontier
from lowdnn.heuristics.ranking import Candidate, Ranking, candidate_for, rank
from lowdnn.plan import Plan
from lowdnn.runtime.workspace import size_anywhere
from lowdnn.status import (
    BadParamError,
    CompilationFailedError,
    GraphPatternError,
    NotSupportedError,
    OutOfBoundError,
    SublibraryLoadingFailedError,
)

#: Why a plan is left out, or an empty string.
Filter = Callable[[Plan], str]


@dataclass
class PlanEntry:
    """One candidate of the list.  failure: why it could not be built.  prepared: set when it has been built.

    is_derived: whether it was made from another candidate by splitting its sums into fewer parts.
    """

    candidate: Candidate
    failure: str = ""
    prepared: PreparedExecution | None = None
    is_derived: bool = False

    @property
    def plan(self) -> Plan:
        return self.candidate.plan

    def workspace_bytes(self, shapes: Shapes, engines: Sequence[Engine]) -> int:
        """Bytes of workspace at any address.  shapes: shapes that replace the graph's, if any."""
        if not shapes:
            return size_anywhere(self.candidate.workspace_bytes)
        if self.prepared is not None:
            return size_anywhere(self.prepared.with_shapes(shapes).plan.workspace_bytes)
        return size_anywhere(candidate_with(self.candidate, shapes, engines).plan.workspace_bytes)


@dataclass
class PlanList:
    """Plans of one graph on one device, best first."""

    graph: OperationGraph
    arch: ArchSpec
    engines: Sequence[Engine]
    tensors: Mapping[int, Tensor]
    name: str
    cache: kernel_cache | None = None
    #: The handle whose bundles and tuning records are used; None if the graph is planned without a handle.
    handle: Handle | None = None
    filters: list[Filter] = field(default_factory=list)
    rankings: list[Ranking] = field(default_factory=list)
    #: The entry that was chosen by its index while there was no device to load it on.
    chosen: PlanEntry | None = None
    #: The entry that ``build`` has to take.
    pinned: PlanEntry | None = None
    #: The entry that ``build`` has taken in place of the first, since its kernels were at hand.
    at_hand: PlanEntry | None = None
    _entries: list[PlanEntry] = field(default_factory=list)
    #: The numbers of filters and entries when ``preferred`` looked last, and the entry that it found.
    _found: tuple[tuple[int, int], PlanEntry | None] = ((-1, -1), None)
    #: Rankings from which no candidate has been taken yet.
    _waiting: list[Ranking] = field(default_factory=list)
    #: Entries that come after those of ``_waiting``.
    _late: list[PlanEntry] = field(default_factory=list)

    @property
    def entries(self) -> list[PlanEntry]:
        """All plans. Plans after the first are ranked when they are asked for: most programs take the first."""
        while self._waiting:
            self._rank(self._waiting.pop(0))
        if self._late:
            self._entries += self._late
            self._late.clear()
        return self._entries

    def in_turn(self) -> Iterator[PlanEntry]:
        """The plans of ``entries`` one by one; those after the first are ranked when the second is asked for."""
        yield from self._entries[:1]
        yield from self.entries[1:]

    @property
    def is_empty(self) -> bool:
        return not self._entries and not self.entries

    def query(self, mode: HeurMode) -> None:
        """Adds the candidates of one heuristics mode after those that are there already."""
        if self.handle is None:
            ranking = rank(self.graph, self.arch, mode, self.engines)
        else:
            ranking = self.handle.rank(self.graph, mode, self.arch)
        if not self.rankings and not self._entries and ranking.best is not None:
            self._entries.append(PlanEntry(ranking.best))
        self.rankings.append(ranking)
        self._waiting.append(ranking)

    def add(self, engine: Engine, choices: Mapping[KnobType, int]) -> None:
        """Adds one engine with knob choices; raises BadParamError, NotSupportedError."""
        self.entries.append(PlanEntry(candidate_for(engine, self.graph, self.arch, choices)))

    def check_support(self) -> None:
        """Raises GraphPatternError, with a reason for each engine, unless a plan is left to build."""
        if any(not self.barred(entry) for entry in self.in_turn()):
            return
        raise self._refused("no engine runs the graph")

    def barred(self, entry: PlanEntry) -> str:
        """Why a filter leaves the entry out, or an empty string."""
        return self.barred_plan(entry.plan)

    def barred_plan(self, plan: Plan) -> str:
        """Why a filter leaves a plan of the graph out, or an empty string."""
        return next((reason for reason in (check(plan) for check in self.filters) if reason), "")

    def build(self, policy: build_plan_policy, handle: Handle) -> PreparedExecution:
        """Loads plans, the first that works or all that do, and returns the best of them.

        A plan that the device does not support or that cannot be compiled is passed over, with a warning in the log,
        but for the pinned one, which is the best of them.
        Raises GraphPatternError where none works, DriverError, DeviceAllocationFailedError; BadParamError for a pinned
        plan that a filter leaves out.
        """
        best = self._build(policy, handle)
        fields = {
            "graph": self.name,
            "plan": best.plan.name,
            "operation": self.graph.operation,
            "engine": best.plan.engine,
            "key": best.plan.graph_key,
        }
        emit(event_logger("frontend"), logging.INFO, "plan_selected", fields)
        return best

    def _build(self, policy: build_plan_policy, handle: Handle) -> PreparedExecution:
        best = None if self.pinned is None else self.prepare(self._not_barred(self.pinned), handle)
        if best is None and policy is build_plan_policy.HEURISTICS_CHOICE:
            best = self._prepare_at_hand(handle)
        if best is not None and policy is build_plan_policy.HEURISTICS_CHOICE:
            return best
        if policy is build_plan_policy.ALL:
            for entry in self.entries:
                if not self.barred(entry):
                    handle.begin(entry.plan)
        preferred = self.preferred()
        others = (entry for entry in self.in_turn() if entry is not preferred)
        for entry in chain(() if preferred is None else (preferred,), others):
            if entry is self.pinned:
                continue
            entry.failure = self.barred(entry)
            prepared = None if entry.failure else self._try_prepare(entry, handle)
            best = best or prepared
            if best is not None and policy is build_plan_policy.HEURISTICS_CHOICE:
                break
        if best is None:
            raise self._refused("no plan could be built")
        return best

    def _prepare_at_hand(self, handle: Handle) -> PreparedExecution | None:
        """The plan that runs in place of the first one, by the handle's compile policy; None for the first one itself.

        It has the last place of the list, so that the others keep theirs.
        """
        first = self.preferred()
        if first is None:
            return None
        taken = choice_at_hand(handle, first.candidate, lambda plan: not self.barred_plan(plan))
        if taken.plan == first.plan:
            return None
        self.at_hand = PlanEntry(taken)
        self._late.append(self.at_hand)
        return self._try_prepare(self.at_hand, handle)

    def first(self) -> PlanEntry:
        """The entry that was chosen or pinned, else the preferred one; raises GraphPatternError where there is none."""
        self.check_support()
        found = self.chosen or self.pinned or self.preferred()
        if found is None:
            raise self._refused("no engine runs the graph")
        return found

    def preferred(self) -> PlanEntry | None:
        """The first entry; where a filter leaves it out, the fastest by estimate that none does.

        That may be a plan with its sums in fewer parts, which gets the last place of the list.
        """
        first = next(self.in_turn(), None)
        if first is None or not self.barred(first):
            return first
        if self._found[0] != (len(self.filters), len(self.entries)):
            found = best_allowed(self._candidates(), lambda plan: not self.barred_plan(plan))
            entry = None if found is None else self._entry_of(found)
            self._found = (len(self.filters), len(self.entries)), entry
        return self._found[1]

    def frontier(self) -> list[tuple[int, Candidate]]:
        """The plans that no filter leaves out and no other beats in time and workspace, with their places in the list.

        Plans with their sums in fewer parts get the last places.
        """
        found = frontier(self._candidates(), lambda plan: not self.barred_plan(plan))
        return [(self.entries.index(self._entry_of(candidate)), candidate) for candidate in found]

    def at(self, index: int) -> PlanEntry:
        if type(index) is int and 0 <= index < len(self._entries):
            return self._entries[index]
        where = f"pygraph {self.name!r}: plan index"
        if not self.entries:
            raise OutOfBoundError.at(where, expected="a plan", got="none", hint="call create_execution_plans first")
        return self.entries[integer(index, where, 0, len(self.entries) - 1)]

    def usable(self, index: int) -> PlanEntry:
        """The entry at ``index``. Raises BadParamError for one that a filter leaves out."""
        return self._not_barred(self.at(index))

    def prepared_as(self, prepared: PreparedExecution) -> PlanEntry | None:
        """The entry that was prepared as ``prepared``."""
        early = filter(None, (self.at_hand, *self._entries[:1]))
        return next((entry for entry in chain(early, self.in_turn()) if entry.prepared is prepared), None)

    def prepare(self, entry: PlanEntry, handle: Handle) -> PreparedExecution:
        """The plan of ``entry``, loaded now if it was not."""
        return entry.prepared or self._prepare(entry, handle)

    def explanation(self) -> Explanation:
        """The candidates with the one that is used, and the engines that refused."""
        outcomes = tuple(Outcome.of(entry.candidate, entry.failure or self.barred(entry)) for entry in self.entries)
        wanted = self.chosen or self.pinned or self.at_hand or self.preferred()
        places = range(len(outcomes)) if wanted is None else [self.entries.index(wanted)]
        chosen = next((outcomes[place] for place in places if not outcomes[place].left_out), None)
        return Explanation(outcomes, chosen, *related(self._refusals(), self.engines, self.graph))

    def _candidates(self) -> list[Candidate]:
        return [entry.candidate for entry in self.entries if not entry.is_derived]

    def _entry_of(self, candidate: Candidate) -> PlanEntry:
        """The entry with the candidate's plan; a new one at the end where there is none."""
        same = (entry for entry in self.entries if entry.candidate.engine is candidate.engine)
        known = next((entry for entry in same if entry.plan == candidate.plan), None)
        if known is None:
            known = PlanEntry(candidate, is_derived=True)
            self.entries.append(known)
        return known

    def _rank(self, ranking: Ranking) -> None:
        known = [entry.candidate for entry in self._entries if entry.candidate is not ranking.best]
        asked = {candidate.engine.name for candidate in known if not candidate.choices}
        new = (found for found in ranking.candidates if found.engine.name not in asked)
        here = [entry.candidate for entry in self._entries]
        self._entries += [PlanEntry(found) for found in new if not any(found is candidate for candidate in here)]

    def _refused(self, what: str) -> GraphPatternError:
        """The error of a graph that does not run here, with each engine's reason; it is an event, too."""
        error = GraphPatternError(f"pygraph {self.name!r}: {what}; " + self._reasons())
        fields = {"graph": self.name, "status": error.status.name}
        emit(event_logger("frontend"), logging.INFO, "graph_refused", fields)
        return error

    def _reasons(self) -> str:
        """``engine: reason``, a line for each engine of the graph's operations; the others are counted."""
        lines = [
            f"{entry.candidate.engine.name}: {entry.failure or self.barred(entry) or entry.candidate.reason}"
            for entry in self.entries
        ]
        lines += reasons(self._refusals(), self.engines, self.graph)
        return "each engine's reason:\n  " + "\n  ".join(lines or ["there is no engine"])

    def _refusals(self) -> Iterable[Refusal]:
        """One of each engine that has no entry."""
        taking = {entry.candidate.engine.name for entry in self.entries}
        refused: dict[str, Refusal] = {}
        for refusal in (one for ranking in self.rankings for one in ranking.refusals):
            if refusal.engine not in taking:
                refused.setdefault(refusal.engine, refusal)
        return refused.values()

    def _not_barred(self, entry: PlanEntry) -> PlanEntry:
        reason = self.barred(entry)
        if reason:
            where = f"pygraph {self.name!r}: plan {self.entries.index(entry)}"
            raise BadParamError.at(where, expected="a plan not deselected", got=reason)
        return entry

    def _try_prepare(self, entry: PlanEntry, handle: Handle) -> PreparedExecution | None:
        try:
            return self._prepare(entry, handle)
        except (NotSupportedError, CompilationFailedError, SublibraryLoadingFailedError) as error:
            # Whatever else fails is no property of the plan: the next one would only be slower.
            entry.failure = str(error)
            fields = {"graph": self.name, "plan": entry.plan.name, "reason": entry.failure}
            emit(event_logger("frontend"), logging.WARNING, "plan_skipped", fields)
            return None

    def _prepare(self, entry: PlanEntry, handle: Handle) -> PreparedExecution:
        entry.prepared = PreparedExecution(entry.candidate, handle, self.tensors, self.cache)
        return entry.prepared
