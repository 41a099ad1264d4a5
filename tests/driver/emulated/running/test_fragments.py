"""Chains of ``mma`` whose products are summed late: what becomes of many that live, and of those that nobody holds."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.running.fragments import Chains, Products
from lowdnn.driver.emulated.values.tensor_core import MatrixProduct, numbers_of
from tests.support.data import fresh_seed

PRODUCT = MatrixProduct(16, 8, "tf32", "tf32", "f32", "f32", np.multiply, np.add)


def drawn(rng: np.random.Generator, count: int, rows: int) -> list[tuple[Any, ...]]:
    """Factors of two steps of two warps: whole numbers, whose sums are exact."""
    values = rng.integers(-8, 9, (count, 2, 2, rows, 8)).astype(np.float32).view(np.uint32)
    return [tuple(steps) for steps in values]


@pytest.mark.parametrize("dropped", [(), (0,)])
def test_many_chains_live(dropped: tuple[int, ...]) -> None:
    """More chains than entries after which the dead ones go, of which every third may be dead; summed in any order."""
    seed = fresh_seed()
    rng = np.random.default_rng(seed)
    group: Any = SimpleNamespace(index=None, lanes=np.arange(64), first_lane=0, batch=SimpleNamespace(chains=Chains()))
    living = []
    for place, (left, right) in enumerate(product(drawn(rng, 40, 16), drawn(rng, 20, 8))):
        chain = Products(group, PRODUCT, None, left, right)
        if place % 3 not in dropped:
            living.append((chain, left, right))
    assert len(living) > 512
    for place in rng.permutation(len(living)):
        chain, left, right = living[place]
        expected = sum(numbers(a) @ numbers(b).transpose(0, 2, 1) for a, b in zip(left, right, strict=True))
        np.testing.assert_array_equal(chain.matrix, expected, f"seed {seed}")


def numbers(packed: Any) -> Any:
    return numbers_of(packed, "tf32")[..., 0]
