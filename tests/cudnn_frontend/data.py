"""Random data for the graphs, drawn afresh for each process, and how close results come to float64 references."""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]

#: The generator of all data of the process. With the number that a failure prints, the whole file of graphs runs again.
SEED = int(os.environ.get("LOWDNN_TEST_SEED") or secrets.randbits(32))
RNG = np.random.default_rng(SEED)
_AGAIN = f"again with LOWDNN_TEST_SEED={SEED}"


def integers(*shape: int, dtype: DTypeLike = np.float16, low: int = -3, high: int = 4) -> Array:
    """Small integers, whose products and sums are exact."""
    return RNG.integers(low, high, shape).astype(dtype)


def normal(*shape: int, dtype: DTypeLike = np.float16, scale: float = 1.0) -> Array:
    return (RNG.standard_normal(shape) * scale).astype(dtype)


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def check_exact(found: Array, expected: Array) -> None:
    np.testing.assert_array_equal(wide(found), expected, err_msg=_AGAIN)


def check_close(found: Array, expected: Array, relative: float) -> None:
    """No element is off by more than ``relative`` of itself and of the root of the mean square of all."""
    scale = np.sqrt(np.mean(np.square(expected)))
    np.testing.assert_allclose(wide(found), expected, rtol=relative, atol=relative * scale, err_msg=_AGAIN)
