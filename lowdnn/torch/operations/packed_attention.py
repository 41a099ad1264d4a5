"""Attention of sequences that are packed one behind the other, and its gradients: torch's flash entries, and what the
entries of other kernels share with them.

q, k, v and o are (rows of all sequences, heads, size), perhaps behind an axis of extent 1; cu_q and cu_k are the first
row of each sequence, and the end of the last. Each entry has a log-sum-exp of its own form. Windows count from the last
query and key, and so do causal masks, unless they say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
DROPOUT = "dropout, whose random numbers are torch's own"
#: The extents that q, k and v may have in front of rows, heads and size.
_NONE = ((), (1,))


class Mask(NamedTuple):
    """The longest sequences, and the numbers of the scores and their mask.

    causal: "" for none; otherwise from which row its diagonal counts, "first" or "last".
    left, right: a window's bounds, None without one.  rest: the reason to decline, or "".
    """

    longest_q: int
    longest_k: int
    causal: str
    scale: float | None
    left: int | None = None
    right: int | None = None
    rest: str = ""
    has_stats: bool = True

    def options(self) -> dict[str, Any]:
        """The mask as arguments of pygraph's methods."""
        found: dict[str, Any] = {
            "use_causal_mask": self.causal == "first", "use_causal_mask_bottom_right": self.causal == "last"
        }  # fmt: skip
        if self.left is not None or self.right is not None:
            found |= {"diagonal_alignment": diagonal_alignment.BOTTOM_RIGHT}
        if self.left is not None:
            found["diagonal_band_left_bound"] = self.left + 1
        if self.right is not None and not self.causal:
            found["diagonal_band_right_bound"] = self.right
        return found


@dataclass(frozen=True)
class PackedForm:
    """The results of one entry.

    stats: adds the place of the log-sum-exp and binds it, or gives an empty one.
    stats_of: the layout in which the gradients read it.  rest: the results behind it.
    rows: the longest sequences are rounded up to a multiple of it, so that fewer lengths need plans of their own.
    """

    stats: Callable[[PackedGraph, Any], int]
    stats_of: Callable[[PackedGraph], tuple[Dims, Dims, Rows | None]]
    rest: Callable[[Sketch, Mask], tuple[Any, ...]]
    rows: int


