"""Items that are in use at one time do not overlap, and an arena is about as small as it can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest

from lowdnn.runtime import arena
from lowdnn.runtime.arena import Lifetime, Packing, pack
from lowdnn.status import InvalidValueError
from tests.support.data import fresh_seed


def check(items: Sequence[Lifetime], found: Packing) -> None:
    assert len(found.offsets) == len(items)
    for item, offset in zip(items, found.offsets, strict=True):
        assert offset % item.alignment_bytes == 0
        assert 0 <= offset <= found.size_bytes - item.size_bytes
    for (a, at), (b, to) in combinations(zip(items, found.offsets, strict=True), 2):
        if a.first <= b.last and b.first <= a.last and a.size_bytes and b.size_bytes:
            assert at + a.size_bytes <= to or to + b.size_bytes <= at, (a, at, b, to)
    steps = {step for item in items for step in (item.first, item.last)}
    live = [sum(item.size_bytes for item in items if item.first <= step <= item.last) for step in steps]
    assert found.lower_bound_bytes == max(live, default=0) <= found.size_bytes
    assert found.sum_bytes == sum(item.size_bytes for item in items)


def random_items(rng: random.Random, count: int) -> list[Lifetime]:
    items = []
    for _ in range(count):
        first = rng.randint(0, 2 * count)
        size = rng.choice((0, 1, rng.randint(1, 300), 256 * rng.randint(1, 40)))
        items.append(Lifetime(size, first, first + rng.randint(0, count), rng.choice((1, 16, 256, 512))))
    return items


def test_random_items_do_not_overlap() -> None:
    seed = fresh_seed()
    rng = random.Random(seed)
    for _ in range(300):
        items = random_items(rng, rng.randint(0, 30))
        found = pack(items)
        check(items, found)
        assert found.size_bytes <= sum(-(-item.size_bytes // 512) * 512 for item in items), seed


def test_small_arenas_are_near_the_least() -> None:
    """The least is that of the best of all orders: any arena is one whose items are as low as those below allow."""
    seed = fresh_seed()
    rng = random.Random(seed)
    found_bytes, least_bytes = 0, 0
    for _ in range(60):
        firsts = [rng.randint(0, 8) for _ in range(6)]
        items = [Lifetime(256 * rng.randint(1, 40), first, first + rng.randint(0, 6)) for first in firsts]
        found = pack(items)
        totals = []
        for order in permutations(range(len(items))):
            offsets = arena._placed(items, order)
            totals.append(max(offset + item.size_bytes for offset, item in zip(offsets, items, strict=True)))
        assert found.size_bytes >= min(totals), (seed, items)
        found_bytes, least_bytes = found_bytes + found.size_bytes, least_bytes + min(totals)
    assert found_bytes <= 1.02 * least_bytes, seed


@pytest.mark.parametrize(
    "items",
    [
        [(5, 1, 5), (6, 6, 9), (3, 3, 4), (5, 3, 3), (3, 2, 6), (6, 0, 2)],
        [(4, 4, 6), (6, 6, 9), (4, 5, 5), (2, 2, 6), (2, 2, 4), (5, 5, 5)],
        [(4, 6, 9), (3, 0, 4), (4, 3, 5), (3, 3, 7), (5, 1, 2), (2, 2, 2)],
    ],
    ids=["by the busiest step", "by size and duration", "from the top to the front"],
)
def test_each_order_is_needed_for_some_items(items: list[tuple[int, int, int]]) -> None:
    found = pack([Lifetime(256 * size, first, last) for size, first, last in items])
    assert found.size_bytes == found.lower_bound_bytes


def test_a_chain_takes_two_buffers() -> None:
    found = pack([Lifetime(1024, step, step + 1) for step in range(20)])
    assert found.size_bytes == found.lower_bound_bytes == 2048
    assert found.sum_bytes == 20 * 1024


def test_forward_and_backward_reach_the_bound() -> None:
    """Activations live until their gradient, the last ones shortest."""
    forward = [Lifetime(1000 * (1 + step % 3), step, 19 - step) for step in range(10)]
    gradients = [Lifetime(2000, step, step + 1) for step in range(10, 19)]
    found = pack([*forward, *gradients])
    check([*forward, *gradients], found)
    assert found.size_bytes <= 1.05 * found.lower_bound_bytes


@pytest.mark.parametrize("item", [Lifetime(-1, 0, 0), Lifetime(1, 2, 1)])
def test_impossible_items_are_refused(item: Lifetime) -> None:
    with pytest.raises(InvalidValueError, match=r"pack\.items\[1\]: expected size_bytes >= 0 and first <= last"):
        pack([Lifetime(1, 0, 0), item])
