"""Sequences of any lengths in the ragged tensors of a case."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import with_tensors
from lowdnn.ops.ragged import RaggedMove
from tests.support.running import Arrays


def with_sequences(graph: OperationGraph, inputs: Arrays, rows: Mapping[int, Sequence[int]]) -> Arrays:
    """``inputs`` with sequences of these lengths, from the first row on.

    rows: the rows of each batch, by the number of rows that the padded tensor has.
    """
    offsets = {move.offsets.uid: _offsets(move, rows[move.padded.dims[2]], inputs) for move in _moves(graph)}
    return {**inputs, **offsets}


def with_padded(graph: OperationGraph, names: Collection[str]) -> OperationGraph:
    """The graph with padded tensors in the place of the ragged ones of these names."""
    moves = [move for move in _moves(graph) if move.packed.name in names]
    padded = {move.padded.uid: replace(move.padded, is_virtual=False, name=move.packed.name) for move in moves}
    return OperationGraph(with_tensors(op, padded) for op in graph.operations if op not in moves)


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
    """A length for each batch: 0, all that it has room for, or any number; the tensor has room for the sum."""
    room, left, lengths = move.padded.dims[2], move.packed.dims[2], []
    for _ in range(move.padded.dims[0]):
        wanted = int(rng.choice([0, room, rng.integers(0, room + 1), rng.integers(0, room + 1)]))
        lengths.append(min(wanted, left))
        left -= lengths[-1]
    return [int(length) for length in rng.permutation(lengths)]