def read(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    return_debug_mask: bool, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None, seqused_k: Any = None, alibi_slopes: Any = None, block_table: Any = None,
    num_splits: int | None = None,
) -> Arguments:  # fmt: skip
    rest = {
        DROPOUT: dropout_p,
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
    mask = _mask(max_q, max_k, is_causal, scale, window_size_left, window_size_right, {DROPOUT: dropout_p})
    return packed_gradient(do, q, k, v, o, stats, cu_q, cu_k), (mask,)


def packed_gradient(do: Any, q: Any, k: Any, v: Any, o: Any, stats: Any, cu_q: Any, cu_k: Any) -> tuple[Any, ...]:
    """The tensors that ``backward`` reads."""
    lengths = (None, None) if cu_q is None or cu_k is None else (cu_q.diff(), cu_k.diff())
    return (q, k, v, optional(cu_q), optional(cu_k), *map(optional, lengths), o, stats, do)


def forward(form: PackedForm) -> Callable[..., Result]:
    """(o, log-sum-exp, and the entry's own results)"""

    def sketched(sketch: Sketch, mask: Mask) -> Result:
        q, _, v = sketch.tensors[:3]
        packed = PackedGraph(sketch, form, mask)
        o = sketch.allocate((*q.shape[:-1], v.shape[-1]), q.dtype)
        graph = packed.graph
        lengths: dict[str, Any] = {"cu_seq_len_q": packed.cu_q, "cu_seq_len_kv": packed.cu_k}
        if sketch.tensors[_USED].shape is not None:
            lengths["seq_len_kv"] = graph.at(_USED, *packed.lengths)
            del lengths["cu_seq_len_kv"]
        made, log_sum_exp = graph.pygraph.sdpa(
            packed.rows(_Q), packed.rows(_K), packed.rows(_V), attn_scale=scale_of(q, mask.scale),
            use_padding_mask=True, generate_stats=mask.has_stats, **lengths, **mask.options(),
        )  # fmt: skip
        packed.bind(made, o, _Q)
        stats = form.stats(packed, log_sum_exp)
        return (o, stats, *form.rest(sketch, mask))

    return sketched


def backward(form: PackedForm, *behind: None) -> Callable[..., Result]:
    """(dq, dk, dv), and what the entry has behind them"""

    def sketched(sketch: Sketch, mask: Mask) -> Result:
        q, k, v = sketch.tensors[:3]
        packed = PackedGraph(sketch, form, mask)
        places = [sketch.allocate(own.shape, own.dtype, strides_like(own)) for own in (q, k, v)]
        graph = packed.graph
        gradients = graph.pygraph.sdpa_backward(
            packed.rows(_Q), packed.rows(_K), packed.rows(_V), packed.rows(_O), packed.rows(_DO),
            graph.at(_STATS, *form.stats_of(packed)),
            attn_scale=scale_of(q, mask.scale), use_padding_mask=True,
            seq_len_q=graph.at(_LENGTHS_Q, *packed.lengths), seq_len_kv=graph.at(_LENGTHS_K, *packed.lengths),
            use_deterministic_algorithm=sketch.is_deterministic, **mask.options(),
        )  # fmt: skip
        for tensor, place, like in zip(gradients, places, (_Q, _K, _V), strict=True):
            packed.bind(tensor, place, like)
        sketch.add_step(graph.built(), graph.places)
        return (*places, *behind)

    return sketched


def stats_by_rows(packed: PackedGraph, log_sum_exp: Any) -> int:
    """Adds the step of a log-sum-exp as kernels store packed ones: (rows of all queries, heads, 1)."""
    rows, heads = packed.sketch.tensors[_Q].shape[-3:-1]
    place = packed.sketch.allocate((rows, heads, 1) if packed.mask.has_stats else (0,), torch.float32)
    if log_sum_exp is not None:
        packed.graph.bind(log_sum_exp, place, *packed.stats(heads, 1))
    packed.sketch.add_step(packed.graph.built(), packed.graph.places)
    return place


def _stats_by_heads(packed: PackedGraph, log_sum_exp: Any) -> int:
    """(heads, rows of all queries)"""
    sketch, by_rows = packed.sketch, stats_by_rows(packed, log_sum_exp)
    rows, heads, _ = sketch.shape_at(by_rows)
    place = sketch.allocate((heads, rows), torch.float32)
    sketch.pointwise(PointwiseMode.IDENTITY, sketch.at(place), sketch.at(by_rows, (heads, rows), (1, heads)))
    sketch.end_step()
    return place


class PackedGraph:
    """The graph of one call and its tensors. Declines others than packed sequences of narrow types."""

    def __init__(self, sketch: Sketch, form: PackedForm, mask: Mask) -> None:
        q, k, v, cu_q, cu_k, *_ = sketch.tensors
        if cu_q.shape is None or cu_k.shape is None:
            raise Declined("sequences that are not packed")
        for tensor in (q, k, v):
            leading = tensor.shape[:-3]
            if tensor.dtype not in _NARROW or tensor.dtype != q.dtype or len(tensor.shape) < 3 or leading not in _NONE:
                raise Declined(f"{name_of(tensor.dtype)} of dims {list(tensor.shape)}")
        if mask.rest:
            raise Declined(mask.rest)
        if cu_q.dtype != torch.int32 or cu_k.dtype != torch.int32:
            raise Declined(f"offsets of {name_of(cu_q.dtype)}")
        self.sketch, self.mask, self.batch = sketch, mask, cu_q.shape[0] - 1
        self._longest = {
            place: -(-longest // form.rows) * form.rows
            for place, longest in ((_Q, mask.longest_q), (_K, mask.longest_k))
        }
        self.graph = AttentionGraph(sketch)
        ends = (self.batch + 1, 1, 1, 1), (1, 1, 1, 1)
        self.cu_q = self.graph.at(_CU_Q, *ends)
        self.cu_k = self.graph.at(_CU_K, *ends)
        self.lengths = (self.batch, 1, 1, 1), (1, 1, 1, 1)

    @property
    def padded(self) -> Dims:
        """Sequences, heads and rows of a log-sum-exp with room for the longest of them."""
        return self.batch, self.sketch.tensors[_Q].shape[-2], self._longest[_Q]

    def stats(self, row: int, head: int) -> tuple[Dims, Dims, Rows]:
        """The layout of statistics with these strides from row to row, and from head to head."""
        batch, heads, longest = self.padded
        return (batch, heads, longest, 1), (longest * row, head, row, 1), Rows(self.cu_q, row)

    def rows(self, place: int) -> Any:
        return self.graph.at(place, *self._layout(place, place))

    def bind(self, tensor: Any, place: int, like: int) -> None:
        """Makes a tensor an output at the place, whose sequences are those of q or of k and v."""
        self.graph.bind(tensor, place, *self._layout(place, like))

    def _layout(self, place: int, like: int) -> tuple[Dims, Dims, Rows]:
        is_of_keys = like in (_K, _V)
        longest = self._longest[_K if is_of_keys else _Q]
        heads, size = self.sketch.shape_at(place)[-2:]
        row, head, element = self.sketch.strides_at(place)[-3:]
        dims = (self.batch, heads, longest, size)
        return dims, (longest * row, head, row, element), Rows(self.cu_k if is_of_keys else self.cu_q, row)


def _mask(
    max_q: int, max_k: int, causal: bool, scale: float | None, left: int | None, right: int | None, rest: dict[str, Any]
) -> Mask:
    left, right = (None if bound is None or bound < 0 else bound for bound in (left, right))
    return Mask(max_q, max_k, "last" if causal else "", scale, left, right, reason_of(rest))


def reason_of(rest: dict[str, Any]) -> str:
    """The first reason that is there; "" for none."""
    return next((reason for reason, is_there in rest.items() if is_there), "")


def _flash_rest(sketch: Sketch, mask: Mask) -> tuple[Any, ...]:
    """A random state, unused; no mask to debug with."""
    return flash_state(sketch, sketch.tensors[_Q])


def _by_heads(packed: PackedGraph) -> tuple[Dims, Dims, Rows | None]:
    return packed.stats(1, packed.sketch.tensors[_Q].shape[-3])


_FLASH = PackedForm(_stats_by_heads, _by_heads, _flash_rest, rows=128)

OVERLOADS = (
    Overload("_flash_attention_forward", "attention", read, forward(_FLASH), kind="attention"),
    Overload("_flash_attention_backward", "attention", read_backward, backward(_FLASH), kind="attention"),
)
