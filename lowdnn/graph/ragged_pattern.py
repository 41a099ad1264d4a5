"""Ragged tensors of a graph: which there are, and what it would be if all sequences were as long, for engines that move
rows anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import inputs_of, outputs_of, with_tensors
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, RaggedStore
from lowdnn.ops.tensor import Tensor, has_overlap


@dataclass(frozen=True)
class Padded:
    """``graph``: without loads and stores of ragged tensors, in whose place are tensors with the packed one's uid and
    strides.  moves: the loads and stores that were there, by that uid."""

    graph: OperationGraph
    moves: Mapping[int, RaggedMove] = field(default_factory=dict)


def packed_uids(graph: OperationGraph) -> frozenset[int]:
    """The uids of packed tensors of which offsets say how much there is.

    A packed tensor that an operation also reads or writes as an ordinary one is not among them: it has all its rows.
    """
    moves = [op for op in graph.operations if isinstance(op, RaggedMove)]
    if not moves:
        return frozenset()
    whole = {
        tensor.uid
        for op in graph.operations
        for tensor in (*inputs_of(op).values(), *outputs_of(op).values())
        if not isinstance(op, RaggedMove) or tensor.uid != op.packed.uid
    }
    return frozenset(move.packed.uid for move in moves) - whole


def padded(graph: OperationGraph) -> Padded | str:
    """See ``Padded``; or why some of the ragged tensors have no such place."""
    moves = [op for op in graph.operations if isinstance(op, RaggedMove)]
    if not moves:
        return Padded(graph)
    packed = packed_uids(graph)
    for move in moves:
        if not move.padded.is_virtual or (isinstance(move, RaggedStore) and graph.consumers(move.padded) != (move,)):
            return f"{move.padded.label}: expected a virtual tensor, read by what packs it alone, got another one"
        read = (move.packed, move.offsets) if isinstance(move, RaggedLoad) else (move.offsets,)
        for tensor in read:
            if graph.producer(tensor) is not None:
                return f"{tensor.label}: expected a graph input, got one that an operation writes"
        if move.packed.uid not in packed:
            return f"{move.packed.label}: expected a packed tensor that is read as such alone, got another reader"
        if has_overlap((place := _place(move)).dims, place.strides):
            return f"{move.packed.label}.strides: expected rows of all heads, got {list(move.packed.strides)}"
    by_uid = {move.packed.uid: move for move in moves}
    if len(by_uid) < len(moves):
        return "operations: expected each ragged tensor once, got one that is there twice"
    places = {move.padded.uid: _place(move) for move in moves}
    others = [with_tensors(op, places) for op in graph.operations if not isinstance(op, RaggedMove)]
    if not others:
        return "operations: expected some beside loads and stores of ragged tensors, got none"
    return Padded(OperationGraph(others), by_uid)


def _place(move: RaggedMove) -> Tensor:
    """The padded tensor with the packed one's rows; between batches, as many as one can have."""
    _, head, row, element = move.packed.strides
    batch = move.padded.dims[2] * row
    return replace(move.packed, dims=move.padded.dims, strides=(batch, head, row, element))
