"""Attention with score modifiers, masks of blocks, lengths, pages and sinks: ``ops.attention`` has the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log
from typing import Any, NamedTuple

import torch

from lowdnn.frontend.attention_arguments import Band, Sizes
from lowdnn.frontend.attention_nodes import AttentionWriter
from lowdnn.frontend.enums import diagonal_alignment
from lowdnn.status import BadParamError, NotSupportedError
from lowdnn.torch.library.definition import Definition, check_floats, check_shape, wide_type
from lowdnn.torch.operation import Arguments, Overload, Result, optional
from lowdnn.torch.operations.attention import AttentionGraph
from lowdnn.torch.sketch import Declined, Sketch, name_of, strides_like

_WHERE = "attention"
_NARROW = (torch.float16, torch.bfloat16)
#: Queries, and keys, of a block of the block mask.
_BLOCK = 128
_BITS = 8
_Q, _K, _V, _BIAS, _BLOCKS, _LENGTHS_Q, _LENGTHS_K, _PAGES, _SINK, _O, _STATS, _DO = range(12)


class Scores(NamedTuple):
    """The numbers of a call: scale, causal mask, bounds of the window (-1: none), soft cap (0: none), linear biases."""

    scale: float
    causal: bool
    left: int
    right: int
    softcap: float
    alibi: bool

    def options(self) -> dict[str, Any]:
        """The numbers as arguments of pygraph's methods."""
        found: dict[str, Any] = {"use_alibi_mask": self.alibi}
        if self.causal or self.left >= 0 or self.right >= 0:
            found["diagonal_alignment"] = diagonal_alignment.BOTTOM_RIGHT
        if self.causal or self.right >= 0:
            found["diagonal_band_right_bound"] = 0 if self.causal else self.right
        if self.left >= 0:
            found["diagonal_band_left_bound"] = self.left + 1
        return found


def attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = False, window: Sequence[int] = (-1, -1),
    softcap: float = 0.0, alibi: bool = False, bias: Any = None, block_mask: Any = None, lengths_q: Any = None,
    lengths_k: Any = None, pages: Any = None, sink: Any = None,
) -> Any:  # fmt: skip
    """softmax(masked(modified(scale * q k^T + bias))) v: (batch, heads, queries, size of v) in q's type and order.

    q (batch, heads, queries, size), k and v (batch, heads of keys, keys, size), whose heads divide q's; fp16 or bf16.
    scale: 1 / sqrt(size) by default.  softcap: scores become softcap * tanh(scores / softcap); 0 for none.
    alibi: adds slope * (key - query), with the slopes of Press et al., "Train short, test long".
    bias: fp16 or bf16 (batch or 1, heads or 1, queries, keys), without gradient.
    causal: a query sees the keys up to its place.  window: how many before and behind it, -1 for all. Places count from
    the last query and the last key on.
    block_mask: UINT8 (batch, heads, ceil(queries / 128), ceil(ceil(keys / 128) / 8)); bit t % 8 of byte t / 8 says
    whether 128 queries see the t-th 128 keys.
    lengths_q, lengths_k: INT32 (batch,), both or neither; what lies behind does not exist, and such queries give 0.
    pages: INT32 (batch, pages of a sequence); k and v are then (pages, heads of keys, rows of a page, size), a cache
    with a power of two of rows in a page, and need lengths.
    sink: fp32 (heads,), one more logit of each query, without a value.
    q, k, v and sink have gradients, except with a block mask or pages. Raises BadParamError for other shapes and types
    and for contradicting arguments.
    """
    check_floats(_WHERE, ("bias", "sink"), q=q, k=k, v=v, bias=bias, sink=sink)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_shape(_WHERE, name, tensor, (None,) * 4, "[batch, heads, rows, size]")
    batch, heads = q.shape[:2]
    for name, tensor in (("lengths_q", lengths_q), ("lengths_k", lengths_k)):
        check_shape(_WHERE, name, tensor, (batch,), f"[{batch}], one for each sequence")
        _check_type(name, tensor, torch.int32)
    check_shape(_WHERE, "pages", pages, (batch, None), f"[{batch}, pages of a sequence]")
    _check_type("pages", pages, torch.int32)
    check_shape(_WHERE, "sink", sink, (heads,), f"[{heads}], one for each head of q")
    _check_type("sink", sink, torch.float32)
    _check_type("block_mask", block_mask, torch.uint8)
    if (lengths_q is None) != (lengths_k is None) or (pages is not None and lengths_k is None):
        expected = "lengths of queries and of keys, which pages need, or neither"
        raise BadParamError.at(f"torch.ops.{_WHERE}.lengths_k", expected=expected, got="one of them, or none")
    left, right = window
    chosen = q.shape[3] ** -0.5 if scale is None else scale
    o, _ = torch.ops.lowdnn.attention(
        q, k, v, bias, block_mask, lengths_q, lengths_k, pages, sink, chosen, causal, left, right, softcap, alibi
    )
    return o


