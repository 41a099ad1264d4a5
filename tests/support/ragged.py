"""Sequences of any lengths in the ragged tensors of a case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.ragged import RaggedMove
from tests.support.running import Arrays


def with_sequences(graph: OperationGraph, inputs: Arrays, rows: Sequence[Sequence[int]]) -> Arrays:
    """``inputs`` with sequences of so many rows for each batch, from the first row on: ``rows[0]`` in ragged tensors
    that have room for as many as the first one, ``rows[1]`` in the others."""
    moves = _moves(graph)
    changed = dict(inputs)
    for move in moves:
        own = rows[move.padded.dims[2] != moves[0].padded.dims[2]]
        changed[move.offsets.uid] = _offsets(move, own, inputs)
    return changed


def with_random_sequences(
    rng: np.random.Generator, graph: OperationGraph, inputs: Arrays, *, are_shared: bool
) -> Arrays:
    """``inputs`` with sequences of any lengths, which may end before their tensors do.

    are_shared: whether all ragged tensors with room for as many rows have the same ones; otherwise those that share
    offsets.
    """
    changed, drawn = dict(inputs), dict[int, list[int]]()
    for move in _moves(graph):
        key = move.padded.dims[2] if are_shared else move.offsets.uid
        if key not in drawn:
            drawn[key] = _lengths(rng, move)
        changed[move.offsets.uid] = _offsets(move, drawn[key], inputs)
    return changed


def _moves(graph: OperationGraph) -> list[RaggedMove]:
    return [op for op in graph.operations if isinstance(op, RaggedMove)]


def _offsets(move: RaggedMove, rows: Sequence[int], inputs: Arrays) -> np.ndarray:
    before = inputs[move.offsets.uid]
    elements = np.cumsum([0, *rows]) * move.row_elements // move.multiplier
    return elements.astype(before.dtype).reshape(before.shape)


def _lengths(rng: np.random.Generator, move: RaggedMove) -> list[int]:
    """Of each batch: none, all that it has room for, or any number, as long as the tensor has room for all."""
    room, left, lengths = move.padded.dims[2], move.packed.dims[2], []
    for _ in range(move.padded.dims[0]):
        wanted = int(rng.choice([0, room, rng.integers(0, room + 1), rng.integers(0, room + 1)]))
        lengths.append(min(wanted, left))
        left -= lengths[-1]
    return [int(length) for length in rng.permutation(lengths)]
