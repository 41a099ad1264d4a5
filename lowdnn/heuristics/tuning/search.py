"""The candidates that are worth timing: what each engine takes by itself, what was fastest for other graphs, and knobs
around these.

The cost model is right about what limits a plan, not about its microseconds. So every choice whose estimate is near the
least one may be the fastest, and those come first that were so for many other graphs (``hints``). Plans with the same
kernels differ in what a launch is given. They are variants, of which one is kept here; ``variants`` lists the others
once their kernels have proved fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain, count, islice, product
from math import log

from lowdnn.checks import instance, integer, integers, mapping, sequence
from lowdnn.engines.base import Choices, Engine, Knob, LastResort
from lowdnn.enums import KnobType, NumericalNote
from lowdnn.heuristics.ranking import Candidate, Ranking, candidate_for
from lowdnn.heuristics.tuning.record_books import Choice
from lowdnn.plan import KernelRef, Plan
from lowdnn.status import BadParamError, NotSupportedError

#: Estimates up to this multiple of the least one are worth timing: nine in ten of the plans that were fastest among
#: many timed on an H200 are below it.
SLACK = 1.25
#: The cost of a step away from an engine's own choice, as a share of the estimate: its model knows more than that says.
_STEP = 0.03
#: The worth, as a share of the estimate, of having been the fastest e times as often for other graphs.
_PROVEN = 0.05
#: The cost, as a share of the estimate, of each candidate before with the same engine and tile. By hints and variety
#: twelve candidates have the kernels of a graph's record, left out itself, in 73 of 100 cases; by estimates in 29.
_SAME_TILE = 0.05
#: Plans that a walk makes; each takes some tenths of a millisecond.
_MOST_PLANS = 120
#: A knob with more values is moved by these factors; with less, to its neighbouring values, too.
_FEW_VALUES = 12
_FACTORS = (0.5, 0.75, 1.5, 2.0)
#: Knobs that are moved together, too: tiles of certain shapes exist, and larger ones leave room for fewer stages.
_PAIRS = (
    (KnobType.TILE_M, KnobType.TILE_N),
    (KnobType.TILE_M, KnobType.STAGES),
    (KnobType.TILE_N, KnobType.STAGES),
    (KnobType.TILE_M, KnobType.WARP_SPEC_CFG),
)
_TILE_KNOBS = (KnobType.TILE_M, KnobType.TILE_N, KnobType.TILE_ROWS, KnobType.TILE_COLS)
#: Notes that a caller must ask for: a tuned plan has none of them that the first choice does not have.
_LOOSE = frozenset(NumericalNote) - {NumericalNote.TENSOR_CORE, NumericalNote.STRICT_NAN_PROP}

Kernels = tuple[KernelRef, ...]
#: By the name of an engine the choices that were fastest, and for how many graphs.
Hints = Callable[[str], Mapping[Choice, int]]


@dataclass(frozen=True)
class Scope:
    """The plans that a tuning may try.

    workspace_limit: the most bytes that a plan may need; None for any number.  engines: their names; all where there
    are none.  knobs: the values that these knobs may have.  barred: why the caller does not want a plan, or an empty
    text.
    Raises AttributeTypeError and OutOfBoundError for other values.
    """

    workspace_limit: int | None = None
    engines: tuple[str, ...] = ()
    knobs: Mapping[KnobType, tuple[int, ...]] = field(default_factory=dict)
    barred: Callable[[Plan], str] = lambda plan: ""

    def __post_init__(self) -> None:
        if self.workspace_limit is not None:
            # A record's document takes no integer of NumPy.
            object.__setattr__(self, "workspace_limit", integer(self.workspace_limit, "tuning.workspace_limit", 0))
        for name in sequence(self.engines, "tuning.engines", "names"):
            instance(name, str, "tuning.engines", "names of engines")
        for knob, values in mapping(self.knobs, "tuning.knobs", "knob types").items():
            instance(knob, KnobType, "tuning.knobs")
            integers(values, f"tuning.knobs[{knob.name}]")

    @property
    def is_whole(self) -> bool:
        """Whether every engine and knob may be tried, so that the fastest plan is the graph's."""
        return not self.engines and not self.knobs

    def admits(self, plan: Plan) -> bool:
        limit, choices = self.workspace_limit, dict(plan.choices)
        return (
            (limit is None or plan.workspace_bytes <= limit)
            and (not self.engines or plan.engine in self.engines)
            and all(choices[knob] in values for knob, values in self.knobs.items() if knob in choices)
            and not self.barred(plan)
        )


