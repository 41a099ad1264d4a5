"""The values of measures at one moment: plain data that exporters write in their own formats."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from lowdnn.telemetry.measures import Measure


@dataclass(frozen=True)
class Histogram:
    """Values counted by buckets.

    bounds: the upper bounds of all buckets but the last.  counts: the values in each bucket, one more than bounds.
    total: the sum of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def cumulative(self) -> tuple[int, ...]:
        """The number of values up to each bound, and of all values, as Prometheus has buckets."""
        return tuple(accumulate(self.counts))

    def quantile(self, share: float) -> float:
        """The value below which ``share`` of the values lie, 0 to 1; NaN without values.

        Values are taken to lie evenly in their bucket, as PromQL's ``histogram_quantile`` does; those of the last
        bucket to equal its lower bound.
        """
        if not self.count:
            return float("nan")
        rank = share * self.count
        below = self.cumulative
        place = bisect_left(below, rank) if rank else next(i for i, count in enumerate(self.counts) if count)
        if place == len(self.bounds):
            return self.bounds[-1]
        lower = self.bounds[place - 1] if place else 0.0
        before = below[place - 1] if place else 0
        return lower + (self.bounds[place] - lower) * (rank - before) / self.counts[place]


@dataclass(frozen=True)
class Sample:
    """labels: the values of the measure's labels, in their order."""

    labels: tuple[str, ...]
    value: float | Histogram


@dataclass(frozen=True)
class Family:
    """A measure with everything that was counted of it, by labels."""

    measure: Measure
    samples: tuple[Sample, ...]
