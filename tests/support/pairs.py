"""Parameters of tests: fewer combinations than all of them, with every pair of values among them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, cycle, product
from typing import Any

import pytest

#: The name of a parameter, or the names of several that change together, and the values.
Axis = tuple[str | tuple[str, ...], Sequence[Any]]
_Pair = tuple[int, int, int, int]


def paired(*axes: Axis, fixtures: Sequence[str] = ()) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize`` with the ``pairs`` of all axes. ``fixtures``: names that are fixtures' own."""
    grouped = [axis if isinstance(axis[0], tuple) else ((axis[0],), [(value,) for value in axis[1]]) for axis in axes]
    names = ",".join(chain(*(names for names, _ in grouped)))
    rows = pairs(*(values for _, values in grouped))
    return pytest.mark.parametrize(names, [tuple(chain(*row)) for row in rows], indirect=[*fixtures])


def pairs(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis in which every two values of different axes meet, in a fixed order.

    Each combination is the first of those with the most pairs that have not met yet (all-pairs testing: Cohen, Dalal,
    Fredman, Patton, "The AETG system", 1997). The number follows the two longest axes, where all combinations would be
    the product of all.
    """
    candidates = list(product(*(range(len(axis)) for axis in axes)))
    missing = {pair for candidate in candidates for pair in _pairs_of(candidate)}
    chosen = []
    while missing:
        best = max(candidates, key=lambda candidate: len(missing.intersection(_pairs_of(candidate))))
        missing.difference_update(_pairs_of(best))
        chosen.append(best)
    return [tuple(axis[place] for axis, place in zip(axes, places, strict=True)) for places in sorted(chosen)]


def in_turn(values: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The first of ``values`` with all ``others``, each further one with one of them, which take turns."""
    return [(values[0], other) for other in others] + [*zip(values[1:], cycle(others))]


def _pairs_of(places: tuple[int, ...]) -> set[_Pair]:
    return {(i, places[i], j, places[j]) for i, j in combinations(range(len(places)), 2)}