@dataclass(frozen=True)
class _Kept:
    """A candidate.  steps: moves from what its engine takes by itself.  proofs: hints with its kernels, and 1."""

    candidate: Candidate
    steps: int = 0
    proofs: int = 1

    @property
    def score(self) -> float:
        return self.candidate.estimated_us * (1 + _STEP * self.steps - _PROVEN * log(self.proofs))


def worth_timing(
    ranking: Ranking, scope: Scope, hints: Hints, most: int, at_hand: Callable[[Kernels], bool] = lambda kernels: False
) -> tuple[Candidate, ...]:
    """Candidates with other kernels each: first the cost model's choice, then by what is expected.

    hints: by the name of an engine the choices that were fastest for other graphs, and for how many.
    most: candidates whose kernels are to be made.  at_hand: whether kernels are there, or will be in any case; at most
    ``most`` candidates with such kernels come behind the others.
    Raises NotSupportedError where no engine takes the graph in this scope.
    """
    starts = list(_starts(ranking, scope))
    if not starts:
        raise NotSupportedError(f"tuning: no engine takes the graph within what may be tried\n{ranking.explain()}")
    first = starts[0]
    allowed = _LOOSE - set(first.plan.numerical_notes)
    found: dict[Kernels, _Kept] = {}
    for kept in chain(map(_Kept, starts), _hinted(starts, scope, hints), _walk(starts, scope)):
        plan = kept.candidate.plan
        if allowed.isdisjoint(plan.numerical_notes) and scope.admits(plan):
            known = found.get(plan.kernels)
            found[plan.kernels] = kept if known is None else _joined(known, kept)
    del found[first.plan.kernels]
    chosen = [first, *islice(_varied(list(found.values()), first), most - 1)]
    for candidate in chosen[1:]:
        del found[candidate.plan.kernels]
    others = sorted((kept for kernels, kept in found.items() if at_hand(kernels)), key=_score)
    return (*chosen, *(kept.candidate for kept in others[:most]))


def variants(candidate: Candidate, scope: Scope, most: int) -> tuple[Candidate, ...]:
    """At most ``most`` candidates with the kernels of ``candidate`` and one other knob, by their estimates."""
    engine, graph, arch = candidate.engine, candidate.graph, candidate.arch
    found: dict[Plan, Candidate] = {}
    for choices in _single_moves(dict(candidate.plan.choices), engine.knobs(graph, arch), scope, is_close=False):
        other = _made(candidate, engine, choices)
        if other is None or not scope.admits(other.plan):
            continue
        if other.plan.kernels == candidate.plan.kernels and other.plan.launches != candidate.plan.launches:
            found.setdefault(other.plan, other)
    near = (other for other in found.values() if other.estimated_us <= SLACK * candidate.estimated_us)
    return tuple(sorted(near, key=lambda other: other.estimated_us)[:most])


def _joined(known: _Kept, other: _Kept) -> _Kept:
    """The better of two candidates with the same kernels, proven by the hints of both."""
    better = min(known, other, key=_score)
    return replace(better, proofs=known.proofs + other.proofs - 1)


def _varied(waiting: list[_Kept], first: Candidate) -> Iterator[Candidate]:
    """The candidates by their scores, those later whose tile was there before."""
    before = Counter((_tile(first),))
    while waiting:
        best = min(waiting, key=lambda kept: kept.score * (1 + _SAME_TILE * before[_tile(kept.candidate)]))
        waiting.remove(best)
        before[_tile(best.candidate)] += 1
        yield best.candidate


def _tile(candidate: Candidate) -> tuple[str, *tuple[int | None, ...]]:
    choices = dict(candidate.plan.choices)
    return candidate.engine.name, *map(choices.get, _TILE_KNOBS)


def _score(kept: _Kept) -> float:
    return kept.score


def _hinted(starts: Iterable[Candidate], scope: Scope, hints: Hints) -> Iterator[_Kept]:
    """The hints for the engines of ``starts`` that these engines take, with estimates near the least one."""
    least_us = min(candidate.estimated_us for candidate in starts)
    for candidate in starts:
        for choices, proofs in hints(candidate.engine.name).items():
            made = _made(candidate, candidate.engine, dict(choices))
            if made is not None and made.estimated_us <= SLACK * least_us and scope.admits(made.plan):
                yield _Kept(made, proofs=proofs + 1)


