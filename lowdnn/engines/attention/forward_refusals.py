"""Why the kernels of attention forward do not take a graph, in words."""

from __future__ import annotations

from lowdnn.engines.attention.forward_rows import LENGTH_TYPES, statistics_of
from lowdnn.engines.attention.heads import COPY_BYTES, MAX_LENGTH, MAX_SIZE
from lowdnn.engines.launch import MAX_EXTENT, MAX_GRID_X, ceil_div
from lowdnn.enums import DataType
from lowdnn.graph.attention_pattern import Attention
from lowdnn.ops.ragged import RaggedLoad

#: Queries of a block, at the least.
_LEAST_QUERIES = 64


def refuse_types(attention: Attention, types: tuple[DataType, ...]) -> str:
    """Why the kernel does not compute in these types, or an empty string."""
    first, second, softmax = attention.first, attention.second, attention.softmax
    operands = {"first product's a": first.a, "first product's b": attention.k}
    operands |= {"second product's a": second.a, "second product's b": second.b}
    for name, tensor in operands.items():
        if tensor.data_type not in types or tensor.data_type is not first.a.data_type:
            expected = " or ".join(kind.name for kind in types)
            return f"{name}: expected {expected}, all the same, got {tensor.data_type.name}"
    for name, product in {"first": first, "second": second}.items():
        if product.matmul.compute_type is not DataType.FLOAT:
            return f"{name} product's compute_type: expected FLOAT, got {product.matmul.compute_type.name}"
    if softmax.x.data_type is not DataType.FLOAT:
        return f"softmax.x: expected FLOAT, got {softmax.x.data_type.name}"
    for name, of_rows in {"SINK": softmax.sink, **statistics_of(attention)}.items():
        if of_rows is not None and of_rows.data_type is not DataType.FLOAT:
            return f"softmax's {name}: expected FLOAT, got {of_rows.data_type.name}"
    for lengths in (attention.band.lengths, attention.band.query_lengths):
        if lengths is not None and lengths.data_type not in LENGTH_TYPES:
            return f"{lengths.label}: expected INT32 or INT64, got {lengths.data_type.name}"
    return ""


def refuse_shape(attention: Attention) -> str:
    """Why the kernel cannot count the extents, or an empty string."""
    batch, heads, queries, keys = attention.first.c.dims
    for name, tensor in {"q": attention.first.a, "v": attention.second.b}.items():
        size, granule = tensor.dims[3], COPY_BYTES // tensor.element_bytes
        if size % granule or not 0 < size <= MAX_SIZE:
            return f"{name}'s head: expected a multiple of {granule} up to {MAX_SIZE}, got {size}"
    if attention.first.a.dims[:2] != (batch, heads) or attention.second.c.dims[:2] != (batch, heads):
        return f"q's batch and heads: expected those of the output, got {list(attention.first.a.dims[:2])}"
    for name, tensor in {"k": attention.k, "v": attention.second.b}.items():
        if tensor.dims[0] not in (1, batch):
            return f"{name}'s batch: expected 1 or {batch}, got {tensor.dims[0]}"
    if max(queries, keys) > MAX_LENGTH:
        return f"lengths: expected at most {MAX_LENGTH}, got {queries} and {keys}"
    blocks = batch * heads * ceil_div(queries, _LEAST_QUERIES)
    if blocks > MAX_GRID_X:
        return f"dims: expected at most {MAX_GRID_X} tiles of {_LEAST_QUERIES} queries, got {blocks}"
    return ""


def refuse_ragged(attention: Attention) -> str:
    """Why the kernel does not read or store what is ragged, or an empty string."""
    read = {attention.first.a.uid, attention.k.uid, attention.second.b.uid}
    for uid, move in attention.ragged.items():
        if isinstance(move, RaggedLoad) and uid not in read:
            return f"{move.packed.label}: expected ragged offsets of q, k and v outside of pages alone, got others"
    statistics = [tensor for tensor in statistics_of(attention).values() if tensor is not None]
    for name, tensors in {"output": attention.output.stores, "statistics": statistics}.items():
        moves = [attention.ragged.get(tensor.uid) for tensor in tensors]
        kinds = {move and (move.offsets.uid, move.multiplier, move.packed.strides) for move in moves}
        if len(kinds) > 1:
            return f"{name}: expected the same ragged offsets for all, got different ones"
        if name == "output" and any(moves) and attention.output.loads:
            return "operations: expected none behind a ragged output that read tensors, got one"
        for move in filter(None, moves):
            if move.padded.dims[2] * move.row_elements > MAX_EXTENT:
                return f"{move.packed.label}.dims: expected at most {MAX_EXTENT} elements of a ragged batch, got more"
    return ""
