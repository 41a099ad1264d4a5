"""Two measurements of the same cases, before and after a change: what has become slower, and what faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from lowdnn.bench.table import Row

#: Two measurements of one plan may differ by this share, whatever their spread.
NOISE = 0.01


@dataclass(frozen=True)
class Change:
    """A case's median times before and after.

    spread: the larger of the two spreads within a round; where there are several rounds, that between them counts too.
    """

    class_: str
    case: str
    before_us: float
    after_us: float
    spread: float

    @property
    def ratio(self) -> float:
        """before / after: more than 1 is faster."""
        return self.before_us / self.after_us

    @property
    def is_loss(self) -> bool:
        return self.after_us > self.before_us * (1 + max(NOISE, self.spread))

    @property
    def is_gain(self) -> bool:
        return self.before_us > self.after_us * (1 + max(NOISE, self.spread))


def changes(before: Iterable[Row], after: Iterable[Row]) -> list[Change]:
    """A change for each case that both have without an error; rows of one case are rounds of its measurement."""
    old, new = _rounds(before), _rounds(after)
    return [
        Change(*place, median(_times(old[place])), median(_times(rows)), max(_spread(old[place]), _spread(rows)))
        for place, rows in new.items()
        if place in old
    ]


def change_table(found: Sequence[Change]) -> str:
    """The losses and gains, the worst first, and a line with their numbers and the geometric mean of all ratios."""
    if not found:
        return "no case in common"
    marked = sorted((change for change in found if change.is_loss or change.is_gain), key=lambda change: change.ratio)
    losses = sum(change.is_loss for change in found)
    lines = [
        f"{'LOSS' if change.is_loss else 'gain':6}{change.ratio:7.3f}x {change.before_us:10.2f} -> "
        f"{change.after_us:10.2f} us  spread {change.spread:5.3f}  {change.case}"
        for change in marked
    ]
    mean = geometric_mean(change.ratio for change in found)
    return "\n".join([*lines, f"{len(found)} cases, {losses} losses, {len(marked) - losses} gains, mean {mean:.3f}x"])


def _rounds(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if not row.error:
            found.setdefault((row.class_, row.case), []).append(row)
    return found


def _times(rows: Iterable[Row]) -> list[float]:
    return [row.us for row in rows]


def _spread(rows: Sequence[Row]) -> float:
    times = _times(rows)
    return max(*(row.spread for row in rows), (max(times) - min(times)) / median(times))
