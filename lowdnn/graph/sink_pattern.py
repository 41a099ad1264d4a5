"""Finds the sink of a softmax and the queries that have it, all of them or those before a length:

y = row < length ? sink : -infinity        row: GEN_INDEX along the queries; length: one number for each batch
"""

from __future__ import annotations

from dataclasses import dataclass

from lowdnn.graph.band_pattern import Band, band_of
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.reduction_pattern import ancestors
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor


@dataclass(frozen=True)
class Sink:
    """lengths: the numbers of queries that have the sink.  operations: the ones that mask it, which serve nothing
    else."""

    tensor: Tensor
    lengths: Tensor | None = None
    operations: tuple[PointwiseOperation, ...] = ()


def sink_of(graph: OperationGraph, sink: Tensor) -> Sink:
    """The sink after the mask of this form; ``sink`` itself, for all queries, where there is no such mask."""
    producer = graph.producer(sink)
    if producer is None:
        return Sink(sink)
    own = {id(producer), *ancestors(graph, producer)}
    steps = tuple(op for op in graph.operations if id(op) in own and isinstance(op, PointwiseOperation))
    band = band_of(steps, sink)
    is_masked = band == Band(band.scores, query_lengths=band.query_lengths)
    users = [user for op in steps for user in graph.consumers(op.output) if id(user) not in own]
    is_apart = len(users) == 1 and all(op.output.is_virtual for op in steps)
    if len(steps) < len(own) or band.query_lengths is None or not is_masked or not is_apart:
        return Sink(sink)
    return Sink(band.scores, band.query_lengths, steps)