def _check_type(name: str, tensor: Any, dtype: Any) -> None:
    if tensor is not None and tensor.dtype != dtype:
        raise BadParamError.at(f"torch.ops.{_WHERE}.{name}", expected=f"a tensor of {name_of(dtype)}", got=tensor.dtype)


def _read(q: Any, k: Any, v: Any, *rest: Any) -> Arguments:
    return (q, k, v, *map(optional, rest[:6])), (Scores(*rest[6:]),)


def _read_backward(do: Any, o: Any, stats: Any, q: Any, k: Any, v: Any, *rest: Any) -> Arguments:
    tensors, numbers = _read(q, k, v, *rest)
    return (*tensors, o, stats, do), numbers


def _sketched(sketch: Sketch, scores: Scores) -> Result:
    """(o, log-sum-exp)"""
    q, _, v, *_ = sketch.tensors
    own = _Inputs(sketch, scores)
    shape = (*q.shape[:3], v.shape[3])
    o = sketch.allocate(shape, q.dtype, strides_like(q) if v.shape[3] == q.shape[3] else None)
    stats = sketch.allocate(q.shape[:3], torch.float32)
    graph = own.graph
    options = own.options() | own.forward_options()
    made, log_sum_exp = graph.pygraph.sdpa(*own.heads, generate_stats=True, **options)
    if log_sum_exp is None:
        raise Declined("no statistics")
    graph.bind(made, o)
    graph.bind(log_sum_exp, stats, *own.stats)
    sketch.add_step(graph.built(), graph.places)
    return o, stats


def _sketched_backward(sketch: Sketch, scores: Scores) -> Result:
    """(dq, dk, dv, dsink)"""
    own = _Inputs(sketch, scores)
    if sketch.tensors[_BLOCKS].shape is not None or sketch.tensors[_PAGES].shape is not None:
        raise Declined("gradients with a block mask or pages")
    graph, sink = own.graph, sketch.tensors[_SINK]
    places = [sketch.allocate(like.shape, like.dtype, strides_like(like)) for like in sketch.tensors[:_BIAS]]
    dsink = sketch.allocate((0,) if sink.shape is None else sink.shape, torch.float32)
    options = own.options()
    if sink.shape is not None:
        options["dSink_token"] = target = graph.pygraph.tensor_like(options["sink_token"])
    gradients = graph.pygraph.sdpa_backward(
        *own.heads, graph.at(_O), graph.at(_DO), graph.at(_STATS, *own.stats),
        use_deterministic_algorithm=sketch.is_deterministic, **options,
    )  # fmt: skip
    for tensor, place in zip(gradients, places, strict=True):
        graph.bind(tensor, place)
    if sink.shape is not None:
        graph.bind(target, dsink, *own.sink_layout)
    sketch.add_step(graph.built(), graph.places)
    return *places, dsink


