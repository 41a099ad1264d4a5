"""Gradients of attention as products, pointwise operations and sums: patterns of ``attention_gradient_pattern``,
``product_operands`` and ``inner_writer``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, ReshapeMode, RngDistribution
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.matmul import Matmul, output_dims
from lowdnn.ops.matmul_extents import MatmulWithExtents
from lowdnn.ops.pointwise import Pointwise
from lowdnn.ops.reshape import Reshape
from lowdnn.ops.rng import Rng
from lowdnn.ops.tensor import Tensor
from tests.support.near_misses.pattern import Known, Sketch, taken_by

_FLOAT, _HALF, _INT32 = DataType.FLOAT, DataType.HALF, DataType.INT32
_MODES = PointwiseMode
_BATCH, _HEADS, _QUERIES, _KEYS, _SIZE = 2, 2, 4, 5, 8
_SCORES = (_BATCH, _HEADS, _QUERIES, _KEYS)

Step = Callable[[Sketch, Tensor], Tensor]


def _same(_: Sketch, x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class _Lengths:
    queries: Tensor | None = None
    keys: Tensor | None = None


@dataclass(frozen=True)
class _Steps:
    """Operations at six places of the gradients.

    before: on the scaled scores.  behind: on the scores that statistics are subtracted from.  dropped: on the weights.
    d_dropped: on the gradients of weights.  numbers: factors of d.  d_scores: on the gradients of scores before they
    are scaled, called with the scores that ``before`` gets, too.
    """

    before: Step = _same
    behind: Step = _same
    dropped: Step = _same
    d_dropped: Step = _same
    numbers: tuple[float, ...] = (1.25,)
    d_scores: Callable[[Sketch, Tensor, Tensor], Tensor] = lambda _, x, scores: x


def _gradients(
    sketch: Sketch,
    steps: _Steps | None = None,
    lengths: _Lengths | None = None,
    *,
    heads_k: int = _HEADS,
    dbias: int | None = None,
    is_scaled: bool = True,
    accumulates: bool = False,
) -> None:
    """dbias: the axis over which the gradient of scores is summed.  accumulates: whether dq is stored in FLOAT, too."""
    steps, lengths = steps or _Steps(), lengths or _Lengths()
    rows, columns = (_BATCH, _HEADS, _QUERIES, _SIZE), (_BATCH, heads_k, _SIZE, _KEYS)
    q, o, d_o = (sketch.tensor(rows, _HALF, name=name) for name in ("q", "o", "d_o"))
    keys, values = (
        sketch.tensor(columns, _HALF, strides=(heads_k * _SIZE * _KEYS, _SIZE * _KEYS, 1, _SIZE), name=name)
        for name in ("k", "v")
    )
    stats = sketch.holding(np.full((*rows[:3], 1), 3.5), _FLOAT, name="stats")
    d = sketch.reduction(ReduceTensorOp.ADD, sketch.pointwise(_MODES.MUL, o, d_o), (3,))
    for number in steps.numbers:
        d = sketch.pointwise(_MODES.MUL, d, sketch.value(number))
    scale = sketch.value(0.375, name="scale")
    queries, length = lengths.queries, lengths.keys
    scores = _product(sketch, q, keys, m=queries, n=length)
    scores = sketch.pointwise(_MODES.MUL, scores, scale) if is_scaled else scores
    exponent = sketch.pointwise(_MODES.SUB, steps.before(sketch, scores), stats)
    p = sketch.pointwise(_MODES.EXP, steps.behind(sketch, exponent))
    weights = steps.dropped(sketch, p)
    _stored(sketch, _product(sketch, _view(sketch, weights), d_o, m=length, k=queries), heads_k, _HALF)
    d_p = steps.d_dropped(sketch, _product(sketch, d_o, values, m=queries, n=length))
    ds = sketch.pointwise(_MODES.MUL, sketch.pointwise(_MODES.SUB, d_p, d), p)
    ds = steps.d_scores(sketch, ds, scores)
    if dbias is not None:
        sketch.reduction(ReduceTensorOp.ADD, ds, (dbias,), store=_FLOAT)
    ds = sketch.pointwise(_MODES.MUL, ds, scale) if is_scaled else ds
    _stored(sketch, _product(sketch, _view(sketch, ds), q, m=length, k=queries), heads_k, _HALF)
    d_q = _product(sketch, ds, _view(sketch, keys, _FLOAT), m=queries, k=length)
    if accumulates:
        sketch.pointwise(_MODES.IDENTITY, sketch.pointwise(_MODES.IDENTITY, d_q, store=_FLOAT), store=_HALF)
    else:
        sketch.pointwise(_MODES.IDENTITY, d_q, store=_HALF)


def _product(sketch: Sketch, a: Tensor, b: Tensor, **lengths: Tensor | None) -> Tensor:
    """The product in FLOAT, with zeros behind the lengths m, n and k."""
    given = {port: length for port, length in lengths.items() if length is not None}
    if not given:
        return sketch.matmul(a, b)
    c = sketch.tensor(output_dims(a.dims, b.dims), _FLOAT, is_virtual=True)
    sketch.compound(MatmulWithExtents(Matmul(_FLOAT), a, b, c, **given))
    return c


def _view(sketch: Sketch, x: Tensor, kind: DataType = _HALF) -> Tensor:
    """The last two axes exchanged."""
    dims, strides = (tuple(values[axis] for axis in (0, 1, 3, 2)) for values in (x.dims, x.strides))
    y = sketch.tensor(dims, kind, strides=strides, is_virtual=True)
    sketch.add(Reshape(x, y, ReshapeMode.VIEW_ONLY))
    return y


def _stored(sketch: Sketch, x: Tensor, heads: int, kind: DataType) -> None:
    """Sums over neighbouring heads of which ``heads`` are left, stored."""
    batch, all_heads, rows, size = x.dims
    if heads == all_heads:
        sketch.pointwise(_MODES.IDENTITY, x, store=kind)
        return
    groups = sketch.reshape(x, (batch, heads, all_heads // heads, rows, size))
    summed = sketch.reduction(ReduceTensorOp.ADD, groups, (2,))
    sketch.reshape(summed, (batch, heads, rows, size), store=kind)


def _index(sketch: Sketch, x: Tensor, axis: int) -> Tensor:
    return sketch.pointwise(Pointwise(_MODES.GEN_INDEX, _INT32, axis=axis), x)


def _banded(sketch: Sketch, x: Tensor, fill: Tensor) -> Tensor:
    """Keys up to the query."""
    y = sketch.tensor(x.dims, _FLOAT, is_virtual=True)
    sketch.compound(DiagonalBandMask(x, y, _MODES.CMP_GE, fill))
    return y


def _padded(sketch: Sketch, x: Tensor, lengths: _Lengths, fill: Tensor) -> Tensor:
    assert lengths.queries is not None
    assert lengths.keys is not None
    row, column = (
        sketch.pointwise(_MODES.CMP_LT, _index(sketch, x, axis), length, compute_type=DataType.BOOLEAN)
        for axis, length in ((2, lengths.queries), (3, lengths.keys))
    )
    seen = sketch.pointwise(_MODES.LOGICAL_AND, row, column, compute_type=DataType.BOOLEAN)
    return sketch.pointwise(_MODES.BINARY_SELECT, x, fill, seen)


def _lengths(sketch: Sketch) -> _Lengths:
    numbers = {"queries": (3, 4), "keys": (5, 2)}
    return _Lengths(
        **{name: sketch.holding(np.reshape(of, (_BATCH, 1, 1, 1)), _INT32, name=name) for name, of in numbers.items()}
    )


def shared_keys(sketch: Sketch) -> None:
    """Two heads of queries share one of keys and values; dq is stored in FLOAT first."""
    _gradients(sketch, heads_k=1, accumulates=True)


def causal(sketch: Sketch) -> None:
    """A band behind the difference, filled with a number that is given by value."""
    fill = sketch.value(-2.5, name="fill")
    _gradients(sketch, _Steps(behind=lambda s, x: _banded(s, x, fill)))


def causal_with_lengths(sketch: Sketch) -> None:
    """Lengths before the difference, a band behind it."""
    lengths, fill = _lengths(sketch), sketch.value(-2.5, name="fill")
    steps = _Steps(before=lambda s, x: _padded(s, x, lengths, fill), behind=lambda s, x: _banded(s, x, fill))
    _gradients(sketch, steps, lengths)


def biased_with_lengths(sketch: Sketch) -> None:
    """A gradient of a bias, beside masks of minus infinity."""
    lengths, fill = _lengths(sketch), sketch.constant(4, _FLOAT, -inf)
    bias = sketch.tensor((1, *_SCORES[1:]), _HALF, name="bias")

    def before(sketch: Sketch, x: Tensor) -> Tensor:
        return _padded(sketch, sketch.pointwise(_MODES.ADD, x, bias), lengths, fill)

    _gradients(sketch, _Steps(before=before), lengths, dbias=0)


def biased_with_filled_lengths(sketch: Sketch) -> None:
    """A gradient of a bias, with another number than minus infinity behind lengths."""
    lengths, fill = _lengths(sketch), sketch.value(1.5, name="fill")
    bias = sketch.tensor((1, *_SCORES[1:]), _HALF, name="bias")

    def before(sketch: Sketch, x: Tensor) -> Tensor:
        return _padded(sketch, sketch.pointwise(_MODES.ADD, x, bias), lengths, fill)

    _gradients(sketch, _Steps(before=before), lengths, dbias=0)


def biased(sketch: Sketch) -> None:
    bias = sketch.tensor((_BATCH, 1, *_SCORES[2:]), _HALF, name="bias")
    _gradients(sketch, _Steps(before=lambda s, x: s.pointwise(_MODES.ADD, x, bias)), dbias=1, is_scaled=False)


def dropout(sketch: Sketch) -> None:
    """A number behind random ones is a factor of the weights, and of gradients of scores behind the difference."""
    seed, offset = (sketch.holding(np.full((1,) * 4, 5), DataType.INT64, name=name) for name in ("seed", "offset"))
    kept = sketch.rng(Rng(RngDistribution.BERNOULLI, probability=0.75), _SCORES, seed=seed, offset=offset)
    number = sketch.value(1.5, name="number")
    _gradients(
        sketch,
        _Steps(
            dropped=lambda s, x: s.pointwise(_MODES.MUL, s.pointwise(_MODES.MUL, x, kept), number),
            d_dropped=lambda s, x: s.pointwise(_MODES.MUL, x, kept),
            d_scores=lambda s, x, _: s.pointwise(_MODES.MUL, x, number),
        ),
    )


def capped(sketch: Sketch) -> None:
    """tanh of scores, and its gradient."""

    def d_scores(sketch: Sketch, x: Tensor, scores: Tensor) -> Tensor:
        tanh = sketch.pointwise(_MODES.TANH_FWD, scores)
        square = sketch.pointwise(_MODES.MUL, tanh, tanh)
        return sketch.pointwise(_MODES.MUL, x, sketch.pointwise(_MODES.SUB, sketch.constant(4, _FLOAT, 1.0), square))

    _gradients(sketch, _Steps(before=lambda s, x: s.pointwise(_MODES.TANH_FWD, x), d_scores=d_scores))


PATTERNS: Mapping[str, Known] = taken_by(
    "composite",
    shared_keys,
    causal,
    causal_with_lengths,
    biased_with_lengths,
    biased_with_filled_lengths,
    biased,
    dropout,
    capped,
)
