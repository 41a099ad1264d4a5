"""Philox4x32-10: four random words from a counter of 128 bits and a key of 64, without any state.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Words of one block.
BLOCK_WORDS = 4

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def words(seed: int, offset: int, indices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Word ``index % 4`` of block ``index // 4`` for each of ``indices``, as integers below 2**32.

    The key is ``seed``, the counter the number of the block in its low half and ``offset`` in its high one.
    """
    numbers = indices // np.uint64(BLOCK_WORDS)
    places = (indices % np.uint64(BLOCK_WORDS)).astype(np.intp)
    found: NDArray[np.uint64] = np.take_along_axis(block(seed, offset, numbers), places[np.newaxis], axis=0)[0]
    return found


def block(seed: int, offset: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The four words, along a new first axis, of the blocks ``numbers``."""
    high = np.full_like(numbers, offset % 2**64)
    counter = [numbers & _LOW, numbers >> _HALF, high & _LOW, high >> _HALF]
    key = [seed % 2**32, seed % 2**64 >> 32]
    for _ in range(_ROUNDS):
        even, odd = counter[0] * _MULTIPLIERS[0], counter[2] * _MULTIPLIERS[1]
        counter = [
            (odd >> _HALF) ^ counter[1] ^ np.uint64(key[0]),
            odd & _LOW,
            (even >> _HALF) ^ counter[3] ^ np.uint64(key[1]),
            even & _LOW,
        ]
        key = [(part + step) % 2**32 for part, step in zip(key, _KEY_STEPS, strict=True)]
    return np.stack(counter)
