"""Attention written out in float64, and the extents of the tests that compare with it."""

from __future__ import annotations

from typing import Any

import numpy as np

import lowdnn.frontend as cudnn
from tests.support.data import fresh_seed

B, H, HK, SQ, SKV, D, DV = 2, 4, 2, 21, 37, 16, 24

SCALE = D**-0.5

HALF, FLOAT = cudnn.data_type.HALF, cudnn.data_type.FLOAT

QUERY, KEY = np.arange(SQ)[:, None], np.arange(SKV)[None, :]


def drawn() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(fresh_seed())
    shapes = {"q": (B, H, SQ, D), "k": (B, HK, SKV, D), "v": (B, HK, SKV, DV)}
    return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def expected(data: dict[str, np.ndarray], scores_of: Any = None, seen: Any = True) -> tuple[np.ndarray, np.ndarray]:
    """(O, Stats) in float64; ``scores_of`` changes the scaled scores, ``seen`` says which keys a query sees."""
    q, k, v = (data[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(values, H // HK, axis=1) for values in (k, v))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * SCALE
    scores = np.where(seen, scores if scores_of is None else scores_of(scores), -np.inf)
    with np.errstate(all="ignore"):
        stats = np.log(np.exp(scores).sum(-1, keepdims=True))
        weights = np.where(np.isneginf(stats), 0, np.exp(scores - stats))
    return weights @ v, stats
