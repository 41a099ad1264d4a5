"""Attention and its gradients: patterns of ``attention_pattern``, ``band_pattern``, ``sink_pattern``,
``ragged_pattern``, ``attention_values``, ``gathering`` and ``attention.factors``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

import numpy as np

from lowdnn import dtypes
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, RngDistribution
from lowdnn.ops.block_mask import mask_dims
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.rng import Rng
from lowdnn.ops.sdpa_forward import SdpaForward
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF, _INT32 = DataType.FLOAT, DataType.HALF, DataType.INT32
_MODES = PointwiseMode
_BATCH, _HEADS, _QUERIES, _KEYS, _SIZE = 2, 2, 5, 6, 8
_SCORES, _ROWS = (_BATCH, _HEADS, _QUERIES, _KEYS), (_BATCH, _HEADS, _QUERIES, 1)
_Q, _K = (_BATCH, _HEADS, _QUERIES, _SIZE), (_BATCH, _HEADS, _KEYS, _SIZE)
_EXCHANGED = (0, 1, 3, 2)
_LENGTHS = {"queries": (4, 5), "keys": (3, 6)}

Step = Callable[[Sketch, Tensor], Tensor]


def _same(_: Sketch, x: Tensor) -> Tensor:
    return x


def _attention(
    sketch: Sketch,
    before: Step = _same,
    between: Step = _same,
    behind: Step | None = None,
    *,
    k: Tensor | None = None,
    v: Tensor | None = None,
    kind: DataType = _HALF,
    sink: Tensor | None = None,
    names: tuple[str, ...] = (),
) -> None:
    """before, between, behind: types of the scores, the weights and the output."""
    k = k or sketch.tensor(_K, kind, name="k")
    q = sketch.tensor((*_Q[:3], k.dims[3]), kind, name="q")
    keys = sketch.transpose(k, _EXCHANGED)
    scores = before(sketch, sketch.matmul(q, keys))
    y = sketch.softmax(scores, (3,), sink=sink, statistics=_FLOAT, names=names)
    weights = sketch.pointwise(_MODES.IDENTITY, between(sketch, y), virtual=kind)
    o = sketch.matmul(weights, v or sketch.tensor(_K, kind, name="v"), store=None if behind else kind)
    if behind:
        behind(sketch, o)


def _masked(sketch: Sketch, scores: Tensor, mode: PointwiseMode, left: Tensor, right: Tensor) -> Tensor:
    seen = sketch.pointwise(mode, left, right, compute_type=_INT32, virtual=DataType.BOOLEAN)
    return sketch.pointwise(_MODES.BINARY_SELECT, scores, sketch.constant(4, _FLOAT, -inf), seen)


def _index(sketch: Sketch, x: Tensor, axis: int) -> Tensor:
    return sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _INT32, axis=axis), x)


def _moved(sketch: Sketch, x: Tensor, by: int) -> Tensor:
    return sketch.pointwise(_MODES.ADD, x, sketch.constant(4, _INT32, by), compute_type=_INT32)


def _scaled(sketch: Sketch, scores: Tensor) -> Tensor:
    return sketch.pointwise(_MODES.MUL, scores, sketch.constant(4, _FLOAT, 0.25))


def _lengths(sketch: Sketch, what: str) -> Tensor:
    return sketch.holding(np.reshape(_LENGTHS[what], (_BATCH, 1, 1, 1)), _INT32, name=what)


def _cut(sketch: Sketch, scores: Tensor, axis: int, lengths: Tensor) -> Tensor:
    return _masked(sketch, scores, _MODES.CMP_LT, _index(sketch, scores, axis), lengths)


def scaled(sketch: Sketch) -> None:
    """A scale of the graph, statistics, a factor of the output."""
    _attention(
        sketch, _scaled, names=("stats",), behind=lambda s, o: s.pointwise(_MODES.MUL, o, s.number(0.5), store=_HALF)
    )


def scaled_twice(sketch: Sketch) -> None:
    """Two numbers of the graph, which are one factor."""

    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        return sketch.pointwise(_MODES.MUL, _scaled(sketch, scores), sketch.constant(4, _FLOAT, 1.5))

    _attention(sketch, before)


def biased(sketch: Sketch) -> None:
    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        bias = sketch.tensor((1, _HEADS, _QUERIES, _KEYS), _HALF, name="bias")
        return sketch.pointwise(_MODES.ADD, sketch.pointwise(_MODES.MUL, scores, sketch.value(0.25)), bias)

    _attention(sketch, before)


def band(sketch: Sketch) -> None:
    """Keys from two before to one behind a query."""

    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        row, column = _index(sketch, scores, 2), _index(sketch, scores, 3)
        scores = _masked(sketch, scores, _MODES.CMP_GE, _moved(sketch, row, 1), column)
        return _masked(sketch, scores, _MODES.CMP_GT, _moved(sketch, column, 3), row)

    _attention(sketch, before)


def band_of_two_left_bounds(sketch: Sketch) -> None:
    _attention(sketch, lambda s, scores: _two_bounds(s, scores, (1, 3)), names=("stats", "max"))


def band_of_two_right_bounds(sketch: Sketch) -> None:
    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        row, column = _index(sketch, scores, 2), _index(sketch, scores, 3)
        for by, mode in ((2, _MODES.CMP_LT), (1, _MODES.CMP_LE)):
            scores = _masked(sketch, scores, mode, column, _moved(sketch, row, by))
        return scores

    _attention(sketch, before)


def _two_bounds(sketch: Sketch, scores: Tensor, bounds: tuple[int, int]) -> Tensor:
    row, column = _index(sketch, scores, 2), _index(sketch, scores, 3)
    for bound in bounds:
        scores = _masked(sketch, scores, _MODES.CMP_GE, _moved(sketch, column, bound), row)
    return scores


def subtracted_band(sketch: Sketch) -> None:
    """column - 1 <= row, with the number subtracted, in FLOAT indices that are converted."""

    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        row, column = (
            sketch.pointwise(_MODES.IDENTITY, _index(sketch, scores, axis), virtual=_FLOAT) for axis in (2, 3)
        )
        moved = sketch.pointwise(_MODES.SUB, column, sketch.constant(4, _FLOAT, 1.0))
        seen = sketch.pointwise(_MODES.CMP_LE, moved, row, virtual=DataType.BOOLEAN)
        return sketch.pointwise(_MODES.BINARY_SELECT, scores, sketch.constant(4, _FLOAT, -inf), seen)

    _attention(sketch, before)


def lengths(sketch: Sketch) -> None:
    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        scores = _cut(sketch, _scaled(sketch, scores), 2, _lengths(sketch, "queries"))
        return _cut(sketch, scores, 3, _lengths(sketch, "keys"))

    _attention(sketch, before, names=("stats", "sum_exp"))


def sink(sketch: Sketch) -> None:
    """A sink of queries before their length."""
    queries = _lengths(sketch, "queries")
    given = sketch.tensor((1, _HEADS, 1, 1), _FLOAT, name="sink")
    row = sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _INT32, axis=2), given, dims=_ROWS)
    masked = _masked(sketch, given, _MODES.CMP_LT, row, queries)
    _attention(sketch, lambda s, scores: _cut(s, scores, 2, queries), sink=masked, names=("stats",))


def sink_of_two_masks(sketch: Sketch) -> None:
    """Two masks leave the sink queries before their length, but for the first."""
    queries = _lengths(sketch, "queries")
    given = sketch.tensor((1, _HEADS, 1, 1), _FLOAT, name="sink")
    row, column = (
        sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _INT32, axis=axis), given, dims=_ROWS) for axis in (2, 3)
    )
    masked = _masked(sketch, given, _MODES.CMP_GT, row, column)
    masked = _masked(sketch, masked, _MODES.CMP_LT, row, queries)
    _attention(sketch, lambda s, scores: _cut(s, scores, 2, queries), sink=masked, names=("stats",))


def plain_sink(sketch: Sketch) -> None:
    given = sketch.tensor((1, _HEADS, 1, 1), _FLOAT, name="sink")
    _attention(sketch, _scaled, sink=given)


def blocks(sketch: Sketch) -> None:
    """A mask of tiles, under a mask of lengths."""

    def before(sketch: Sketch, scores: Tensor) -> Tensor:
        mask = sketch.holding(np.ones(mask_dims(_SCORES)), DataType.UINT8, name="mask")
        sketch.values[mask.uid].flat[1] = 0
        return _cut(sketch, sketch.block_mask(scores, mask), 3, _lengths(sketch, "keys"))

    _attention(sketch, before)


def dropout(sketch: Sketch) -> None:
    def between(sketch: Sketch, weights: Tensor) -> Tensor:
        seed, offset = (sketch.holding(np.full((1,) * 4, 5), DataType.INT64, name=name) for name in ("seed", "offset"))
        kept = sketch.rng(Rng(RngDistribution.BERNOULLI, probability=0.75), _SCORES, seed=seed, offset=offset)
        return sketch.pointwise(_MODES.MUL, weights, kept, alpha1=1 / 0.75)

    _attention(sketch, _scaled, between)


def multiplied_weights(sketch: Sketch) -> None:
    def between(sketch: Sketch, weights: Tensor) -> Tensor:
        return sketch.pointwise(_MODES.MUL, weights, sketch.tensor((1, 1, _QUERIES, _KEYS), _HALF, name="shares"))

    _attention(sketch, between=between)


def paged(sketch: Sketch) -> None:
    """k and v in pages of two rows."""
    keys, places = _lengths(sketch, "keys"), np.arange(6).reshape(2, 1, 3, 1)
    table = sketch.holding(places[::-1], _INT32, name="table")
    k, v = (
        sketch.paged_cache_load(sketch.tensor((6, _HEADS, 2, _SIZE), _HALF, name=name), table, keys, _KEYS)
        for name in ("k", "v")
    )
    _attention(sketch, lambda s, scores: _cut(s, scores, 3, keys), k=k, v=v)


def fp8(sketch: Sketch) -> None:
    """Scales and descales of all operands, and largest magnitudes."""
    kind = DataType.FP8_E4M3
    number = {name: sketch.number(2.0, name=name) for name in ("q", "k", "s", "v", "ds", "o")}

    def times(sketch: Sketch, x: Tensor, *names: str, store: DataType | None = None) -> Tensor:
        for name in names:
            x = sketch.pointwise(_MODES.MUL, x, number[name], store=store)
        return x

    def between(sketch: Sketch, weights: Tensor) -> Tensor:
        sketch.reduction(ReduceTensorOp.AMAX, weights, (0, 1, 2, 3), store=_FLOAT)
        return times(sketch, weights, "s")

    def behind(sketch: Sketch, o: Tensor) -> Tensor:
        whole = times(sketch, o, "ds", "v")
        sketch.reduction(ReduceTensorOp.AMAX, whole, (0, 1, 2, 3), store=_FLOAT)
        return times(sketch, whole, "o", store=kind)

    _attention(
        sketch,
        lambda s, scores: times(s, _scaled(s, scores), "q", "k"),
        between,
        behind,
        kind=kind,
        k=sketch.tensor((_BATCH, _HEADS, _KEYS, 16), kind, name="k"),
        v=sketch.tensor((_BATCH, _HEADS, _KEYS, 16), kind, name="v"),
    )


def ragged(sketch: Sketch) -> None:
    """Packed q, k, v and o, as one operation."""
    operation = _forward(sketch)
    offsets = {
        name: sketch.holding(np.reshape(np.cumsum([0, *of]), (3, 1, 1, 1)) * _HEADS * _SIZE, _INT32, name=f"{name}_at")
        for name, of in _LENGTHS.items()
    }
    row = {"strides": (0, _SIZE, _HEADS * _SIZE, 1)}
    packed = {
        port: replace(
            getattr(operation, port),
            ragged_offset=offsets["queries" if port in "qo" else "keys"],
            **row | {"strides": (getattr(operation, port).dims[2] * _HEADS * _SIZE, *row["strides"][1:])},
        )
        for port in ("q", "k", "v", "o")
    }
    sketch.compound(replace(operation, **packed))


def whole(sketch: Sketch) -> None:
    """One operation with lengths and a scale."""
    lengths = {"seq_len_q": _lengths(sketch, "queries"), "seq_len_kv": _lengths(sketch, "keys")}
    operation = _forward(sketch)
    stats = sketch.tensor(_ROWS, _FLOAT, name="stats")
    sketch.compound(replace(operation, **lengths, scale=sketch.number(0.25), stats=stats))


def _forward(sketch: Sketch) -> SdpaForward:
    q, k, v = (sketch.tensor(dims, _HALF, name=name) for name, dims in (("q", _Q), ("k", _K), ("v", _K)))
    return SdpaForward(q, k, v, sketch.tensor(_Q, _HALF, name="o"))


def backward(sketch: Sketch) -> None:
    """Gradients of attention whose scores have a bias and whose weights are multiplied, beside lengths and a band."""
    q, k, v, o, d_o, stats = _gradient_operands(sketch)
    scores, d_scores, weights = (sketch.tensor(_SCORES, _FLOAT, is_virtual=True) for _ in range(3))
    bias = sketch.tensor((1, _HEADS, _QUERIES, _KEYS), _HALF, name="bias")
    shares = sketch.tensor((1, 1, _QUERIES, _KEYS), _HALF, name="shares")
    made = (
        sketch.pointwise(_MODES.ADD, scores, bias),
        sketch.pointwise(_MODES.MUL, d_scores, sketch.constant(4, _FLOAT, 1.5)),
        sketch.pointwise(_MODES.MUL, weights, shares),
    )
    sketch.sdpa_backward(
        *(q, k, v, o, d_o, stats),
        scale=sketch.constant(4, _FLOAT, 0.25),
        seq_len_kv=_lengths(sketch, "keys"),
        right=1,
        inner=Subgraph((scores, d_scores, weights), made),
    )


def plain_backward(sketch: Sketch) -> None:
    q, k, v, o, d_o, stats = _gradient_operands(sketch)
    lengths = {"seq_len_q": _lengths(sketch, "queries"), "seq_len_kv": _lengths(sketch, "keys")}
    sketch.sdpa_backward(q, k, v, o, d_o, stats, scale=sketch.number(0.25), left=2, is_bottom_right=True, **lengths)


def _gradient_operands(sketch: Sketch) -> tuple[Tensor, ...]:
    """q, k, v, o, d_o and stats that belong together where no scores are changed."""
    rng = np.random.default_rng(3)
    q, k, v, d_o = (rng.standard_normal(dims) for dims in (_Q, _K, _K, _Q))
    scores = q @ k.transpose(_EXCHANGED) * 0.25
    stats = np.log(np.exp(scores).sum(-1, keepdims=True)) + 1.0
    o = np.exp(scores - stats) @ v
    given = {"q": q, "k": k, "v": v, "o": o, "d_o": d_o}
    return (
        *(sketch.holding(dtypes.rounded(values, _HALF), _HALF, name=name) for name, values in given.items()),
        sketch.holding(stats, _FLOAT, name="stats"),
    )


PATTERNS: Mapping[str, Known] = {
    **taken_by(
        "attention_mma attention_wgmma attention_decode",
        scaled,
        scaled_twice,
        biased,
        band,
        band_of_two_left_bounds,
        band_of_two_right_bounds,
        subtracted_band,
        lengths,
        sink,
        plain_sink,
        blocks,
        dropout,
        multiplied_weights,
        ragged,
        whole,
    ),
    **taken_by("attention_mma attention_decode", paged),
    **taken_by("attention_wgmma", fp8),
    **taken_by("attention_backward_mma", backward),
    **taken_by("attention_backward_mma attention_backward_wgmma", plain_backward),
    **taken_by("composite", sink_of_two_masks),
}
