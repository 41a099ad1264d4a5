"""Sets of kernels for a workload: few that serve all of its shapes, chosen by what the cost model predicts.

Each shape has options: plans with choices that are the best of any shape of its structure, or of any engine. A set of
kernels serves a shape by the fastest option all of whose kernels are in the set. The loss of a set is

    sum over the shapes of weight * (predicted time with the set / time of the best plan)

where a shape that the set does not serve, which would wait for a compiler, counts as ``_WAIT`` times slower. Kernels
are added a plan at a time, each time those that take the most of the loss for each new kernel: the greedy algorithm for
facility location. Where each plan has one kernel it gains at least 1 - 1/e of what the best set of that size does.
Source: Nemhauser, Wolsey, Fisher, "An analysis of approximations for maximizing submodular set functions", 1978.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lowdnn.engines.base import Engine
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.kernels_at_hand import EngineChoices, best_at_hand, compared_us, planned, slowdown_of
from lowdnn.heuristics.ranking import Candidate, Ranking
from lowdnn.heuristics.structure import structure_of
from lowdnn.plan import KernelRef
from lowdnn.status import BadParamError, NotSupportedError

#: The slowdown that a wait for the compiler counts as: a second in the place of a millisecond.
_WAIT = 1e3
#: Choices that are tried for each shape of a structure.
_MOST_CHOICES = 128

#: How often a set is chosen anew for shapes that it left without a kernel.
_MOST_ROUNDS = 4
#: Shapes that join the workload at a time.
_MOST_JOINING = 16

Kernels = frozenset[KernelRef]


@dataclass(frozen=True)
class Shape:
    """A graph of a workload by its name. weight: how much its time counts; 0 for one that has to be served only."""

    name: str
    graph: OperationGraph
    weight: float = 1.0


@dataclass(frozen=True)
class ServedShape:
    """best: the best plan of the shape.  served: its best one with the set; None where it has to wait."""

    shape: Shape
    best: Candidate
    served: Candidate | None

    @property
    def slowdown(self) -> float | None:
        """Predicted time with the set, relative to that of the best plan."""
        return None if self.served is None else slowdown_of(self.served, self.best)


@dataclass(frozen=True)
class Step:
    """The state of a set after the kernels of one more plan. mean, worst: of the slowdowns of the shapes that are
    served, by weight.  waiting: the number of shapes that are not."""

    added: tuple[KernelRef, ...]
    count: int
    mean: float
    worst: float
    waiting: int


@dataclass(frozen=True)
class KernelSet:
    """needed: how many kernels the best plans have together.  steps: the set as it grew, the last one as it is."""

    shapes: tuple[ServedShape, ...]
    steps: tuple[Step, ...]
    needed: int

    @property
    def kernels(self) -> tuple[KernelRef, ...]:
        """In the order in which they were chosen: the first are worth the most."""
        return tuple(kernel for step in self.steps for kernel in step.added)

    @property
    def waiting(self) -> int:
        """The number of shapes that the set does not serve."""
        return sum(shape.served is None for shape in self.shapes)


def kernel_set(
    workload: Iterable[Shape],
    rank: Callable[[OperationGraph], Ranking],
    engines: Sequence[Engine],
    most_kernels: int | None = None,
) -> KernelSet:
    """At most ``most_kernels`` kernels for a workload; as many as make every shape as fast as its best plan where it is
    None.

    Shapes of weight 0 that the set would leave without a kernel join the others, with the least of their weights, and
    the set is chosen anew, up to ``_MOST_ROUNDS`` times.
    Raises NotSupportedError for a graph that no engine takes, BadParamError for an empty workload or no kernels.
    """
    if most_kernels is not None and most_kernels < 1:
        raise BadParamError.at("kernel_set.max_kernels", expected="at least 1", got=most_kernels)
    given = list(workload)
    shapes = [_ranked(shape, rank) for shape in given if shape.weight]
    if not shapes:
        raise BadParamError.at("kernel_set.cases", expected="at least one shape", got="none")
    others = [_ranked(shape, rank) for shape in given if not shape.weight]
    least = min(shape.shape.weight for shape in shapes)
    found = _grown(shapes, engines, most_kernels)
    for _ in range(_MOST_ROUNDS):
        serves = _serving(found, engines)
        missed = [other for other in others if not serves(other)][:_MOST_JOINING]
        if not missed:
            break
        others = [other for other in others if other not in missed]
        shapes += [replace(other, shape=replace(other.shape, weight=least)) for other in missed]
        found = _grown(shapes, engines, most_kernels)
    return found


@dataclass(frozen=True, eq=False)
class _Ranked:
    """A shape with the candidates of its ranking, which give choices for the other shapes."""

    shape: Shape
    best: Candidate
    ranking: Ranking


def _ranked(shape: Shape, rank: Callable[[OperationGraph], Ranking]) -> _Ranked:
    ranking = rank(shape.graph)
    if ranking.best is None:
        raise NotSupportedError.at(shape.name, expected="a graph that an engine takes", got=ranking.explain())
    return _Ranked(shape, ranking.best, ranking)


def _grown(shapes: Sequence[_Ranked], engines: Sequence[Engine], most_kernels: int | None) -> KernelSet:
    growing = _Growing(shapes, _options(shapes, engines))
    while growing.add_best(most_kernels):
        pass
    needed = len({kernel for shape in shapes for kernel in shape.best.plan.kernels})
    return KernelSet(growing.served(), tuple(growing.steps), needed)


def _serving(found: KernelSet, engines: Sequence[Engine]) -> Callable[[_Ranked], bool]:
    """Whether another shape has a plan with kernels of the set, by the choices of the shapes that have one."""
    kernels = frozenset(found.kernels)
    known: defaultdict[str, dict[EngineChoices, None]] = defaultdict(dict)
    for one in found.shapes:
        if one.served is not None:
            known[structure_of(one.shape.graph)][EngineChoices.of(one.served.plan)] = None

    def serves(ranked: _Ranked) -> bool:
        if kernels.issuperset(ranked.best.plan.kernels):
            return True
        choices = known[structure_of(ranked.shape.graph)]
        return best_at_hand(ranked.best, choices, engines, kernels.issuperset, lambda plan: True) is not None

    return serves


def _options(shapes: Sequence[_Ranked], engines: Sequence[Engine]) -> list[dict[Kernels, Candidate]]:
    """For each shape, the fastest candidate with each set of kernels; none has a note that the best one lacks."""
    pools: defaultdict[str, dict[EngineChoices, int]] = defaultdict(dict)
    for shape in shapes:
        pool = pools[structure_of(shape.shape.graph)]
        for candidate in (shape.best, *shape.ranking.candidates):
            choices = EngineChoices.of(candidate.plan)
            pool[choices] = pool.get(choices, 0) + 1
    return [_options_of(shape, _most_frequent(pools[structure_of(shape.shape.graph)]), engines) for shape in shapes]


def _most_frequent(pool: Mapping[EngineChoices, int]) -> list[EngineChoices]:
    return sorted(pool, key=lambda choices: -pool[choices])[:_MOST_CHOICES]


def _options_of(shape: _Ranked, pool: Iterable[EngineChoices], engines: Sequence[Engine]) -> dict[Kernels, Candidate]:
    notes = set(shape.best.plan.numerical_notes)
    found: dict[Kernels, Candidate] = {}
    for candidate in (shape.best, *planned(shape.shape.graph, shape.best.arch, pool, engines)):
        kernels = frozenset(candidate.plan.kernels)
        is_faster = kernels not in found or compared_us(candidate) < compared_us(found[kernels])
        if is_faster and notes.issuperset(candidate.plan.numerical_notes):
            found[kernels] = candidate
    return found


class _Growing:
    """A set of kernels that grows. Rows of the arrays are shapes, columns the different sets of kernels of plans."""

    def __init__(self, shapes: Sequence[_Ranked], options: Sequence[Mapping[Kernels, Candidate]]) -> None:
        self._shapes = shapes
        self._options = options
        self._columns = sorted({kernels for each in options for kernels in each}, key=_names)
        self._slowdowns = np.full((len(shapes), len(self._columns)), _WAIT)
        for row, (shape, each) in enumerate(zip(shapes, options, strict=True)):
            for column, kernels in enumerate(self._columns):
                if kernels in each:
                    self._slowdowns[row, column] = slowdown_of(each[kernels], shape.best)
        self._weights: NDArray[np.float64] = np.array([shape.shape.weight for shape in shapes], np.float64)
        self._chosen: Kernels = frozenset()
        self._current: NDArray[np.float64] = np.full(len(shapes), _WAIT)
        self._current = self._with(frozenset())  # shapes without elements need no kernel
        self.steps: list[Step] = []

    def add_best(self, most_kernels: int | None) -> bool:
        """Adds the kernels of a plan that take the most of the loss for each kernel; False where none takes any."""
        room = len(set().union(*self._columns)) if most_kernels is None else most_kernels
        room -= len(self._chosen)
        gains = [self._gain(kernels) if 0 < len(kernels - self._chosen) <= room else 0.0 for kernels in self._columns]
        best = int(np.argmax(gains))
        if gains[best] <= 1e-9 * float(self._weights.sum()):
            return False
        added = self._columns[best] - self._chosen
        self._current = self._with(self._columns[best])
        self._chosen |= added
        self.steps.append(self._step(tuple(sorted(added, key=lambda kernel: kernel.name))))
        return True

    def served(self) -> tuple[ServedShape, ...]:
        return tuple(
            ServedShape(shape.shape, shape.best, self._fastest(each))
            for shape, each in zip(self._shapes, self._options, strict=True)
        )

    def _fastest(self, options: Mapping[Kernels, Candidate]) -> Candidate | None:
        there = (candidate for kernels, candidate in options.items() if kernels <= self._chosen)
        return min(there, key=compared_us, default=None)

    def _gain(self, kernels: Kernels) -> float:
        """The loss that the kernels take, for each of them that comes new."""
        taken = float(self._weights @ (self._current - self._with(kernels)))
        return taken / len(kernels - self._chosen)

    def _with(self, kernels: Kernels) -> NDArray[np.float64]:
        """The slowdowns of the set with these kernels."""
        both = self._chosen | kernels
        there = [column for column, wanted in enumerate(self._columns) if wanted <= both]
        found: NDArray[np.float64] = np.minimum(self._current, self._slowdowns[:, there].min(axis=1, initial=_WAIT))
        return found

    def _step(self, added: tuple[KernelRef, ...]) -> Step:
        is_served = self._current < _WAIT
        slowdowns, weights = self._current[is_served], self._weights[is_served]
        mean = float(weights @ slowdowns / weights.sum())
        return Step(added, len(self._chosen), mean, float(slowdowns.max()), int((~is_served).sum()))


def _names(kernels: Kernels) -> list[str]:
    return sorted(kernel.name for kernel in kernels)
