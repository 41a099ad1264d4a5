"""Whether a case has become slower: a verdict where the measurements allow one, otherwise "cannot tell".

The measurements are few samples of ln(after / before), with a mean m and a standard deviation s. The change lies in

    m - h ... m + h,    h = t(n - 1) * s * scale

where t is Student's quantile of 99.9 % on each side. Pairs that were run alternately are n samples of the change
itself, and scale = 1 / sqrt(n). Against n saved runs there is one new run, and scale = sqrt(1 + 1 / n): only what lies
beyond the spread between saved runs is a change.

Sources: Student (1908), "The probable error of a mean"; the prediction interval of a normal sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from lowdnn.bench.runs import Run

#: A change below this share is never told: two processes of one build differ by as much.
LEAST_CHANGE = 0.01
#: "None" means: no change of this share or more.
RESOLUTION = 0.03
#: Fewer samples do not say how far samples are apart.
LEAST_SAMPLES = 3

#: (degrees of freedom, the quantile of Student's distribution for 99.9 %).
_QUANTILES = (
    (2, 22.327),
    (3, 10.215),
    (4, 7.173),
    (5, 5.893),
    (6, 5.208),
    (7, 4.785),
    (8, 4.501),
    (9, 4.297),
    (10, 4.144),
    (12, 3.930),
    (15, 3.733),
    (20, 3.552),
    (30, 3.385),
    (60, 3.232),
)


class Word(Enum):
    """The outcome of a comparison."""

    SLOWER = "slower"
    FASTER = "faster"
    NONE = "none"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Verdict:
    """before_us, after_us: medians.  low, high: the bounds of after / before - 1.  why: why one cannot tell."""

    case: str
    word: Word
    before_us: float = 0.0
    after_us: float = 0.0
    low: float = 0.0
    high: float = 0.0
    why: str = ""

    @property
    def change(self) -> float:
        """after / before - 1; more than 0 is slower."""
        return self.after_us / self.before_us - 1 if self.before_us else 0.0


def paired(rounds: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(before, after) of one pair of processes from rounds in which each was timed once, one right after the other.

    after / before is the median ratio of the rounds, which neither outliers nor a change of the clock between rounds
    move.
    """
    before_us = statistics.median(before for before, _ in rounds)
    return before_us, before_us * statistics.median(after / before for before, after in rounds)


def of_pairs(case: str, pairs: Sequence[tuple[float, float]]) -> Verdict:
    """The verdict on (before, after) in microseconds, one for each pair of processes that were run alternately."""
    if len(pairs) < LEAST_SAMPLES:
        return Verdict(case, Word.CANNOT_TELL, why=f"expected {LEAST_SAMPLES} pairs or more, got {len(pairs)}")
    changes = [math.log(after / before) for before, after in pairs]
    half = _quantile(len(changes) - 1) * statistics.stdev(changes) / math.sqrt(len(changes))
    before_us = statistics.median(before for before, _ in pairs)
    mean = statistics.fmean(changes)
    return _verdict(case, before_us, before_us * math.exp(mean), mean - half, mean + half)


def against_saved(saved: Sequence[Run], run: Run) -> list[Verdict]:
    """A verdict on each case of ``run`` without an error, by the saved runs of the same device and clock."""
    alike = [each for each in saved if (each.device, each.clock) == (run.device, run.clock)]
    others = len(saved) - len(alike)
    found = of_times(times_by_case(alike), {case: times.us for case, times in run.by_case.items()})
    if not others:
        return found
    hint = f"; {others} saved runs are of other devices or clocks"
    return [replace(each, why=each.why + hint) if each.why else each for each in found]


def times_by_case(runs: Iterable[Run]) -> dict[str, list[float]]:
    """The times of each case in the runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for case, times in run.by_case.items():
            found.setdefault(case, []).append(times.us)
    return found


def of_times(before_us: Mapping[str, Sequence[float]], after_us: Mapping[str, float]) -> list[Verdict]:
    """A verdict on each new time, by the case's times in several runs before.

    A case whose times before happen to be close together has the median spread of all cases.
    """
    known = {case: times for case, times in before_us.items() if len(times) >= LEAST_SAMPLES}
    spreads = {case: statistics.stdev(map(math.log, times)) for case, times in known.items()}
    usual = statistics.median(spreads.values()) if spreads else 0.0
    return [
        _of_times(case, before_us.get(case, ()), us, max(spreads.get(case, 0.0), usual))
        for case, us in after_us.items()
    ]


def counts(verdicts: Iterable[Verdict]) -> Mapping[Word, int]:
    """How many verdicts there are of each word."""
    found = dict.fromkeys(Word, 0)
    for verdict in verdicts:
        found[verdict.word] += 1
    return found


def _of_times(case: str, before_us: Sequence[float], after_us: float, spread: float) -> Verdict:
    count = len(before_us)
    if count < LEAST_SAMPLES:
        why = f"expected {LEAST_SAMPLES} saved runs of the case or more, got {count}"
        return Verdict(case, Word.CANNOT_TELL, after_us=after_us, why=why)
    mean = statistics.fmean(map(math.log, before_us))
    half = _quantile(count - 1) * spread * math.sqrt(1 + 1 / count)
    change = math.log(after_us) - mean
    return _verdict(case, math.exp(mean), after_us, change - half, change + half)


def _verdict(case: str, before_us: float, after_us: float, low: float, high: float) -> Verdict:
    """low, high: the bounds of ln(after / before)."""
    least, resolution = math.log1p(LEAST_CHANGE), math.log1p(RESOLUTION)
    if low > least:
        word = Word.SLOWER
    elif high < -least:
        word = Word.FASTER
    else:
        word = Word.NONE if -resolution < low and high < resolution else Word.CANNOT_TELL
    why = "" if word is not Word.CANNOT_TELL else "the measurements are too far apart"
    return Verdict(case, word, before_us, after_us, _capped(low), _capped(high), why)


def _capped(change: float) -> float:
    """exp(change) - 1, at most exp(10) - 1, so that it fits a table."""
    return math.expm1(min(change, 10.0))


def _quantile(degrees: int) -> float:
    """Student's quantile; between two of the table the larger one."""
    return next(quantile for known, quantile in reversed(_QUANTILES) if known <= degrees)
