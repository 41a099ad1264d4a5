"""Warp-wide exchange (PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask", "elect.sync").

Values are [warps, 32] arrays. ``active`` [warps, 32] says which lanes execute together, ``members`` is the membermask
operand as uint32, 0-d or [warps, 32]: lanes of one warp may name different member sets, and each sees its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes

WARP_LANES = 32
_LANE = np.arange(WARP_LANES, dtype=np.uint32)
_FIVE_BITS = np.uint32(31)


def shuffle_source(mode: str, operand: Lanes, control: Lanes) -> tuple[Lanes, Lanes]:
    """``shfl`` up, down, bfly, idx: (source lane, predicate), shaped as the operands broadcast against 32 lanes.

    ``control`` holds the clamp value in bits 0 to 4 and the segment mask in bits 8 to 12. A source out of range makes
    the predicate false and the lane its own source.
    """
    if np.ndim(operand) == 0 and np.ndim(control) == 0:
        return _uniform_source(mode, int(operand) & 31, int(control))
    return _sources(mode, operand, control)


def shuffle(value: Lanes, source: Lanes, active: Lanes) -> Lanes:
    """The value of each lane's ``source`` lane; all ones, a NaN, where that lane is inactive (undefined in PTX)."""
    if source.ndim == 1 and active.all():
        return value[:, source]
    place = source + np.arange(0, value.size, value.shape[1])[:, np.newaxis]
    taken = value.reshape(-1).take(place)
    if active.all():
        return taken
    undefined = ~active.reshape(-1).take(place)
    poison = np.full(1, 0xFF, np.uint8).repeat(value.dtype.itemsize).view(value.dtype)[0]
    return np.where(undefined, poison, taken)


def ballot(predicate: Lanes, members: Lanes, active: Lanes) -> Lanes:
    """``vote.ballot``: bit i says that lane i is an active member with a true predicate."""
    return np.broadcast_to(_bits(predicate & active) & members, predicate.shape)


def vote(mode: str, predicate: Lanes, members: Lanes, active: Lanes) -> Lanes:
    """``vote`` all, any, uni over the active members, as bool in every lane."""
    voters, yes = _bits(active) & members, _bits(predicate & active) & members
    result = {"any": yes != 0, "all": yes == voters, "uni": (yes == 0) | (yes == voters)}[mode]
    return np.broadcast_to(result, predicate.shape)


def match_any(value: Lanes, members: Lanes, active: Lanes) -> Lanes:
    """``match.any``: the active members whose value equals the lane's own, as a uint32 mask."""
    equal = (value[:, :, None] == value[:, None, :]) & active[:, None, :]
    return _bits(equal)[..., 0] & members


def match_all(value: Lanes, members: Lanes, active: Lanes) -> tuple[Lanes, Lanes]:
    """``match.all``: (the member mask if all active members hold one value, else 0; that condition as bool)."""
    voters = np.broadcast_to(_bits(active) & members, value.shape)
    agreed = match_any(value, members, active) == voters
    return np.where(agreed, voters, np.uint32(0)), agreed


def reduce(operation: str, value: Lanes, members: Lanes, active: Lanes) -> Lanes:
    """``redux``: add, min, max, and, or, xor of integers over the active members."""
    combine, identity = _reduction(operation, value.dtype)
    if np.ndim(members) == 0:
        inside = active & ((members >> _LANE) & np.uint32(1) != 0)
        return np.broadcast_to(_folded(combine, np.where(inside, value, identity)), value.shape)
    masks = np.broadcast_to(members, value.shape)
    result = np.empty_like(value)
    for mask in np.unique(masks[active]):
        inside = active & ((mask >> _LANE) & np.uint32(1) != 0)
        total = _folded(combine, np.where(inside, value, identity))
        np.copyto(result, total, where=masks == mask)
    return result


def elect(members: Lanes, active: Lanes) -> tuple[Lanes, Lanes]:
    """``elect.sync``: (the lowest active member's lane number as uint32, whether the lane is that one)."""
    voters = np.broadcast_to(_bits(active) & members, active.shape)
    lowest = np.bitwise_count((voters & (~voters + np.uint32(1))) - np.uint32(1)).astype(np.uint32)
    return lowest, lowest == _LANE


def active_mask(active: Lanes) -> Lanes:
    """``activemask``: the active lanes as a uint32 mask, in every lane."""
    return np.broadcast_to(_bits(active), active.shape)


@lru_cache(maxsize=1024)
def _uniform_source(mode: str, operand: int, control: int) -> tuple[Lanes, Lanes]:
    """One row of 32 sources for operands that are the same in every lane; their number is small."""
    return _sources(mode, np.uint32(operand), np.uint32(control))


def _sources(mode: str, operand: Lanes, control: Lanes) -> tuple[Lanes, Lanes]:
    step, clamp = operand & _FIVE_BITS, control & _FIVE_BITS
    segment = (control >> np.uint32(8)) & _FIVE_BITS
    first = _LANE & segment
    last = (first | (clamp & ~segment)).astype(np.int32)
    lane = _LANE.astype(np.int32)
    if mode == "up":
        source = lane - step.astype(np.int32)
        in_range = source >= last
    else:
        source = {
            "down": lambda: lane + step.astype(np.int32),
            "bfly": lambda: (_LANE ^ step).astype(np.int32),
            "idx": lambda: (first | (step & ~segment)).astype(np.int32),
        }[mode]()
        in_range = source <= last
    return np.where(in_range, source, lane), in_range


def _bits(flags: Lanes) -> Lanes:
    """[..., 32] flags as [..., 1] uint32, lane 0 in bit 0."""
    return np.packbits(flags, axis=-1, bitorder="little").view(np.uint32)


def _folded(combine: Callable[[Lanes, Lanes], Lanes], value: Lanes) -> Lanes:
    """[warps, 32] combined pairwise to [warps, 1]."""
    width = value.shape[1]
    while width > 1:
        width //= 2
        value = combine(value[:, :width], value[:, width:])
    return value


def _reduction(operation: str, dtype: np.dtype[Any]) -> tuple[Callable[..., Lanes], Lanes]:
    """(function that combines two values, neutral element)."""
    limits, zero = np.iinfo(dtype), dtype.type(0)
    table: dict[str, tuple[Callable[..., Lanes], Lanes]] = {
        "add": (np.add, zero),
        "min": (np.minimum, dtype.type(limits.max)),
        "max": (np.maximum, dtype.type(limits.min)),
        "and": (np.bitwise_and, ~zero),
        "or": (np.bitwise_or, zero),
        "xor": (np.bitwise_xor, zero),
    }
    return table[operation]
