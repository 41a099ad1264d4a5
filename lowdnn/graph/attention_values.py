"""Attention in parts: zeroes the values past the length of a sequence, so that NaN there reaches no sum."""

from __future__ import annotations

from lowdnn.graph.attention_pattern import match_attention
from lowdnn.graph.expansion_writer import ExpansionWriter
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.uids import free_uid
from lowdnn.ops.base import with_tensors
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.norm import compute_type_of


def with_existing_values(graph: OperationGraph) -> OperationGraph:
    """``graph``; if it is attention whose keys have lengths, with zeros in place of the values behind them.

    Weights there are 0, but their products with NaN or infinity are not. Values in pages and ragged ones are zeros
    there anyway.
    """
    attention = match_attention(graph)
    if isinstance(attention, str) or attention.band.lengths is None:
        return graph
    v = attention.second.b
    if attention.v_load is not None or v.uid in attention.ragged:
        return graph
    builder = ExpansionWriter(free_uid(graph.tensors))
    zero = builder.constant(v.rank, compute_type_of(v), 0.0)
    existing = builder.existing(v, attention.band.lengths, zero)
    others = (
        with_tensors(op, {v.uid: existing}) if isinstance(op, MatmulOperation) and op.b.uid == v.uid else op
        for op in graph.operations
    )
    return OperationGraph([*builder.operations, *others])