class _Inputs:
    """The graph's inputs of a call. Declines other types than fp16 and bf16."""

    def __init__(self, sketch: Sketch, scores: Scores) -> None:
        q, k, v = sketch.tensors[:_BIAS]
        for tensor in (q, k, v):
            if tensor.dtype not in _NARROW or tensor.dtype != q.dtype:
                raise Declined(f"{name_of(tensor.dtype)}, where float16 or bfloat16 is expected")
        self._sketch, self._scores = sketch, scores
        self.graph = AttentionGraph(sketch)
        self.heads = self.graph.at(_Q), self.graph.at(_K), self.graph.at(_V)
        batch, heads, queries, _ = q.shape
        keys = k.shape[2] * (sketch.shape_at(_PAGES)[1] if self._has(_PAGES) else 1)
        self._sizes = Sizes((batch, heads, queries, keys))
        self.stats = (batch, heads, queries, 1), (heads * queries, queries, 1, 1)
        self.sink_layout = (1, heads, 1, 1), (heads, 1, 1, 1)

    def options(self) -> dict[str, Any]:
        """Arguments of both of pygraph's methods."""
        graph, scores = self.graph, self._scores
        found: dict[str, Any] = {"attn_scale": scores.scale, "bias": graph.bias()}
        lengths = [self._column(place) for place in (_LENGTHS_Q, _LENGTHS_K) if self._has(place)]
        if lengths:
            found["seq_len_q"], found["seq_len_kv"] = lengths
        if self._has(_SINK):
            found["sink_token"] = graph.at(_SINK, *self.sink_layout)
        if scores.softcap:
            return found | {"score_mod": self._modifier(lengths)}
        return found | {"use_padding_mask": bool(lengths), **scores.options()}

    def forward_options(self) -> dict[str, Any]:
        """Arguments of attention alone."""
        graph, found = self.graph, dict[str, Any]()
        if self._has(_BLOCKS):
            found["block_mask"] = graph.at(_BLOCKS)
        if self._has(_PAGES):
            batch, count = self._sketch.shape_at(_PAGES)
            row, step = self._sketch.strides_at(_PAGES)
            for name in ("k", "v"):
                table = graph.at(_PAGES, (batch, 1, count, 1), (row, row, step, 1))
                found[f"paged_attention_{name}_table"] = table
        return found

    def _modifier(self, lengths: list[Any]) -> Any:
        """The soft cap, and behind it all masks: they must not change what is capped."""
        scores, given = self._scores, (lengths[0], lengths[1]) if lengths else None

        def modified(graph: Any, values: Any) -> Any:
            capped = graph.mul(graph.tanh(graph.mul(values, 1 / scores.softcap)), scores.softcap)
            writer = AttentionWriter(graph, _WHERE, self._sizes, _WHERE)
            capped = writer.with_alibi(capped) if scores.alibi else capped
            right = 0 if scores.causal else scores.right
            bounds = [None if bound < 0 else bound for bound in (scores.left, right)]
            return writer.masked(capped, Band(bounds[0], bounds[1], True), given, None)

        return modified

    def _column(self, place: int) -> Any:
        (batch,), (step,) = self._sketch.shape_at(place), self._sketch.strides_at(place)
        return self.graph.at(place, (batch, 1, 1, 1), (step, 1, 1, 1))

    def _has(self, place: int) -> bool:
        return self._sketch.tensors[place].shape is not None


def _plain(q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any]:
    tensors, wide = rest[:6], wide_type(q)
    values, _, v = _modified(q.to(wide), k.to(wide), v.to(wide), tensors, Scores(*rest[6:]))
    sinks = _sinks(values, tensors)
    joined = values if sinks is None else torch.cat((values, sinks), -1)
    is_empty = (joined == -inf).all(-1, keepdim=True)
    stats = joined.masked_fill(is_empty, 0.0).logsumexp(-1, keepdim=True).masked_fill(is_empty, -inf)
    target = torch.empty_like(q) if v.shape[3] == q.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]))
    return target.copy_(_weights(values, stats) @ v), stats[..., 0].float()


def _plain_backward(do: Any, o: Any, stats: Any, q: Any, k: Any, v: Any, *rest: Any) -> tuple[Any, Any, Any, Any]:
    tensors, scores, wide = rest[:6], Scores(*rest[6:]), wide_type(q)
    values, slope, heads_of_v = _modified(q.to(wide), k.to(wide), v.to(wide), tensors, scores)
    sums, gradient = stats[..., None].to(wide), do.to(wide)
    weights, delta = _weights(values, sums), (gradient * o.to(wide)).sum(-1, keepdim=True)
    of_scores = weights * (gradient @ heads_of_v.transpose(-1, -2) - delta) * slope * scores.scale
    dq = of_scores @ k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], 1)
    dk, dv = of_scores.transpose(-1, -2) @ q.to(wide), weights.transpose(-1, -2) @ gradient
    dk, dv = (own.unflatten(1, (like.shape[1], -1)).sum(2) for own, like in ((dk, k), (dv, v)))
    sinks = _sinks(values, tensors)
    dsink = q.new_empty(0, dtype=torch.float32)
    if sinks is not None:
        dsink = -(_weights(sinks, sums) * delta).sum((0, 2, 3)).float()
    results = [torch.empty_like(like).copy_(own) for own, like in ((dq, q), (dk, k), (dv, v))]
    return results[0], results[1], results[2], dsink


