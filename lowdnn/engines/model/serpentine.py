"""The work of the busiest of several persistent blocks that take items in serpentine order, the longest items first.

    turn 0   block 0 takes item 0, block 1 item 1, ...
    turn 1   block n - 1 takes item n, block n - 2 item n + 1, ...
    turn 2   as turn 0, and so on

Parts are (length, number of items of that length). The kernels walk in this order by ``ClassSchedule``
(``tile_schedule.cuh``); there the last turn begins with block 0, which at most mirrors the blocks' numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def busiest(parts: Sequence[tuple[int, int]], resident: int) -> int:
    """The sum of the lengths that the busiest of ``resident`` blocks takes, with at least one item."""
    if len(parts) == 1:
        ((length, count),) = parts
        return length * -(-count // resident)
    ordered = sorted(parts, reverse=True)
    lengths, ends = [*(length for length, _ in ordered), 0], [*accumulate(count for _, count in ordered)]
    # The busiest block is next to a block where items get shorter, in either direction.
    bounds = {0, *(end % resident for end in ends)}
    places = {place % resident for end in bounds for place in (end, end - 1, resident - end, resident - 1 - end)}
    alike, others = 0, []
    for turn in range(-(-ends[-1] // resident)):
        first, end = (lengths[bisect_right(ends, item)] for item in (turn * resident, (turn + 1) * resident - 1))
        if first == end:
            alike += first
        else:
            others.append((turn * resident, turn % 2))

    def busy(place: int) -> int:
        items = (first + (resident - 1 - place if is_back else place) for first, is_back in others)
        return sum(lengths[bisect_right(ends, item)] for item in items)

    return alike + max(map(busy, places))


def busiest_of_many(parts: Iterable[tuple[int, Counts]], resident: Counts) -> Counts:
    """``busiest`` for many candidates at once, each with its own numbers of items and of blocks.

    For a single candidate arrays would take longer than ``busiest`` does.
    """
    items: dict[int, Counts] = {}
    for length, count in parts:
        items[length] = items.get(length, 0) + count
    lengths = sorted(items, reverse=True)
    ends = np.cumsum([items[length] for length in lengths], axis=0)
    bounds = np.concatenate((np.zeros_like(ends[:1]), ends))
    places = np.concatenate((bounds, bounds - 1, -bounds, -bounds - 1)) % resident
    sums, before = np.zeros_like(places), np.zeros_like(places)
    for length, end in zip(lengths, ends, strict=True):
        there, back = _taken(end, places, resident), _taken(end - resident, resident - 1 - places, resident)
        sums, before = sums + (there + back - before) * length, there + back
    busy: Counts = sums.max(axis=0)
    return busy


def _taken(end: Counts, place: Counts, resident: Counts) -> Counts:
    """Items before item ``end`` that block ``place`` takes in turns 0, 2, 4, ..."""
    found: Counts = np.maximum(-(-(end - place) // (2 * resident)), 0)
    return found