def _starts(ranking: Ranking, scope: Scope) -> Iterator[Candidate]:
    """The plans that engines make by themselves within the scope, as far as the cost model expects them near the best.

    An engine that asks all others counts where there is nothing else.
    """
    least_us, others = float("inf"), []
    for candidate in ranking.candidates:
        if isinstance(candidate.engine, LastResort):
            others.append(candidate)
        elif candidate.estimated_us <= SLACK * least_us or (scope.engines and candidate.engine.name in scope.engines):
            found = candidate if scope.admits(candidate.plan) else _nearest(candidate, scope)
            if found is not None:
                least_us = min(least_us, found.estimated_us)
                yield found
    if least_us == float("inf"):
        yield from (candidate for candidate in others if scope.admits(candidate.plan))


def _nearest(candidate: Candidate, scope: Scope) -> Candidate | None:
    """The best of the engine's plans with the values that the scope leaves to some knobs; None where there is none."""
    own = {knob.type for knob in candidate.engine.knobs(candidate.graph, candidate.arch)}
    knobs = [knob for knob in scope.knobs if knob in own]
    combinations = islice(product(*(scope.knobs[knob] for knob in knobs)), _MOST_PLANS)
    made = (_made(candidate, candidate.engine, dict(zip(knobs, values, strict=True))) for values in combinations)
    admitted = (found for found in made if found is not None and scope.admits(found.plan))
    return min(admitted, key=lambda found: found.estimated_us, default=None)


def _walk(starts: Iterable[Candidate], scope: Scope) -> Iterator[_Kept]:
    """Candidates in the order of their scores, as far as the slack and the number of plans go."""
    waiting: list[tuple[float, int, _Kept]] = []
    seen: set[tuple[int, tuple[tuple[KnobType, int], ...]]] = set()
    numbers, least_us, left = count(), float("inf"), _MOST_PLANS
    for candidate in starts:
        kept = _Kept(candidate)
        least_us = min(least_us, candidate.estimated_us)
        heappush(waiting, (kept.score, next(numbers), kept))
    while waiting:
        _, _, kept = heappop(waiting)
        candidate = kept.candidate
        yield kept
        for choices in _moves(candidate, scope):
            place = (candidate.engine.index, tuple(sorted(choices.items())))
            if place in seen or not left:
                continue
            seen.add(place)
            left -= 1
            other = _made(candidate, candidate.engine, choices)
            if other is None or other.estimated_us > SLACK * least_us:
                continue
            if other.plan.kernels == candidate.plan.kernels and other.estimated_us >= candidate.estimated_us:
                continue  # a variant that nothing speaks for
            least_us = min(least_us, other.estimated_us)
            further = _Kept(other, kept.steps + 1)
            heappush(waiting, (further.score, next(numbers), further))


def _moves(candidate: Candidate, scope: Scope) -> Iterator[dict[KnobType, int]]:
    own = dict(candidate.plan.choices)
    knobs = candidate.engine.knobs(candidate.graph, candidate.arch)
    by_type = {knob.type: knob for knob in knobs}
    yield from _single_moves(own, knobs, scope, is_close=True)
    for one, other in _PAIRS:
        if one in by_type and other in by_type:
            for choices in _single_moves(own, (by_type[one],), scope, is_close=True):
                yield from _single_moves(choices, (by_type[other],), scope, is_close=True)


def _single_moves(
    own: Mapping[KnobType, int], knobs: Iterable[Knob], scope: Scope, *, is_close: bool
) -> Iterator[dict[KnobType, int]]:
    """``own`` with another value of one knob: a near one, or any."""
    for knob in knobs:
        allowed = scope.knobs.get(knob.type, knob.values)
        for value in _near(own[knob.type], knob.values) if is_close else knob.values:
            if value != own[knob.type] and value in allowed:
                yield {**own, knob.type: value}


def _near(value: int, values: tuple[int, ...]) -> Iterator[int]:
    """The values that a step leads to from ``value``."""
    if len(values) <= _FEW_VALUES:
        place = values.index(value)
        yield from (*values[place + 1 : place + 2], *values[max(place - 1, 0) : place])
    wanted = {int(value * factor) for factor in _FACTORS}
    yield from (other for other in values if other in wanted)


def _made(candidate: Candidate, engine: Engine, choices: Choices) -> Candidate | None:
    """The candidate of these choices; None where the engine does not take them."""
    try:
        return candidate_for(engine, candidate.graph, candidate.arch, choices)
    except (BadParamError, NotSupportedError):
        return None
