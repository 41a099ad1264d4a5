"""The fastest of many candidates: candidates that do not fit, or that a cheap bound rules out, are never timed.

candidates -> those that fit -> bound -> time -> the first one of the least time
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

import numpy as np

from lowdnn.engines.model.clock import Times

CandidateT = TypeVar("CandidateT")


def first_of_least(
    bounded: Iterable[tuple[float, CandidateT]], time: Callable[[CandidateT], float]
) -> CandidateT | None:
    """The first of the candidates of least ``time``; None if there are none.

    bounded: candidates that fit, each with a lower bound of its time.
    """
    best: tuple[float, int, CandidateT] | None = None
    for number, (bound, candidate) in sorted(enumerate(bounded), key=lambda entry: entry[1][0]):
        if best is not None and bound > best[0]:
            break
        found = (time(candidate), number, candidate)
        best = found if best is None else min(best, found, key=itemgetter(0, 1))
    return best[2] if best is not None else None


def place_of_least(times: Times) -> tuple[int, ...]:
    """The first index of the least of ``times``, which are infinite for candidates that do not fit."""
    return tuple(int(place) for place in np.unravel_index(int(times.argmin()), times.shape))
