"""Scaled dot product attention and its gradients: the dims of heads and the lengths of sequences.

q is (B, H, S_q, D), k (B, H_k, S_kv, D), v (B, H_v, S_kv, D_v); H is a multiple of H_k and of H_v, whose heads
neighbouring ones of q share. Lengths are (B, 1, 1, 1), or (B + 1, 1, 1, 1) where each batch's is added to those before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowdnn.enums import DataType
from lowdnn.ops.norm import check_dims
from lowdnn.ops.tensor import Tensor
from lowdnn.status import BadParamError, ShapeMismatchError, UnsupportedDataTypeError, UnsupportedShapeError

INDEX_TYPES = (DataType.INT32, DataType.INT64)
#: A score from here down has no weight in fp32, whatever the other scores of its row.
LOWEST = -1e9


@dataclass(frozen=True)
class Lengths:
    """How many queries and keys each batch has, in either form; None: all."""

    seq_len_q: Tensor | None = None
    seq_len_kv: Tensor | None = None
    cu_seq_len_q: Tensor | None = None
    cu_seq_len_kv: Tensor | None = None


def check_heads(where: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises UnsupportedShapeError and ShapeMismatchError."""
    for port, tensor in {"q": q, "k": k, "v": v}.items():
        if tensor.rank != 4:
            expected = "[batch, heads, length, size]"
            raise UnsupportedShapeError.at(f"{where}.{port}.dims", expected=expected, got=list(tensor.dims))
    batch, heads, _, size = q.dims
    if (k.dims[0], k.dims[3]) != (batch, size):
        raise ShapeMismatchError.at(f"{where}.k.dims", expected=f"[{batch}, H_k, S_kv, {size}]", got=list(k.dims))
    if (v.dims[0], v.dims[2]) != (batch, k.dims[2]):
        expected = f"[{batch}, H_v, {k.dims[2]}, D_v]"
        raise ShapeMismatchError.at(f"{where}.v.dims", expected=expected, got=list(v.dims))
    for port, tensor in {"k": k, "v": v}.items():
        if not tensor.dims[1] or heads % tensor.dims[1]:
            expected = f"a divisor of q's {heads} heads"
            raise ShapeMismatchError.at(f"{where}.{port}.dims[1]", expected=expected, got=tensor.dims[1])


def check_lengths(where: str, batch: int, lengths: Lengths, *, or_one: bool = False) -> None:
    """Raises ShapeMismatchError, UnsupportedDataTypeError, and BadParamError for two forms of the same lengths.

    or_one: a single length, (1, 1, 1, 1), may be that of every batch.
    """
    single = {"seq_len_q": lengths.seq_len_q, "seq_len_kv": lengths.seq_len_kv}
    cumulative = {"cu_seq_len_q": lengths.cu_seq_len_q, "cu_seq_len_kv": lengths.cu_seq_len_kv}
    shared = {port: tensor for port, tensor in single.items() if or_one and tensor and tensor.dims == (1, 1, 1, 1)}
    check_dims(where, (batch, 1, 1, 1), {port: tensor for port, tensor in single.items() if port not in shared})
    check_dims(where, (batch + 1, 1, 1, 1), cumulative)
    check_index_types(where, single | cumulative)
    for port, tensor in single.items():
        if tensor is not None and cumulative[f"cu_{port}"] is not None:
            raise BadParamError.at(f"{where}.{port}", expected=f"none beside cu_{port}", got=tensor.label)


def check_index_types(where: str, tensors: Mapping[str, Tensor | None]) -> None:
    """Raises UnsupportedDataTypeError for a tensor, of those that there are, of another type than INDEX_TYPES."""
    for port, tensor in tensors.items():
        if tensor is not None and tensor.data_type not in INDEX_TYPES:
            expected = " or ".join(kind.name for kind in INDEX_TYPES)
            got = tensor.data_type.name
            raise UnsupportedDataTypeError.at(f"{where}.{port}.data_type", expected=expected, got=got)
