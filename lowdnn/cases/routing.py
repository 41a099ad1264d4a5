"""Routing data of cases: sizes of the groups, the offsets that say them, and where routed rows come from and go to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowdnn.enums import MoeGroupedMatmulMode


def group_sizes(rng: np.random.Generator, rows: int, groups: int) -> tuple[int, ...]:
    """Sizes of groups that add up to ``rows``: uneven, and some are 0 if there are several groups."""
    cuts = np.sort(rng.integers(0, rows + 1, groups - 1))
    return tuple(int(size) for size in np.diff(np.concatenate(([0], cuts, [rows]))))


def offsets(sizes: tuple[int, ...], has_end: bool) -> NDArray[np.int64]:
    """(extent, 1, 1): the first row of each group, and with ``has_end`` the last one's end."""
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    return bounds[: len(sizes) + has_end].reshape(-1, 1, 1)


def routing(
    rng: np.random.Generator, mode: MoeGroupedMatmulMode, tokens: int, rows: int, top_k: int
) -> dict[str, NDArray[np.int64]]:
    """token_index and token_ks (1, rows, 1) by name: any token to gather, each output row once to scatter to."""
    if mode is MoeGroupedMatmulMode.GATHER:
        return {"token_index": rng.integers(0, tokens, (1, rows, 1))}
    if mode is MoeGroupedMatmulMode.SCATTER:
        index, ks = np.divmod(rng.permutation(rows).reshape(1, rows, 1), top_k)
        return {"token_index": index, "token_ks": ks}
    return {}
