"""Runs and verdicts as text: a line for each case, and a line for each class."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lowdnn.bench.runs import CaseTimes, Run
from lowdnn.bench.verdicts import Verdict, Word, counts

#: Characters of the longest case that a line shows whole.
_CASE_WIDTH = 100
#: Characters of the longest class.
_CLASS_WIDTH = 66
#: Characters of the longest engine.
_ENGINE_WIDTH = 24


@dataclass(frozen=True)
class ClassSummary:
    """The cases of a class.

    total_us: the sum of the times, each as often as it counts.  share, worst: geometric mean and least of the shares
    floor / time, or None where a case has no floor.
    """

    name: str
    cases: int
    errors: int
    total_us: float
    share: float | None
    worst: float | None


def summaries(times: Iterable[CaseTimes]) -> Iterator[ClassSummary]:
    """The classes in the order of their first cases."""
    groups: dict[str, list[CaseTimes]] = {}
    for each in times:
        groups.setdefault(each.class_, []).append(each)
    for name, members in groups.items():
        timed = [each for each in members if not each.error]
        shares = [each.share for each in timed]
        has_shares = bool(shares) and min(shares) > 0
        yield ClassSummary(
            name,
            len(timed),
            len(members) - len(timed),
            sum(each.us * each.count for each in timed),
            statistics.geometric_mean(shares) if has_shares else None,
            min(shares) if has_shares else None,
        )


def head(run: Run) -> str:
    """The device, and what the numbers are."""
    return f"{run.device}, driver {run.driver}, lowdnn {run.lowdnn}\n{run.clock.words}"


def case_head() -> str:
    return f"{'median':>10}{'10 %':>10}{'90 %':>10}{'share':>7}  {'engine':{_ENGINE_WIDTH}}  case"


def case_line(times: CaseTimes) -> str:
    """The times of one case, or its error."""
    case = _short(times.case, _CASE_WIDTH)
    if times.error:
        return f"{'error':>10}  {case}\n            {times.error}"
    numbers = f"{times.us:10.2f}{times.low_us:10.2f}{times.high_us:10.2f}{_share(times.share or None)}"
    return f"{numbers}  {_short(times.engine, _ENGINE_WIDTH):{_ENGINE_WIDTH}}  {case}"


def class_table(run: Run) -> str:
    """For each class its cases, errors, the sum of its times, and geometric mean and least of its shares."""
    lines = [f"{'cases':>6}{'errors':>7}{'sum':>13}{'share':>7}{'worst':>7}  class"]
    lines += [
        f"{each.cases:6d}{each.errors:7d}{each.total_us:13.1f}{_share(each.share)}{_share(each.worst)}"
        f"  {_short(each.name, _CLASS_WIDTH)}"
        for each in summaries(run.times)
    ]
    return "\n".join(lines)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts, what is slower first, and how many there are of each word."""
    order = sorted(verdicts, key=lambda verdict: ([*Word].index(verdict.word), -verdict.change))
    titles = f"{'verdict':12}{'change':>9}{'from':>9}{'to':>9}{'before':>10}{'after':>10}  case"
    found = counts(verdicts)
    numbers = ", ".join(f"{count} {word.value}" for word, count in found.items())
    return "\n".join([titles, *map(_verdict_line, order), f"{len(verdicts)} cases: {numbers}"])


def _verdict_line(verdict: Verdict) -> str:
    case = _short(verdict.case, _CASE_WIDTH)
    if not verdict.before_us:
        return f"{verdict.word.value:12}{verdict.why}  {case}"
    changes = "".join(f"{100 * change:+8.1f}%" for change in (verdict.change, verdict.low, verdict.high))
    return f"{verdict.word.value:12}{changes}{verdict.before_us:10.2f}{verdict.after_us:10.2f}  {case}"


def _share(share: float | None) -> str:
    return f"{'-':>7}" if share is None else f"{share:7.2f}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
