"""The least of many by a model: those that a cheap bound rules out are never timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TypeVar

ItemT = TypeVar("ItemT")


def first_of_least(bounded: Iterable[tuple[float, ItemT]], cost: Callable[[ItemT], float]) -> ItemT | None:
    """Of the items of least ``cost`` the first one; None where there are no items.

    bounded: items, each with a bound that its cost is not below.
    """
    best: tuple[float, int, ItemT] | None = None
    for number, (bound, item) in sorted(enumerate(bounded), key=lambda entry: entry[1][0]):
        if best is not None and bound > best[0]:
            break
        found = (cost(item), number, item)
        best = found if best is None else min(best, found, key=itemgetter(0, 1))
    return best[2] if best is not None else None
