"""Places in one arena for memory that is in use at different times.

Each item has a size and is in use from one step to another. Items whose times overlap get places that do not:

    total(offsets) = max over items of offset + size
    lower bound    = max over steps of the sum of the sizes that are in use in it

The least total is NP-hard to find (dynamic storage allocation). Items are placed one by one at the lowest offset where
they fit beside those placed before; the order decides how good that is. Two orders are tried: by the bytes in use in an
item's busiest step, and by size times duration, each largest first. In each, the items that end at the top are then
moved to the front, and all are placed anew. The best result counts. Source of the orders: Pisarchyk and Lee, Efficient
memory management for deep neural net inference (2020), sections 4 and 5.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lowdnn.runtime.workspace import ALIGNMENT_BYTES
from lowdnn.status import InvalidValueError

#: How often all items are placed in each order.
_MOST_ROUNDS = 16
#: Pairs of items that are compared in each order: 1000 items are placed twice.
_MOST_PAIRS = 2_000_000


@dataclass(frozen=True)
class Lifetime:
    """``size_bytes`` in use from step ``first`` to ``last``, both included, at a multiple of ``alignment_bytes``."""

    size_bytes: int
    first: int
    last: int
    alignment_bytes: int = ALIGNMENT_BYTES

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are in use in one step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Packing:
    """offsets: bytes from the begin of the arena to each item.  size_bytes: the size of the arena.

    lower_bound_bytes: the most bytes in use in one step, which no arena can be smaller than.
    sum_bytes: the sizes of all items, each in memory of its own.
    """

    offsets: tuple[int, ...]
    size_bytes: int
    lower_bound_bytes: int
    sum_bytes: int


def pack(items: Sequence[Lifetime]) -> Packing:
    """Offsets for ``items``. Raises InvalidValueError for a negative size, or an item that ends before it begins."""
    for number, item in enumerate(items):
        if item.size_bytes < 0 or item.last < item.first:
            expected = "size_bytes >= 0 and first <= last"
            raise InvalidValueError.at(f"pack.items[{number}]", expected=expected, got=item)
    live_bytes = _live_bytes(items)
    bound_bytes = max(live_bytes.values(), default=0)
    best_bytes, best = math.inf, (0,) * len(items)
    for offsets in _tries(items, live_bytes):
        total_bytes = _total_bytes(items, offsets)
        if total_bytes < best_bytes:
            best_bytes, best = total_bytes, tuple(offsets)
        if best_bytes == bound_bytes:
            break
    return Packing(best, _total_bytes(items, best), bound_bytes, sum(item.size_bytes for item in items))


def _tries(items: Sequence[Lifetime], live_bytes: dict[int, int]) -> Iterator[list[int]]:
    """Offsets for all items, tried one after the other."""
    rounds = max(1, min(_MOST_ROUNDS, _MOST_PAIRS // max(1, len(items)) ** 2))
    for key in _orders(items, live_bytes):
        order = sorted(range(len(items)), key=key)
        for _ in range(rounds):
            offsets = _placed(items, order)
            yield offsets
            total_bytes = _total_bytes(items, offsets)
            ends = {number for number in order if offsets[number] + items[number].size_bytes == total_bytes}
            order.sort(key=lambda number, ends=ends: number not in ends)  # type: ignore[misc]


def _total_bytes(items: Sequence[Lifetime], offsets: Sequence[int]) -> int:
    return max((offset + item.size_bytes for offset, item in zip(offsets, items, strict=True)), default=0)


def _orders(items: Sequence[Lifetime], live_bytes: dict[int, int]) -> tuple[Callable[[int], Any], ...]:
    """The orders in which items are placed, as keys of their numbers."""
    busiest = [
        max(live for step, live in live_bytes.items() if item.first <= step <= item.last) if live_bytes else 0
        for item in items
    ]
    return (
        lambda number: (-busiest[number], -items[number].size_bytes),
        lambda number: -items[number].size_bytes * (1 + items[number].last - items[number].first),
    )


def _live_bytes(items: Sequence[Lifetime]) -> dict[int, int]:
    """The bytes in use, by step; of each stretch of steps with equal ones the first step alone."""
    changes: dict[int, int] = {}
    for item in items:
        changes[item.first] = changes.get(item.first, 0) + item.size_bytes
        changes[item.last + 1] = changes.get(item.last + 1, 0) - item.size_bytes
    found, live = {}, 0
    for step in sorted(changes):
        live += changes[step]
        found[step] = live
    return found


def _placed(items: Sequence[Lifetime], order: Sequence[int]) -> list[int]:
    """The offsets of all items, each as low as those before it in ``order`` allow."""
    offsets = [0] * len(items)
    placed: list[tuple[int, int]] = []  # (offset, number), lowest first
    for number in order:
        item, begin = items[number], 0
        for offset, other in placed:
            if items[other].overlaps(item):
                if begin + item.size_bytes <= offset:
                    break
                end = offset + items[other].size_bytes
                begin = max(begin, -(-end // item.alignment_bytes) * item.alignment_bytes)
        offsets[number] = begin
        insort(placed, (begin, number))
    return offsets
