"""Why a plan was chosen, as text that fits a screen: a sentence, a table of the candidates, and what was refused.

    wgrad wgmma 29.4 us measured; grouped mma 29.8 us; stem needs at most 4 channels

      engine                       algorithm           predicted  measured workspace
    > conv_wgrad_wgmma             64x64, 132 splits        28.4      29.4   2.0 MiB
        tensor core; 2 launches, 3.29e+09 flops, 1.07e+08 bytes

Times are in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from textwrap import wrap

from lowdnn.engines.base import BEHAVIOR_NOTES, Engine, Refusal
from lowdnn.engines.engine_set import related
from lowdnn.engines.model.plan_time import plan_us
from lowdnn.enums import BehaviorNote, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import SPLITS, Candidate, Ranking
from lowdnn.plan import Plan

#: Columns of a terminal.
WIDTH = 80
#: Lines of a terminal.
HEIGHT = 40

_BUNDLED = "chosen by a bundle"
_ENGINE_WIDTH, _ALGORITHM_WIDTH = 29, 20
_MOST_CANDIDATES = 10
#: Engines in the sentence that take the graph.
_MOST_TAKING = 4
#: Engines in the sentence that refuse it.
_MOST_REFUSING = 2
#: Characters of a reason in the sentence.
_SHORT = 40


@dataclass(frozen=True)
class Outcome:
    """An engine that takes the graph.

    algorithm: its tile and what else its knobs chose.  predicted_us: by the cost model.  measured_us: by a tuning
    record, or None.  notes: in words.  left_out: why the plan is not used although the engine takes the graph, or
    empty.  is_bundled: whether a bundle chose it.
    """

    engine: str
    algorithm: str
    predicted_us: float
    measured_us: float | None
    workspace_bytes: int
    notes: tuple[str, ...]
    work: str
    left_out: str = ""
    is_bundled: bool = False

    @classmethod
    def of(cls, candidate: Candidate, left_out: str = "") -> Outcome:
        """The outcome of a candidate, whose plan is made now if it was not."""
        plan = candidate.plan
        return cls(
            engine=candidate.engine.name,
            algorithm=_algorithm(plan),
            predicted_us=plan_us(plan, candidate.arch),
            measured_us=candidate.estimated_us if candidate.is_measured else None,
            workspace_bytes=plan.workspace_bytes,
            notes=(*_origin(candidate), *(note.name.lower().replace("_", " ") for note in _notes(plan))),
            work=_work(plan),
            left_out=left_out,
            is_bundled=candidate.is_bundled,
        )

    @property
    def us(self) -> float:
        return self.predicted_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class Explanation:
    """outcomes: best first.  chosen: the one whose plan is used, or None.  unrelated: how many engines have none.

    refusals: by engines that have an operation of the graph.
    """

    outcomes: tuple[Outcome, ...]
    chosen: Outcome | None
    refusals: tuple[Refusal, ...]
    unrelated: int

    @classmethod
    def of(cls, ranking: Ranking, engines: Sequence[Engine], graph: OperationGraph) -> Explanation:
        """The explanation of the best candidate among ``engines``."""
        outcomes = tuple(map(Outcome.of, ranking.candidates))
        return cls(outcomes, next(iter(outcomes), None), *related(ranking.refusals, engines, graph))

    @property
    def sentence(self) -> str:
        """The times of the best engines, the chosen one first, and why the nearest others refused."""
        chosen = self.chosen
        if chosen is None:
            return "no plan is left" if self.outcomes else "no engine takes the graph"
        family = chosen.engine.partition("_")[0] + "_"
        firsts = {outcome.engine: outcome for outcome in reversed(self.outcomes)}
        others = [outcome for outcome in self.outcomes if firsts[outcome.engine] is outcome is not chosen]
        parts = [_part(outcome, family) for outcome in (chosen, *others)[:_MOST_TAKING]]
        near = [refusal for refusal in self.refusals if refusal.engine.startswith(family)]
        parts += [f"{_words(refusal.engine, family)} {_need(refusal.reason)}" for refusal in near[:_MOST_REFUSING]]
        return "; ".join(parts)

    def __str__(self) -> str:
        """At most ``HEIGHT`` lines of ``WIDTH`` characters."""
        lines = [*wrap(self.sentence, WIDTH), "", _HEAD, *self._candidate_lines()]
        refused = [f"  {refusal}" for refusal in self.refusals]
        if self.unrelated:
            plural = "" if self.unrelated == 1 else "s"
            refused.append(f"  {self.unrelated} engine{plural} of operations that the graph does not have")
        if refused:
            lines.append("refused:")
            room = HEIGHT - len(lines)
            hidden = len(refused) - room
            lines += refused if hidden <= 0 else [*refused[: room - 1], f"  and {hidden + 1} more"]
        return "\n".join(map(_cut, lines))

    def _candidate_lines(self) -> Iterable[str]:
        for outcome in self.outcomes[:_MOST_CANDIDATES]:
            mark = ">" if outcome is self.chosen else " "
            measured = "-" if outcome.measured_us is None else f"{outcome.measured_us:.1f}"
            yield (
                f"{mark} {outcome.engine:<{_ENGINE_WIDTH}.{_ENGINE_WIDTH}}"
                f"{outcome.algorithm:<{_ALGORITHM_WIDTH}.{_ALGORITHM_WIDTH - 1}}"
                f"{outcome.predicted_us:>9.1f}{measured:>10}{_size(outcome.workspace_bytes):>10}"
            )
            yield "    " + (outcome.left_out or "; ".join([*outcome.notes, outcome.work]))
        if len(self.outcomes) > _MOST_CANDIDATES:
            yield f"  and {len(self.outcomes) - _MOST_CANDIDATES} more"


_HEAD = (
    f"  {'engine':<{_ENGINE_WIDTH}}{'algorithm':<{_ALGORITHM_WIDTH}}{'predicted':>9}{'measured':>10}{'workspace':>10}"
)


def _origin(candidate: Candidate) -> Iterable[str]:
    """Whether a bundle chose the plan; the price of one that runs in place of the best, whose kernels would have to be
    compiled."""
    if candidate.is_bundled:
        yield _BUNDLED
    if candidate.slowdown > 1:
        yield f"kernels at hand, {candidate.slowdown:.2f} times the best plan's time"


def _notes(plan: Plan) -> Iterable[NumericalNote | BehaviorNote]:
    """The notes that not every plan has."""
    return (*plan.numerical_notes, *(note for note in plan.behavior_notes if note not in BEHAVIOR_NOTES))


def _algorithm(plan: Plan) -> str:
    """The tile, and into how many parts sums are split; of a plan with parts, their number."""
    if plan.parts:
        return f"{len(plan.parts)} parts"
    knobs = dict(plan.choices)
    rows, columns = knobs.get(KnobType.TILE_M), knobs.get(KnobType.TILE_N)
    tile = f"{rows}x{columns}" if rows and columns else f"{rows} rows" if rows else f"{columns} columns"
    splits = prod(knobs.get(kind, 1) for kind in SPLITS)
    found = [*([tile] if rows or columns else []), *([f"{splits} splits"] if splits > 1 else [])]
    return ", ".join(found) or "-"


def _work(plan: Plan) -> str:
    launches = f"{len(plan.launches)} launch" + ("" if len(plan.launches) == 1 else "es")
    parts = f"; parts: {', '.join(plan.parts)}" if plan.parts else ""
    return f"{launches}, {plan.work.flops:.3g} flops, {plan.work.bytes:.3g} bytes{parts}"


def _part(outcome: Outcome, family: str) -> str:
    how = f", {_BUNDLED}" if outcome.is_bundled else "" if outcome.measured_us is None else " measured"
    if outcome.left_out:
        return f"{_words(outcome.engine, family)} left out: {_short(outcome.left_out)}"
    return f"{_words(outcome.engine, family)} {outcome.us:.3g} us{how}"


def _words(engine: str, family: str) -> str:
    """The name of an engine without its family."""
    return engine.removeprefix(family).replace("_", " ")


def _need(reason: str) -> str:
    """The rule that a graph broke, as what the engine needs."""
    rule = re.search(r"expected (.+?)(?:, got |$)", reason)
    return f"needs {_short(rule[1])}" if rule else f"refused: {_short(reason)}"


def _short(reason: str) -> str:
    return reason if len(reason) <= _SHORT else f"{reason[: _SHORT - 3]}..."


def _size(size_bytes: int) -> str:
    for unit, scale in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << scale:
            return f"{size_bytes / (1 << scale):.1f} {unit}"
    return f"{size_bytes} B"


def _cut(line: str) -> str:
    line = line.rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
