"""Statistics of several samples of one time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Median, 10th and 90th percentile of the samples, in microseconds."""

    us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, samples_us: Sequence[float]) -> Timing:
        low, median, high = np.percentile(samples_us, (10, 50, 90))
        return cls(float(median), float(low), float(high))

    @property
    def spread(self) -> float:
        """The distance of the percentiles, relative to the median."""
        return (self.high_us - self.low_us) / self.us
