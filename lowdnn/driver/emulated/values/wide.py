"""128-bit values: stored as 16-byte words (``w16``, complex128), computed with as two uint64 halves. PTX ISA manual,
"mov", "atom"."""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes


def split(value: Lanes) -> tuple[Lanes, Lanes]:
    """(low half, high half) as uint64."""
    halves = _halves(value)
    return (halves[:, 0], halves[:, 1]) if value.ndim else (halves[0, 0], halves[0, 1])


def joined(low: Lanes, high: Lanes) -> Lanes:
    """The 16-byte words (``w16``) with these uint64 halves."""
    low, high = np.broadcast_arrays(low, high)
    words = np.stack([np.atleast_1d(low), np.atleast_1d(high)], axis=-1).view(np.complex128)[:, 0]
    return words if low.ndim else words[0]


def compare_and_swap(old: Lanes, compare: Lanes, value: Lanes) -> Lanes:
    """``value`` where ``old`` has the bits of ``compare``, else ``old``."""
    return np.where((_halves(old) == _halves(compare)).all(axis=1), value, old)


def _halves(value: Lanes) -> Lanes:
    return np.ascontiguousarray(np.atleast_1d(value)).view(np.uint64).reshape(-1, 2)
