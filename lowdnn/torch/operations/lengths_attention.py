"""Entries of attention that take sequences both packed and in a batch: those of the memory-efficient kernels, with rows
in front of heads, and those of cuDNN's.

Without cumulated lengths they compute what the entries in ``attention`` do, with them what ``packed_attention`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from lowdnn.torch.operation import Arguments, Constant, Overload, Result, optional
from lowdnn.torch.operations import attention, packed_attention
from lowdnn.torch.operations.attention import (
    CUDNN,
    EFFICIENT_ROWS_BACKWARD,
    EFFICIENT_ROWS_FORWARD,
    Rows,
    efficient_rows,
    random_state,
)
from lowdnn.torch.operations.packed_attention import (
    DROPOUT,
    Mask,
    PackedForm,
    PackedGraph,
    packed_gradient,
    reason_of,
    stats_by_rows,
)
from lowdnn.torch.sketch import Dims, Sketch

_Q = 0
#: ``custom_mask_type``: from which row a causal mask's diagonal counts.
_MASKS = ("", "first", "last")
_WINDOW = "a window of the caller's"


def read_efficient(
    q: Any, k: Any, v: Any, bias: Any, cu_q: Any, cu_k: Any, max_q: int | None, max_k: int | None, dropout_p: float,
    mask_type: int, compute_log_sumexp: bool = False, *, scale: float | None = None, seqlen_k: Any = None,
    window_size: int | None = None,
) -> Arguments:  # fmt: skip
    if cu_q is None and seqlen_k is None and window_size is None:
        return (q, k, v, optional(bias)), (dropout_p, bool(mask_type), scale, compute_log_sumexp, False)
    rest = {
        DROPOUT: dropout_p, "a bias of packed sequences": bias is not None, _WINDOW: window_size is not None
    }  # fmt: skip
    mask = Mask(
        max_q or 0, max_k or 0, _MASKS[mask_type], scale, rest=reason_of(rest), has_stats=compute_log_sumexp
    )  # fmt: skip
    return (q, k, v, optional(cu_q), optional(cu_k), optional(seqlen_k)), (mask,)


def read_efficient_backward(
    do: Any, q: Any, k: Any, v: Any, bias: Any, o: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, stats: Any,
    dropout_p: float, seed: Any, offset: Any, mask_type: int, bias_requires_grad: bool, *, scale: float | None = None,
    num_splits_key: int | None = None, window_size: int | None = None, shared_storage_dqdkdv: bool = False,
) -> Arguments:  # fmt: skip
    rest = {
        DROPOUT: dropout_p, "a bias of packed sequences": bias is not None, _WINDOW: window_size is not None,
        "gradients that share one storage": shared_storage_dqdkdv,
    }  # fmt: skip
    if cu_q is None and window_size is None and not shared_storage_dqdkdv:
        asked = (True, True, True, bias is not None and bias_requires_grad)
        return (q, k, v, optional(bias), o, stats, do), (dropout_p, bool(mask_type), scale, asked)
    mask = Mask(max_q, max_k, _MASKS[mask_type], scale, rest=reason_of(rest))
    return packed_gradient(do, q, k, v, o, stats, cu_q, cu_k), (mask,)


def read_cudnn(
    q: Any, k: Any, v: Any, bias: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    if cu_q is None:
        return attention.read_efficient(
            q, k, v, bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, scale=scale
        )
    rest = {
        DROPOUT: dropout_p, "a bias of packed sequences": bias is not None, "a mask to debug with": return_debug_mask
    }  # fmt: skip
    mask = Mask(
        max_q, max_k, _MASKS[is_causal], scale, rest=reason_of(rest), has_stats=compute_log_sumexp
    )  # fmt: skip
    return (q, k, v, optional(cu_q), optional(cu_k), optional(None)), (mask,)


def read_cudnn_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, seed: Any, offset: Any, bias: Any, cu_q: Any, cu_k: Any,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, *, scale: float | None = None,
) -> Arguments:  # fmt: skip
    if cu_q is None:
        return attention.read_cudnn_backward(
            do, q, k, v, o, stats, seed, offset, bias, cu_q, cu_k, max_q, max_k, dropout_p, is_causal, scale=scale
        )
    rest = {DROPOUT: dropout_p, "a bias of packed sequences": bias is not None}
    mask = Mask(max_q, max_k, _MASKS[is_causal], scale, rest=reason_of(rest))
    return packed_gradient(do, q, k, v, o, stats, cu_q, cu_k), (mask,)


def efficient_backward_native(native: Callable[..., Any], keys: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's kernel expects infinite statistics behind each sequence's last query, which lowdnn does not write."""
    q, cu_q, stats = args[1], args[6], args[10]
    queries = stats.new_tensor([q.shape[1]]) if cu_q is None else cu_q.diff()
    behind = torch.arange(stats.shape[-1], device=stats.device) >= queries[:, None]
    stats.masked_fill_(behind[:, None], inf)
    return native(keys, *args, **kwargs)


def _either(in_batch: Callable[..., Result], packed: Callable[..., Result]) -> Callable[..., Result]:
    def sketched(sketch: Sketch, *numbers: Any) -> Result:
        return (packed if isinstance(numbers[0], Mask) else in_batch)(sketch, *numbers)

    return sketched


def _padded_stats(packed: PackedGraph, log_sum_exp: Any) -> int:
    """(sequences, heads, rows for the longest of them)"""
    dims = packed.padded
    place = packed.sketch.allocate((*dims[:2], dims[2] if packed.mask.has_stats else 0), torch.float32)
    if log_sum_exp is not None:
        packed.graph.bind(log_sum_exp, place, *_padded(packed)[:2])
    packed.sketch.add_step(packed.graph.built(), packed.graph.places)
    return place


def _padded(packed: PackedGraph) -> tuple[Dims, Dims, Rows | None]:
    batch, heads, rows = packed.padded
    return (batch, heads, rows, 1), (heads * rows, rows, 1, 1), None


def _efficient_rest(sketch: Sketch, mask: Mask) -> tuple[Any, ...]:
    return *random_state(sketch), Constant(mask.longest_q), Constant(mask.longest_k)


def _by_rows(packed: PackedGraph) -> tuple[Dims, Dims, Rows | None]:
    return packed.stats(packed.sketch.tensors[_Q].shape[-2], 1)


def _cudnn_rest(sketch: Sketch, mask: Mask) -> tuple[Any, ...]:
    return None, None, Constant(mask.longest_q), Constant(mask.longest_k), *random_state(sketch), None


_EFFICIENT = PackedForm(_padded_stats, _padded, _efficient_rest, rows=efficient_rows(1))
_CUDNN = PackedForm(stats_by_rows, _by_rows, _cudnn_rest, rows=128)

OVERLOADS = (
    Overload(
        "_efficient_attention_forward", "attention", read_efficient,
        _either(attention.forward(EFFICIENT_ROWS_FORWARD), packed_attention.forward(_EFFICIENT)), kind="attention",
    ),
    Overload(
        "_efficient_attention_backward", "attention", read_efficient_backward,
        _either(attention.backward(EFFICIENT_ROWS_BACKWARD), packed_attention.backward(_EFFICIENT, None)),
        kind="attention", fallback=efficient_backward_native,
    ),
    Overload(
        "_cudnn_attention_forward", "attention", read_cudnn,
        _either(attention.forward(CUDNN), packed_attention.forward(_CUDNN)), kind="attention",
    ),
    Overload(
        "_cudnn_attention_backward", "attention", read_cudnn_backward,
        _either(attention.backward(CUDNN), packed_attention.backward(_CUDNN)), kind="attention",
    ),
)  # fmt: skip
