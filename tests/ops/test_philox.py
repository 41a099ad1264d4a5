from __future__ import annotations

import numpy as np
import pytest

from lowdnn.ops import philox
from tests.support.data import fresh_seed

MASK = 2**32 - 1
ONES = 2**64 - 1


def plain_block(counter: int, key: int) -> list[int]:
    """Philox4x32-10 on Python's integers, round by round as the paper draws it."""
    c = [counter >> 32 * n & MASK for n in range(4)]
    k = [key & MASK, key >> 32]
    for number in range(10):
        if number:
            k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ k[0], second & MASK, (first >> 32) ^ c[3] ^ k[1], first & MASK]
    return c


@pytest.mark.parametrize(
    ("number", "offset", "seed", "expected"),
    [
        (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (ONES, ONES, ONES, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x85A308D3_243F6A88,
            0x03707344_13198A2E,
            0x299F31D0_A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(number: int, offset: int, seed: int, expected: list[int]) -> None:
    """The vectors that Random123 comes with."""
    assert philox.block(seed, offset, np.array([number], np.uint64))[:, 0].tolist() == expected
    assert plain_block(number | offset << 64, seed) == expected


def test_words_are_those_of_an_independent_implementation() -> None:
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        seed, offset = (int(value) for value in rng.integers(-(2**63), 2**63, 2))
        indices = rng.integers(0, 2**64, 5, np.uint64)
        expected = [plain_block(int(i) // 4 | offset % 2**64 << 64, seed % 2**64)[int(i) % 4] for i in indices]
        assert philox.words(seed, offset, indices).tolist() == expected, (seed, offset)
