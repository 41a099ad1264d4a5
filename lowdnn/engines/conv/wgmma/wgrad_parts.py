"""The parts into which the k of a filter gradient may be cut: those of all taps together, or those of each tap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lowdnn.engines.conv.wgmma.wgrad_times import Extents, TimedTile
from lowdnn.engines.gemm.wgmma_tiles import ACCUMULATOR_BYTES
from lowdnn.engines.model.serpentine import busiest

#: Parts of a tap, if each has its own.
_TAP_SPLITS = (1, 2, 3, 4, 6, 8)
#: Parts of the longest tap that are tried.
_LONGEST_TAP_SPLITS = (1, 2, 4, 8)
#: Fewest blocks of k in a part.
_LEAST_BLOCKS = 4
#: Most rounds in which the parts of k fill the device.
_MOST_ROUNDS = 4
#: Most rounds that need no margin.
_FEW_ROUNDS = 2
#: The model's error: an estimate with more parts than _FEW_ROUNDS rounds must be shorter by this factor.
_ROUNDS_MARGIN = 1.1


def bound_seconds(timed: TimedTile, extents: Extents) -> float:
    """A lower bound of the time of all ``splittings``, in seconds."""
    least_stages = max(extents.k_blocks) / _LONGEST_TAP_SPLITS[-1] if len(extents.k_blocks) > 1 else 0.0
    return timed.bound_seconds(extents, least_stages)


def splittings(timed: TimedTile, extents: Extents) -> Iterator[tuple[tuple[int, ...], float]]:
    """Candidate numbers of parts: one, and those that fill the device in a few rounds; each with the factor by which
    its estimate must be shorter."""
    if len(extents.k_blocks) > 1:
        most = max(max(extents.k_blocks) // _LEAST_BLOCKS, 1)
        yield from ((spread(timed, extents, parts), 1.0) for parts in _LONGEST_TAP_SPLITS if parts <= most)
        return
    yield (1,), 1.0
    items = timed.clusters(extents)
    for rounds in range(1, _MOST_ROUNDS + 1):
        splits = min(rounds * timed.resident // max(items, 1), extents.k_blocks[0] // _LEAST_BLOCKS)
        if splits > 1:
            yield (splits,), 1.0 if rounds <= _FEW_ROUNDS else _ROUNDS_MARGIN


def spread(timed: TimedTile, extents: Extents, most: int) -> tuple[int, ...]:
    """Parts of each tap's k, ``most`` for the taps with the most k blocks, that keep the device busy for the shortest
    time with their slices, as far as changes of single numbers show.
    """
    lengths = sorted(set(extents.k_blocks), reverse=True)
    tap_items = timed.clusters(extents)
    items = [tap_items * extents.k_blocks.count(k) for k in lengths]
    item_s = timed.slice_seconds(timed.tile.m * timed.tile.n * ACCUMULATOR_BYTES)
    stage_s, resident = timed.sustained_s, timed.resident

    def seconds(splits: Sequence[int]) -> float:
        parts = [(-(-k // split), count * split) for k, count, split in zip(lengths, items, splits, strict=True)]
        slices_s = sum(count for _, count in parts) * item_s if max(splits) > 1 else 0.0
        return busiest(parts, resident) * stage_s + slices_s

    found = _descended([most, *[1] * (len(lengths) - 1)], [split for split in _TAP_SPLITS if split <= most], seconds)
    return tuple(min(found[lengths.index(k)], k) for k in extents.k_blocks)


def _descended(start: Sequence[int], values: Sequence[int], cost: Callable[[Sequence[int]], float]) -> list[int]:
    """``start`` after coordinate descent: each number but the first in turn becomes the cheapest of ``values``, until
    none changes.
    """
    found, least = list(start), cost(start)
    while True:
        before = least
        for place in range(1, len(found)):
            others = ([*found[:place], value, *found[place + 1 :]] for value in values if value != found[place])
            least, found = min([(least, found), *((cost(other), other) for other in others)])
        if least == before:
            return found
