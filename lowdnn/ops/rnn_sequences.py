"""Sequences of a recurrent network in memory, and as arrays (T, B, elements).

A tensor of rank 3 is (T, B, elements): its strides say whether time or batch lies outermost. One of rank 2 is packed,
(rows, elements): the rows of all sequences at t = 0, then those at t = 1, and so on. Its lengths do not ascend, so that
row (t, b) is first(t) + b, where first(t) is the sum over u < t of the number of sequences longer than u.
Lengths count as 0 to T, whatever they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn.ops.rnn import Rnn

Array = NDArray[Any]


def is_row(rnn: Rnn, lengths: Array | None) -> NDArray[np.bool_]:
    """Whether step t is one of sequence b, (T, B); all are without lengths."""
    if lengths is None:
        return np.ones((rnn.max_length, rnn.batch_size), np.bool_)
    steps = np.arange(rnn.max_length)[:, np.newaxis]
    found: NDArray[np.bool_] = steps < np.asarray(lengths).astype(np.int64)
    return found


def to_steps(values: Array, rows: NDArray[np.bool_]) -> Array:
    """A tensor's values as (T, B, elements), 0 where there is no row."""
    if values.ndim == 3:
        return np.where(rows[..., np.newaxis], values, 0)
    steps = np.zeros((*rows.shape, values.shape[-1]), values.dtype)
    steps[rows] = values[: np.count_nonzero(rows)]
    return steps


def from_steps(steps: Array, rows: NDArray[np.bool_], dims: tuple[int, ...], fill: float = 0.0) -> Array:
    """The values of a tensor of ``dims``; a padded one has ``fill``, a packed one 0 where there is no row."""
    if len(dims) == 3:
        return np.where(rows[..., np.newaxis], steps, fill)
    values = np.zeros(dims, steps.dtype)
    found = steps[rows][: dims[0]]
    values[: len(found)] = found
    return values


def before(steps: Array, first: Array, rows: NDArray[np.bool_], is_backwards: bool) -> Array:
    """The state before each step, (T, B, S), from those behind each step and the ``first`` ones (B, S)."""
    shifted = np.empty_like(steps)
    if not is_backwards:
        shifted[0], shifted[1:] = first, steps[:-1]
        return shifted
    shifted[-1] = first
    shifted[:-1] = np.where(rows[1:, :, np.newaxis], steps[1:], first)
    return shifted
