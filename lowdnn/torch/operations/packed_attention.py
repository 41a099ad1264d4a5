"""Attention of sequences that are packed one behind the other, and its gradients: torch's flash entries.

q, k, v and o are (rows of all sequences, heads, size); cu_q and cu_k are the first row of each sequence, and the end of
the last. The log-sum-exp is (heads, rows of all queries). Causal masks and windows count from the last query and key.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lowdnn.enums import PointwiseMode
from lowdnn.frontend.enums import diagonal_alignment
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.attention import AttentionGraph, Rows, flash_state, scale_of
from lowdnn.torch.sketch import Declined, Dims, Sketch, name_of, strides_like

_Q, _K, _V, _CU_Q, _CU_K, _USED = range(6)
_LENGTHS_Q, _LENGTHS_K, _O, _STATS, _DO = range(5, 10)
_NARROW = (torch.float16, torch.bfloat16)
#: The longest sequences are rounded up to a multiple of it, so that fewer lengths need plans of their own.
_ROWS = 128


class Mask(NamedTuple):
    """The longest sequences, and the numbers of the scores and their mask. rest: the reason to decline, or ""."""

    longest_q: int
    longest_k: int
    causal: bool
    scale: float | None
    left: int | None
    right: int | None
    rest: str

    def options(self) -> dict[str, Any]:
        """The mask as arguments of pygraph's methods."""
        found: dict[str, Any] = {"use_causal_mask_bottom_right": self.causal}
        if self.left is not None or self.right is not None:
            found |= {"diagonal_alignment": diagonal_alignment.BOTTOM_RIGHT}
        if self.left is not None:
            found["diagonal_band_left_bound"] = self.left + 1
        if self.right is not None and not self.causal:
            found["diagonal_band_right_bound"] = self.right
        return found


def read(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, seqused_k: Any = None, alibi_slopes: Any = None, block_table: Any = None,
    num_splits: int | None = None,
) -> Arguments:  # fmt: skip
    rest = {
        "dropout, whose random numbers are torch's own": dropout_p,
        "a mask to debug with": return_debug_mask,
        "slopes of the caller's own": alibi_slopes is not None,
        "pages of keys": block_table is not None,
    }
    mask = _mask(max_q, max_k, is_causal, scale, window_size_left, window_size_right, rest)
    return (q, k, v, optional(cu_q), optional(cu_k), optional(seqused_k)), (mask,)


