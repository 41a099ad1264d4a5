"""The busiest of blocks that take items in serpentine order, compared with a walk that hands out every item."""

from __future__ import annotations

from random import Random

import numpy as np

from lowdnn.engines.model.serpentine import busiest, busiest_of_many
from tests.support.data import fresh_seed


def test_the_busiest_takes_turns_to_and_fro() -> None:
    random = Random(fresh_seed())
    for _ in range(300):
        clusters, parts = random.randint(1, 12), _parts(random)
        assert busiest(parts, clusters) == _walked(parts, clusters), (parts, clusters)


def test_many_candidates_are_counted_as_each_of_them() -> None:
    """Lengths are common to all; two of them may be equal."""
    random = Random(fresh_seed())
    for _ in range(100):
        lengths, candidates = [random.randint(1, 6) for _ in range(random.randint(1, 4))], range(random.randint(1, 9))
        clusters = [random.randint(1, 12) for _ in candidates]
        counts = [[random.randint(1, 20) for _ in candidates] for _ in lengths]
        found = busiest_of_many(zip(lengths, map(np.array, counts), strict=True), np.array(clusters))
        each = [[*zip(lengths, own, strict=True)] for own in zip(*counts, strict=True)]
        assert found.tolist() == [_walked(*item) for item in zip(each, clusters, strict=True)]


def _parts(random: Random) -> list[tuple[int, int]]:
    return [(random.randint(1, 20), random.randint(1, 20)) for _ in range(random.randint(1, 4))]


def _walked(parts: list[tuple[int, int]], clusters: int) -> int:
    items = sorted((length for length, count in parts for _ in range(count)), reverse=True)
    turns = [items[first : first + clusters] for first in range(0, len(items), clusters)]
    busy = [0] * clusters
    for turn, lengths in enumerate(turns):
        places = range(clusters) if (len(turns) - 1 - turn) % 2 == 0 else range(clusters - 1, -1, -1)
        for place, length in zip(places, lengths, strict=False):
            busy[place] += length
    return max(busy)
