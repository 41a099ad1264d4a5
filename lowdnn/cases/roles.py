"""Inputs that say where rows are, or that may not be any number, drawn by the role that they have in an operation.

Cases of a family know their tensors by name. Here they are found by the port that reads them, in any graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowdnn import dtypes
from lowdnn.cases import routing
from lowdnn.cases.data import real_values
from lowdnn.graph.attention_pattern import match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of
from lowdnn.ops.moe_grouped_matmul import MoeGroupedMatmul
from lowdnn.ops.moe_grouped_matmul_backward import MoeGroupedMatmulBackward
from lowdnn.ops.paged_cache_load import PagedCacheLoad
from lowdnn.ops.ragged import RaggedMove
from lowdnn.ops.resample import maxima
from lowdnn.ops.resample_backward import ResampleBackward
from lowdnn.ops.rnn_operation import RecurrentOperation
from lowdnn.ops.rnn_tensors import SEQUENCES
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor

Array = NDArray[Any]

#: Substrings of names of ports whose elements must be greater than 0.
_POSITIVE = ("var", "inv_std", "squares")


def values_by_role(graph: OperationGraph, seed: int) -> dict[int, Array]:
    """Storage arrays, by uid, of the graph's inputs that have such a role; a tensor with several roles gets the
    first."""
    rng = np.random.default_rng([seed, 1])
    given = {tensor.uid for tensor in graph.inputs if tensor.constant_value is None}
    found: dict[int, Array] = {}
    for values_of in (_attention_lengths(graph), *(_values(rng, operation) for operation in graph.operations)):
        for tensor, values in values_of:
            if tensor.uid in given and tensor.uid not in found:
                stored = np.broadcast_to(values, tensor.dims) if values.ndim == 0 else values.reshape(tensor.dims)
                found[tensor.uid] = dtypes.from_float64(stored, tensor.data_type)
    return found


def _attention_lengths(graph: OperationGraph) -> Iterator[tuple[Tensor, Array]]:
    """Lengths of an attention: every batch has all keys and all queries."""
    attention = match_attention(graph)
    if not isinstance(attention, str):
        queries, keys = attention.first.c.dims[2:]
        yield from _lengths((attention.band.lengths, keys), (attention.band.query_lengths, queries))


def _values(rng: np.random.Generator, operation: Operation) -> Iterator[tuple[Tensor, Array]]:
    if isinstance(operation, RaggedMove):
        yield operation.offsets, _offsets(operation)
    elif isinstance(operation, PagedCacheLoad):
        yield from _pages(rng, operation)
    elif isinstance(operation, MoeGroupedMatmul | MoeGroupedMatmulBackward):
        yield from _routes(rng, operation)
    elif isinstance(operation, ResampleBackward) and operation.index is not None:
        image = rng.integers(-4, 5, operation.dx.dims).astype(np.float64)
        yield operation.index, maxima(operation.resample, image)[1]
    elif isinstance(operation, SdpaBackward):
        yield from _lengths((operation.seq_len_q, operation.q.dims[2]), (operation.seq_len_kv, operation.k.dims[2]))
    elif isinstance(operation, RecurrentOperation):
        yield from _sequences(operation)
    for port, tensor in inputs_of(operation).items():
        if any(part in port for part in _POSITIVE) and dtypes.info(tensor.data_type).kind is dtypes.Kind.FLOAT:
            yield tensor, np.abs(dtypes.to_values(real_values(rng, tensor.dims, tensor.data_type), tensor.data_type))


def _offsets(move: RaggedMove) -> Array:
    """Sequences of one length, as long as the packed rows and the padded ones have room for."""
    batch = move.offsets.dims[0] - 1
    rows = min(move.padded.dims[2], move.packed.dims[2] // max(batch, 1))
    return np.arange(batch + 1) * (rows * move.row_elements // move.multiplier)


def _pages(rng: np.random.Generator, load: PagedCacheLoad) -> Iterator[tuple[Tensor, Array]]:
    """Page tables and lengths of full sequences. Pages are chosen at random; each occurs once if there are enough."""
    pages, count = load.container.dims[0], load.page_table.element_count
    places = rng.permutation(pages)[:count] if count <= pages else rng.integers(0, max(pages, 1), count)
    yield load.page_table, places
    yield load.sequence, np.array(load.y.dims[2])


def _routes(
    rng: np.random.Generator, operation: MoeGroupedMatmul | MoeGroupedMatmulBackward
) -> Iterator[tuple[Tensor, Array]]:
    groups = operation.groups
    sizes = routing.group_sizes(rng, groups.rows, groups.count)
    yield operation.first_token_offset, routing.offsets(sizes, groups.has_end)
    if isinstance(operation, MoeGroupedMatmul):
        routes = routing.routing(rng, operation.mode, operation.token.dims[1], groups.rows, operation.top_k)
        yield from ((getattr(operation, port), values) for port, values in routes.items())


def _sequences(operation: RecurrentOperation) -> Iterator[tuple[Tensor, Array]]:
    """Lengths that are as nearly equal as the packed rows allow, longest first; the longest where rows are padded."""
    ports, rnn = inputs_of(operation), operation.rnn
    if "seq_lengths" in ports:
        sequence = next(tensor for port, tensor in ports.items() if port in SEQUENCES)
        rows = sequence.dims[0] if sequence.rank == 2 else rnn.max_length * rnn.batch_size
        yield ports["seq_lengths"], -((np.arange(rnn.batch_size) - rows) // rnn.batch_size)


def _lengths(*pairs: tuple[Tensor | None, int]) -> Iterator[tuple[Tensor, Array]]:
    """The longest length for each sequence."""
    yield from ((tensor, np.array(longest)) for tensor, longest in pairs if tensor is not None)