def read_backward(
    do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, rng_state: Any, unused: Any, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Arguments:  # fmt: skip
    rest = {"dropout, whose random numbers are torch's own": dropout_p}
    mask = _mask(max_q, max_k, is_causal, scale, window_size_left, window_size_right, rest)
    lengths = (None, None) if cu_q is None or cu_k is None else (cu_q.diff(), cu_k.diff())
    return (q, k, v, optional(cu_q), optional(cu_k), *map(optional, lengths), o, stats, do), (mask,)


def forward(sketch: Sketch, mask: Mask) -> Result:
    """(o, log-sum-exp, random state, unused, no mask to debug with)"""
    q, _, v = sketch.tensors[:3]
    packed = _Packed(sketch, mask)
    o = sketch.allocate((*q.shape[:2], v.shape[2]), q.dtype)
    by_rows = sketch.allocate(q.shape[:2], torch.float32)
    graph = packed.graph
    lengths: dict[str, Any] = {"cu_seq_len_q": packed.cu_q, "cu_seq_len_kv": packed.cu_k}
    if sketch.tensors[_USED].shape is not None:
        lengths["seq_len_kv"] = graph.at(_USED, *packed.lengths)
        del lengths["cu_seq_len_kv"]
    made, log_sum_exp = graph.pygraph.sdpa(
        packed.rows(_Q), packed.rows(_K), packed.rows(_V), attn_scale=scale_of(q, mask.scale), use_padding_mask=True,
        generate_stats=True, **lengths, **mask.options(),
    )  # fmt: skip
    packed.bind(made, o, _Q)
    assert log_sum_exp is not None
    graph.bind(log_sum_exp, by_rows, *packed.stats(q.shape[1], 1))
    sketch.add_step(graph.built(), graph.places)
    stats = _by_heads(sketch, by_rows)
    return (o, stats, *flash_state(sketch, q))


def backward(sketch: Sketch, mask: Mask) -> Result:
    """(dq, dk, dv)"""
    q, k, v = sketch.tensors[:3]
    packed = _Packed(sketch, mask)
    places = [sketch.allocate(own.shape, own.dtype, strides_like(own)) for own in (q, k, v)]
    graph = packed.graph
    gradients = graph.pygraph.sdpa_backward(
        packed.rows(_Q), packed.rows(_K), packed.rows(_V), packed.rows(_O), packed.rows(_DO),
        graph.at(_STATS, *packed.stats(1, q.shape[0])), attn_scale=scale_of(q, mask.scale),
        use_padding_mask=True, seq_len_q=graph.at(_LENGTHS_Q, *packed.lengths),
        seq_len_kv=graph.at(_LENGTHS_K, *packed.lengths),
        use_deterministic_algorithm=sketch.is_deterministic, **mask.options(),
    )  # fmt: skip
    for tensor, place, like in zip(gradients, places, (_Q, _K, _V), strict=True):
        packed.bind(tensor, place, like)
    sketch.add_step(graph.built(), graph.places)
    return tuple(places)


def _by_heads(sketch: Sketch, by_rows: int) -> int:
    """Statistics as torch has them. Kernels store packed ones by rows."""
    rows, heads = sketch.shape_at(by_rows)
    place = sketch.allocate((heads, rows), torch.float32)
    sketch.pointwise(PointwiseMode.IDENTITY, sketch.at(place), sketch.at(by_rows, (heads, rows), (1, heads)))
    sketch.end_step()
    return place


class _Packed:
    """The tensors of one call. Declines others than packed sequences of narrow types."""

    def __init__(self, sketch: Sketch, mask: Mask) -> None:
        q, k, v, cu_q, cu_k, *_ = sketch.tensors
        if cu_q.shape is None or cu_k.shape is None:
            raise Declined("sequences that are not packed")
        for tensor in (q, k, v):
            if tensor.dtype not in _NARROW or tensor.dtype != q.dtype or len(tensor.shape) != 3:
                raise Declined(f"{name_of(tensor.dtype)} of dims {list(tensor.shape)}")
        if mask.rest:
            raise Declined(mask.rest)
        if cu_q.dtype != torch.int32 or cu_k.dtype != torch.int32:
            raise Declined(f"offsets of {name_of(cu_q.dtype)}")
        self._sketch, self._batch = sketch, cu_q.shape[0] - 1
        self._longest = {_Q: _rounded(mask.longest_q), _K: _rounded(mask.longest_k)}
        self.graph = AttentionGraph(sketch)
        ends = (self._batch + 1, 1, 1, 1), (1, 1, 1, 1)
        self.cu_q = self.graph.at(_CU_Q, *ends)
        self.cu_k = self.graph.at(_CU_K, *ends)
        self.lengths = (self._batch, 1, 1, 1), (1, 1, 1, 1)

    def stats(self, row: int, head: int) -> tuple[Dims, Dims, Rows]:
        """The layout of statistics with these strides from row to row, and from head to head."""
        heads, longest = self._sketch.tensors[_Q].shape[1], self._longest[_Q]
        return (self._batch, heads, longest, 1), (longest * row, head, row, 1), Rows(self.cu_q, row)

    def rows(self, place: int) -> Any:
        return self.graph.at(place, *self._layout(place, place))

    def bind(self, tensor: Any, place: int, like: int) -> None:
        """Makes a tensor an output at the place, whose sequences are those of q or of k and v."""
        self.graph.bind(tensor, place, *self._layout(place, like))

    def _layout(self, place: int, like: int) -> tuple[Dims, Dims, Rows]:
        is_of_keys = like in (_K, _V)
        longest = self._longest[_K if is_of_keys else _Q]
        shape = self._sketch.shape_at(place)
        row, head, element = self._sketch.strides_at(place)
        dims = (self._batch, shape[1], longest, shape[2])
        return dims, (longest * row, head, row, element), Rows(self.cu_k if is_of_keys else self.cu_q, row)


def _mask(
    max_q: int, max_k: int, causal: bool, scale: float | None, left: int | None, right: int | None, rest: dict[str, Any]
) -> Mask:
    left, right = (None if bound is None or bound < 0 else bound for bound in (left, right))
    reason = next((reason for reason, there in rest.items() if there), "")
    return Mask(max_q, max_k, causal, scale, left, right, reason)


def _rounded(longest: int) -> int:
    return -(-longest // _ROWS) * _ROWS


OVERLOADS = (
    Overload("_flash_attention_forward", "attention", read, forward, kind="attention"),
    Overload("_flash_attention_backward", "attention", read_backward, backward, kind="attention"),
)