def _modified(q: Any, k: Any, v: Any, tensors: Sequence[Any], scores: Scores) -> tuple[Any, Any, Any]:
    """(masked scores, the derivative of the soft cap, v with a head for each one of q)"""
    bias, _, _, _, pages, _ = tensors
    if pages is not None:
        k, v = (own[pages.long()].transpose(1, 2).flatten(2, 3) for own in (k, v))
    k, v = (own.repeat_interleave(q.shape[1] // own.shape[1], 1) for own in (k, v))
    values: Any = scores.scale * (q @ k.transpose(-1, -2))
    values = values if bias is None else values + bias
    slope: Any = 1.0
    if scores.softcap:
        ratio = (values / scores.softcap).tanh()
        values, slope = scores.softcap * ratio, 1 - ratio.square()
    queries, keys = (torch.arange(count, device=q.device) for count in values.shape[2:])
    if scores.alibi:
        values = values + _slopes(q)[:, None, None] * (keys - queries[:, None])
    return values.masked_fill(_hidden(values, tensors, scores), -inf), slope, v


def _hidden(values: Any, tensors: Sequence[Any], scores: Scores) -> Any:
    """Where a query does not see a key."""
    _, blocks, lengths_q, lengths_k, _, _ = tensors
    queries, keys = (torch.arange(count, device=values.device) for count in values.shape[2:])
    hidden = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    shift: Any = values.shape[3] - values.shape[2]
    if lengths_q is not None:
        of_q, of_k = (own[:, None, None, None] for own in (lengths_q, lengths_k))
        hidden, shift = hidden | (queries[:, None] >= of_q) | (keys >= of_k), of_k - of_q
    distance = keys - queries[:, None] - shift
    right = 0 if scores.causal else scores.right
    hidden = hidden | (distance > right) if right >= 0 else hidden
    hidden = hidden | (-distance > scores.left) if scores.left >= 0 else hidden
    if blocks is None:
        return hidden
    bits = (blocks[..., None] >> torch.arange(_BITS, device=values.device, dtype=torch.uint8)) & 1
    tiles = bits.flatten(-2).repeat_interleave(_BLOCK, 2)[:, :, : len(queries)]
    return hidden | (tiles.repeat_interleave(_BLOCK, 3)[..., : len(keys)] == 0)


def _sinks(values: Any, tensors: Sequence[Any]) -> Any:
    """The sink of each query as one more column, which queries past their length do not have; None without."""
    lengths_q, sink = tensors[2], tensors[-1]
    if sink is None:
        return None
    column = sink.to(values.dtype)[:, None, None].expand(*values.shape[:3], 1)
    if lengths_q is None:
        return column
    queries = torch.arange(values.shape[2], device=values.device)[:, None]
    return torch.where(queries < lengths_q[:, None, None, None], column, -inf)


def _weights(values: Any, sums: Any) -> Any:
    """exp(values - sums), 0 for a query without keys."""
    return (values - sums.masked_fill(sums == -inf, 0.0)).exp()


def _slopes(q: Any) -> Any:
    heads = q.shape[1]
    power = 1 << (heads.bit_length() - 1)
    exponents = [-8 * (head + 1) / power if head < power else -4 * (2 * (head - power) + 1) / power
                 for head in range(heads)]  # fmt: skip
    return torch.exp(torch.tensor(exponents, dtype=q.dtype, device=q.device) * log(2))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:9], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.numbers = inputs[9:]


def _backward(ctx: Any, do: Any, _: Any) -> Any:
    *inputs, o, stats = ctx.saved_tensors
    if inputs[_BLOCKS] is not None or inputs[_PAGES] is not None:
        raise NotSupportedError.at(
            f"torch.ops.{_WHERE}", expected="no gradient asked for with a block mask or pages", got="one",
            hint="detach q, k and v",
        )  # fmt: skip
    dq, dk, dv, dsink = torch.ops.lowdnn.attention_backward(do, o, stats, *inputs, *ctx.numbers)
    has_sink = inputs[_SINK] is not None
    return (dq, dk, dv, *(None,) * 5, dsink if has_sink else None, *(None,) * len(ctx.numbers))


def _overload(name: str, read: Any, sketched: Any) -> Overload:
    return Overload(f"lowdnn::{name}", "score_attention", read, sketched, kind="attention", keys=("CPU",))


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? block_mask, Tensor? lengths_q, Tensor? lengths_k,"
    " Tensor? pages, Tensor? sink, float scale, bool causal, int left, int right, float softcap, bool alibi"
)
DEFINITIONS = (
    Definition(
        "attention", f"({_ARGUMENTS}) -> (Tensor, Tensor)", _plain, _overload("attention", _read, _sketched), _save,
        _backward,
    ),
    Definition(
        "attention_backward", f"(Tensor do, Tensor o, Tensor stats, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
        _plain_backward, _overload("attention_backward", _read_backward, _sketched_backward),
    ),
)  # fmt: skip
