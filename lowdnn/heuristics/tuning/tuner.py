"""The tuner: candidates of a graph, compiled beforehand, timed in turns, checked, and the record of the fastest.

Graphs are prepared some ahead of the one that is timed, so that their kernels are compiled meanwhile. The results of
the fastest plan are compared with those of the cost model's first choice; a plan whose results differ is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import median

from lowdnn import __version__
from lowdnn.arch.specs import ArchSpec
from lowdnn.cases.naming import case_of
from lowdnn.checks import instance, integer, positive
from lowdnn.engines.base import Engine
from lowdnn.enums import HeurMode
from lowdnn.events import emit, event_logger
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import Candidate, rank
from lowdnn.heuristics.tuning.compilers import Compilers
from lowdnn.heuristics.tuning.race import Race, run
from lowdnn.heuristics.tuning.record_books import Records
from lowdnn.heuristics.tuning.records import MOST_CASE, NO_LIMIT, TuningRecord, device_label, short_key
from lowdnn.heuristics.tuning.search import Scope, variants, worth_timing
from lowdnn.heuristics.tuning.timers import TimedPlan, Timer
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import LowdnnError

#: Graphs whose candidates are chosen, and begin to be compiled, before the first of them is timed.
_AHEAD = 16
#: The share of a budget after which no kernel is waited for.
_COMPILING_SHARE = 0.6
#: Candidates whose variants are timed.
_REFINED = 3
#: Compilers that one tuning may start.
_MOST_PROCESSES = 256
#: Times of the winner with a warm cache, of which the median is kept.
_WARM_SAMPLES = 5
#: Variants of each.
_VARIANTS = 8


@dataclass(frozen=True)
class TuningOptions:
    """How much a tuning tries.

    budget_s: the seconds after which no further round begins, and no further graph; the graph at hand gets one round.
    most_kernels: candidates of a graph that need kernels which no graph before needed.  processes: how many compile
    beforehand; threads do where it is 0.
    Raises AttributeTypeError and OutOfBoundError for other values.
    """

    scope: Scope = field(default_factory=Scope)
    budget_s: float = float("inf")
    most_kernels: int = 16
    processes: int = 0

    def __post_init__(self) -> None:
        instance(self.scope, Scope, "tuning.scope")
        positive(self.budget_s, "tuning.budget_s")
        integer(self.most_kernels, "tuning.most_kernels", 1)
        integer(self.processes, "tuning.processes", 0, _MOST_PROCESSES)


@dataclass(frozen=True)
class Trial:
    """A candidate and its time. us: infinite where it was not timed; ``failure`` says why."""

    candidate: Candidate
    us: float
    failure: str = ""


@dataclass(frozen=True)
class Tuned:
    """The trials of a graph, the winner first, then by their times; and the winner's record."""

    graph: OperationGraph
    trials: tuple[Trial, ...]
    record: TuningRecord

    @property
    def candidate(self) -> Candidate:
        return self.trials[0].candidate

    def __str__(self) -> str:
        record, timed = self.record, sum(not trial.failure for trial in self.trials)
        gain = f"{record.first_us / record.us:.3f}x the first choice" if record.us else "no time"
        return f"{record.us:9.2f} us  {gain}  of {timed}  {record.choice_text}"


@dataclass(frozen=True)
class TuningDevice:
    """Where plans are timed.

    timer: makes the timer of a graph.  launches: whether timers launch kernels, which are then compiled beforehand.
    driver: its version.
    """

    runtime: Runtime
    arch: ArchSpec
    engines: Sequence[Engine]
    records: Records
    timer: Callable[[OperationGraph], Timer]
    launches: bool = True

    @cached_property
    def driver(self) -> str:
        version = self.runtime.driver.driver_version()
        return f"{version // 1000}.{version % 1000 // 10}"


@dataclass(frozen=True)
class _Prepared:
    """A graph and its candidates, whose kernels are being compiled."""

    graph: OperationGraph
    candidates: tuple[Candidate, ...]


