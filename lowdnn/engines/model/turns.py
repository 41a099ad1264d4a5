"""The most that one of several blocks does which stay and take items in turns, the longest items first, to and fro.

    turn 0   block 0 takes item 0, block 1 item 1, ...      or the other way round, such that in the last turn
    turn 1   block n - 1 takes item n, n - 2 item n + 1,    block 0 takes the first item
    ...

Parts are (length, how many items are so long). The kernels walk so by ``ClassSchedule`` (``tile_schedule.cuh``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def busiest(parts: Sequence[tuple[int, int]], resident: int) -> int:
    """The sum of the lengths that the busiest of ``resident`` blocks takes; at least one item."""
    if len(parts) == 1:
        ((length, count),) = parts
        return length * -(-count // resident)
    ordered = sorted(parts, reverse=True)
    lengths, ends = [*(length for length, _ in ordered), 0], [*accumulate(count for _, count in ordered)]
    last = (ends[-1] - 1) // resident
    # One of those between whom an item gets shorter, in either direction, is the busiest.
    bounds = {0, *(end % resident for end in ends)}
    places = {place % resident for end in bounds for place in (end, end - 1, resident - end, resident - 1 - end)}
    alike, others = 0, []
    for turn in range(last + 1):
        first, end = (lengths[bisect_right(ends, item)] for item in (turn * resident, (turn + 1) * resident - 1))
        if first == end:
            alike += first
        else:
            others.append((turn * resident, (last - turn) % 2))

    def busy(place: int) -> int:
        items = (first + (resident - 1 - place if is_back else place) for first, is_back in others)
        return sum(lengths[bisect_right(ends, item)] for item in items)

    return alike + max(map(busy, places))


def busiest_of_many(parts: Iterable[tuple[int, Counts]], resident: Counts) -> Counts:
    """``busiest`` of many candidates at once, each with numbers of items and of blocks of its own.

    For a single candidate ``busiest`` takes a tenth of the time.
    """
    items: dict[int, Counts] = {}
    for length, count in parts:
        items[length] = items.get(length, 0) + count
    lengths = sorted(items, reverse=True)
    ends = np.cumsum([items[length] for length in lengths], axis=0)
    last = -(-ends[-1] // resident) - 1
    bounds = np.concatenate((np.zeros_like(ends[:1]), ends))
    places = np.concatenate((bounds, bounds - 1, -bounds, -bounds - 1)) % resident
    sums, before = np.zeros_like(places), np.zeros_like(places)
    for length, end in zip(lengths, ends, strict=True):
        there, back = _taken(end, places, last, resident), _taken(end, resident - 1 - places, last + 1, resident)
        sums, before = sums + (there + back - before) * length, there + back
    busy: Counts = sums.max(axis=0)
    return busy


def _taken(end: Counts, place: Counts, turn: Counts, resident: Counts) -> Counts:
    """Items before item ``end`` at ``place`` of every second turn, such as ``turn``."""
    first = turn % 2 * resident + place
    found: Counts = np.maximum(-(-(end - first) // (2 * resident)), 0)
    return found
