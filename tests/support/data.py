"""Test data: storage arrays of any data type from a seed that failures print.

Exact data are small integers, sized so that every partial sum is an integer that the accumulator holds: any order of
summation then gives the same bits.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases.data import exact_values, real_values
from lowdnn.enums import DataType

__all__ = ["exact_values", "fresh_seed", "poison", "real_values", "special_values"]


#: Seeds that each test has drawn.
_DRAWN: Counter[str] = Counter()


def fresh_seed() -> int:
    """A seed that differs in each run; pass it on as part of the failure message.

    Where LOWDNN_TEST_SEED is set, it follows from that, the test and how many the test has drawn: a run repeats.
    """
    base = os.environ.get("LOWDNN_TEST_SEED")
    if base is None:
        return secrets.randbits(32)
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    _DRAWN[test] += 1
    return crc32(f"{base} {test} {_DRAWN[test]}".encode())


def special_values(data_type: DataType) -> NDArray[Any]:
    """A 1-D storage array of the values where rounding, overflow and NaN rules show."""
    facts = dtypes.info(data_type)
    if facts.kind is dtypes.Kind.BOOLEAN:
        return np.array([False, True])
    if facts.kind is not dtypes.Kind.FLOAT:
        limits = np.iinfo(facts.storage)
        return np.array([0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1], facts.storage)
    epsilon = facts.epsilon
    numbers = [0.0, 1.0, 0.5, 2.0, 3.0, 1 + epsilon, 1 - epsilon / 2, 1e-2, 10.0, 100.0, 1e4, 1e-6, 1e30, 1e-30]
    return dtypes.from_float64(np.array([*numbers, *(-n for n in numbers), np.inf, -np.inf, np.nan]), data_type)


def poison(count: int, data_type: DataType, byte: int = 0xCD) -> NDArray[Any]:
    """Contents of outputs before a run: bytes which no test expects as a result."""
    storage = dtypes.info(data_type).storage
    return np.full(count * storage.itemsize, byte, np.uint8).view(storage)