class Tuner:
    """Tunes graphs on a device, one after the other. Close it, or use ``with``."""

    def __init__(self, device: TuningDevice, options: TuningOptions) -> None:
        self._device, self._options = device, options
        self._begin_s = time.monotonic()
        self.compilers = Compilers(device.runtime, options.processes if device.launches else 0)

    def tune(self, graphs: Iterable[OperationGraph]) -> Iterator[Tuned | LowdnnError]:
        """The result of each graph, in their order, as far as the budget goes; an error where there is no plan."""
        waiting: deque[_Prepared | LowdnnError] = deque()
        source = iter(graphs)
        while self._has_time():
            while len(waiting) < _AHEAD and (graph := next(source, None)) is not None:
                waiting.append(self._prepared(graph))
            if not waiting:
                return
            prepared = waiting.popleft()
            yield prepared if isinstance(prepared, LowdnnError) else self._tuned(prepared)

    def close(self) -> None:
        self.compilers.close()

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_time(self) -> bool:
        return time.monotonic() < self._begin_s + self._options.budget_s

    def _prepared(self, graph: OperationGraph) -> _Prepared | LowdnnError:
        device, options = self._device, self._options
        ranking = rank(graph, device.arch, HeurMode.INSTANT, device.engines)
        try:
            hints = partial(device.records.hints, device.arch)
            candidates = worth_timing(ranking, options.scope, hints, options.most_kernels, self.compilers.has)
        except LowdnnError as error:
            return error
        for candidate in candidates if device.launches else ():
            self.compilers.begin(candidate.plan.kernels)
        return _Prepared(graph, candidates)

    def _tuned(self, prepared: _Prepared) -> Tuned | LowdnnError:
        kernels = [kernel for candidate in prepared.candidates for kernel in candidate.plan.kernels]
        deadline_s = self._begin_s + _COMPILING_SHARE * self._options.budget_s
        self.compilers.wait(kernels, None if deadline_s == float("inf") else deadline_s)
        try:
            with closing(self._device.timer(prepared.graph)) as timer:
                heat = _Heat(prepared.candidates, timer, self.compilers, self._options.scope, self._has_time)
                trials, warm_us = heat.trials()
        except LowdnnError as error:
            return error
        record = self._record(prepared, trials, warm_us, timer)
        emit(event_logger("tuning"), logging.INFO, "tuned", {"case": record.case, "choice": record.choice_text})
        return Tuned(prepared.graph, trials, record)

    def _record(self, prepared: _Prepared, trials: Sequence[Trial], warm_us: float, timer: Timer) -> TuningRecord:
        device, limit = self._device, self._options.scope.workspace_limit
        winner, first = trials[0], prepared.candidates[0]
        first_us = next((trial.us for trial in trials if trial.candidate is first and not trial.failure), 0.0)
        return TuningRecord(
            graph=short_key(prepared.graph),
            device=device_label(device.arch),
            workspace_limit=NO_LIMIT if limit is None else limit,
            engine=winner.candidate.engine.name,
            choices=dict(winner.candidate.plan.choices),
            us=winner.us,
            warm_us=warm_us,
            first_us=first_us,
            clock=timer.clock,
            revision=device.records.revision(winner.candidate.plan),
            driver=device.driver,
            lowdnn=__version__,
            case=_case_text(prepared.graph),
        )


class _Heat:
    """The race of one graph's candidates, and a second one of the variants of those in front."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        timer: Timer,
        compilers: Compilers,
        scope: Scope,
        has_time: Callable[[], bool],
    ) -> None:
        self._candidates, self._timer, self._compilers = candidates, timer, compilers
        self._scope, self._has_time = scope, has_time
        self._plans: dict[int, TimedPlan] = {}
        self._tried: list[Candidate] = []
        self._us: dict[int, float] = {}
        self._failures: dict[int, str] = {}

    def trials(self) -> tuple[tuple[Trial, ...], float]:
        """Every candidate's trial, the winner first, and the winner's time with a warm cache.

        Raises the first candidate's error where none could be run.
        """
        order = self._raced(self._candidates)
        in_front = [self._tried[place] for place in order[:_REFINED]]
        others = [other for candidate in in_front for other in variants(candidate, self._scope, _VARIANTS)]
        if others and self._has_time():
            first = [self._candidates[0]] if 0 in order and 0 not in order[:_REFINED] else []
            order = [*self._raced([*in_front, *first, *others]), *order]
        winner = self._right_winner(dict.fromkeys(order))
        places = sorted(range(len(self._tried)), key=lambda place: (place != winner, self._time(place), place))
        trials = (Trial(self._tried[p], self._time(p), self._failures.get(p, "")) for p in places)
        return tuple(trials), median(self._plans[winner].warm_us() for _ in range(_WARM_SAMPLES))

    def _raced(self, candidates: Sequence[Candidate]) -> list[int]:
        """The places of the candidates that were timed, fastest first. One that is timed again keeps its place."""
        places = [place for candidate in candidates if (place := self._place(candidate)) not in self._failures]
        if not places:
            raise LowdnnError(f"tuning: no candidate could be run: {'; '.join(self._failures.values())}")
        race = Race(places)
        run(race, lambda place: self._plans[place].cold_us(), self._has_time)
        self._us |= {place: race.us(place) for place in race.times}
        in_front = race.runners if race.times else places
        return sorted(places, key=lambda place: (place != race.leader, place not in in_front, self._time(place)))

    def _place(self, candidate: Candidate) -> int:
        """The place of a candidate, which is made ready to be timed; it has a failure where that did not go."""
        if candidate in self._tried:
            return self._tried.index(candidate)
        place = len(self._tried)
        self._tried.append(candidate)
        failure = next(filter(None, map(self._compilers.failure, candidate.plan.kernels)), "")
        try:
            if not failure:
                self._plans[place] = self._timer.timed(candidate)
        except LowdnnError as error:
            failure = str(error)
        if failure:
            self._failures[place] = failure
        return place

    def _right_winner(self, order: Iterable[int]) -> int:
        """The first place in ``order`` whose candidate has the results of the first one."""
        first = self._tried[0]
        for place in order:
            if place == 0 or 0 in self._failures:
                return place
            wrong = self._timer.disagreement(self._tried[place], first)
            if not wrong:
                return place
            fields = {"plan": self._tried[place].plan.name, "reason": wrong}
            emit(event_logger("tuning"), logging.ERROR, "results_differ", fields)
            self._failures[place] = f"its results are not those of the first choice: {wrong}"
        raise LowdnnError("tuning: no candidate was timed")

    def _time(self, place: int) -> float:
        return float("inf") if place in self._failures else self._us.get(place, float("inf"))


def _case_text(graph: OperationGraph) -> str:
    """The graph as a text case; empty where that is long."""
    try:
        text = str(case_of(graph))
    except LowdnnError:
        return ""
    return text if len(text) <= MOST_CASE else ""
