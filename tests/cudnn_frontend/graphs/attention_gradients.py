"""The gradients of attention with each of their options; the wheel writes them as products and pointwise operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cudnn
import numpy as np
import pytest

from tests.cudnn_frontend.data import RNG, Array, check_close, normal, wide
from tests.cudnn_frontend.graphs.attention import (
    SCALE,
    SKV,
    SQ,
    B,
    D,
    below_diagonal,
    grouped,
    heads_inside,
    weights,
    workspace_bytes,
)
from tests.cudnn_frontend.program import DT, Program, Session

HEADS = 4
BOTTOM_RIGHT = cudnn.diagonal_alignment.BOTTOM_RIGHT
QUERIES, KEYS = np.array([29, SQ]), np.array([SKV, 37])


@dataclass
class Attention:
    """Operands in float64's terms.  seen: whether each score counts.  added: a term of the scores.

    kept: factors of the weights.
    apart_bytes: bytes of the workspace beyond those that ``workspace_bytes`` knows."""

    kv_heads: int = HEADS
    seen: Array = field(default_factory=lambda: np.ones((1, 1, SQ, SKV), bool))
    added: Array | float = 0.0
    kept: Array | float = 1.0
    sink: Array | None = None
    apart_bytes: int = 0

    def __post_init__(self) -> None:
        self.q, self.do = (normal(B, HEADS, SQ, D) for _ in range(2))
        self.k, self.v = (normal(B, self.kv_heads, SKV, D) for _ in range(2))
        scores = wide(self.q) @ grouped(self.k, HEADS).swapaxes(-1, -2) * SCALE + self.added
        scores = np.where(self.seen, scores, -np.inf)
        if self.sink is not None:
            scores = np.concatenate([scores, np.broadcast_to(self.sink, (*scores.shape[:3], 1))], -1)
        p, sums = weights(scores)
        self.p = p[..., :SKV]
        self.p_sink = p[..., SKV:]
        self.stats = sums.astype(np.float32)
        self.o = (self.p * self.kept @ grouped(self.v, HEADS)).astype(np.float16)
        self.d = (wide(self.o) * wide(self.do)).sum(-1, keepdims=True)

    def gradients(self) -> tuple[Array, Array, Array, Array]:
        """dq, dk, dv and the gradient of the scores."""
        d_p = self.kept * (wide(self.do) @ grouped(self.v, HEADS).swapaxes(-1, -2))
        ds = self.p * (d_p - self.d)
        dk = SCALE * ds.swapaxes(-1, -2) @ wide(self.q)
        dv = (self.p * self.kept).swapaxes(-1, -2) @ wide(self.do)
        groups = (B, self.kv_heads, -1, SKV, D)
        return SCALE * ds @ grouped(self.k, HEADS), dk.reshape(groups).sum(2), dv.reshape(groups).sum(2), ds

    def run(self, program: Program, **options: Any) -> list[Array]:
        """dq, dk, dv, and what else was marked as an output."""
        extra, program.outputs = program.outputs, []
        operands = [heads_inside(program, x) for x in (self.q, self.k, self.v, self.o, self.do)]
        gradients = program.graph.sdpa_backward(
            *operands, program.input(self.stats), **({"attn_scale": SCALE} | options)
        )
        for gradient, like in zip(gradients, (self.q, self.k, self.v), strict=True):
            _, h, s, d = like.shape
            program.output(gradient, np.float16, dim=list(like.shape), stride=[h * s * d, d, h * d, 1])
        program.outputs += extra
        results = program.run()
        assert program.graph.get_workspace_size() <= workspace_bytes(self.q, self.k, self.apart_bytes)
        return results

    def check(self, found: list[Array]) -> None:
        for mine, expected in zip(found[:3], self.gradients(), strict=False):
            check_close(mine, expected, 6e-3)


def in_lengths() -> Array:
    rows = np.arange(SQ)[:, None] < QUERIES[:, None, None, None]
    return rows & (np.arange(SKV) < KEYS[:, None, None, None])


def lengths(program: Program) -> dict[str, Any]:
    given = {"seq_len_q": QUERIES, "seq_len_kv": KEYS}
    return {"use_padding_mask": True} | {
        name: program.input(numbers.reshape(B, 1, 1, 1).astype(np.int32)) for name, numbers in given.items()
    }


def ends_at_lengths(reach: int) -> Array:
    """A band that ends at the last query and key of each batch."""
    place = np.arange(SQ)[:, None] + (KEYS - QUERIES)[:, None, None, None]
    column = np.arange(SKV)
    return in_lengths() & (column <= place) & (column > place - reach)


BAND = below_diagonal(SQ, SKV, SKV - SQ) & ~below_diagonal(SQ, SKV, SKV - SQ - 20)
WINDOW = below_diagonal(SQ, SKV) & ~below_diagonal(SQ, SKV, -16)
OF_BAND = {"diagonal_alignment": BOTTOM_RIGHT, "diagonal_band_right_bound": 0, "diagonal_band_left_bound": 20}


@pytest.mark.parametrize(
    ("seen", "options"),
    [
        (below_diagonal(SQ, SKV), {"use_causal_mask": True}),
        (below_diagonal(SQ, SKV, SKV - SQ), {"use_causal_mask_bottom_right": True}),
        (
            below_diagonal(SQ, SKV) & ~below_diagonal(SQ, SKV, -16),
            {"use_causal_mask": True, "sliding_window_length": 16},
        ),
        (BAND, OF_BAND),
        (np.ones((SQ, SKV), bool), {"use_deterministic_algorithm": True}),
    ],
    ids=["causal", "bottom_right", "window", "band", "deterministic"],
)
def test_masks(session: Session, seen: Array, options: dict[str, Any]) -> None:
    attention = Attention(kv_heads=2, seen=seen)
    attention.check(attention.run(session.program(), **options))


@pytest.mark.parametrize(
    ("seen", "options"),
    [
        (in_lengths(), {}),
        (in_lengths() & below_diagonal(SQ, SKV), {"use_causal_mask": True}),
        (ends_at_lengths(20), OF_BAND),
    ],
    ids=["plain", "causal", "band"],
)
def test_lengths(session: Session, seen: Array, options: dict[str, Any]) -> None:
    """Whatever lies behind the lengths, NaN in rows of queries and keys say, reaches nothing."""
    attention = Attention(kv_heads=1, seen=seen)
    for b in range(B):
        for x, length in ((attention.q, QUERIES), (attention.do, QUERIES), (attention.k, KEYS), (attention.v, KEYS)):
            x[b, :, length[b] :] = 0
    expected = attention.gradients()
    program = session.program()
    for b in range(B):
        for x, length in ((attention.q, QUERIES), (attention.do, QUERIES), (attention.k, KEYS), (attention.v, KEYS)):
            x[b, :, length[b] :] = np.nan
    found = attention.run(program, **lengths(program), **options)
    for mine, wanted in zip(found, expected, strict=False):
        check_close(mine, wanted, 6e-3)


def test_a_number_in_device_memory(session: Session) -> None:
    attention = Attention()
    program = session.program()
    scale = program.input(np.full((1, 1, 1, 1), SCALE, np.float32))
    attention.check(attention.run(program, attn_scale=scale))


@pytest.mark.parametrize("dims", [(1, HEADS, SQ, SKV), (1, 1, SQ, SKV), (B, HEADS, SQ, SKV)])
def test_a_bias_and_its_gradient(session: Session, dims: tuple[int, ...]) -> None:
    bias = normal(*dims)
    attention = Attention(added=wide(bias))
    program = session.program()
    strides = [int(np.prod(dims[axis + 1 :])) for axis in range(4)]
    dbias = program.graph.tensor(dim=list(dims), stride=strides, data_type=DT.HALF)
    program.output(dbias)
    *found, of_bias = attention.run(program, bias=program.input(bias), dBias=dbias)
    attention.check(found)
    summed = tuple(axis for axis in (0, 1) if dims[axis] == 1)
    check_close(of_bias, attention.gradients()[3].sum(summed, keepdims=True), 8e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_bias_beside_lengths_and_dropout(session: Session, is_causal: bool) -> None:
    """Statistics of rows behind the lengths are minus infinity, as forward operations leave them; no NaN follows."""
    bias = normal(1, HEADS, SQ, SKV)
    seen = in_lengths() & below_diagonal(SQ, SKV) if is_causal else in_lengths()
    kept = (RNG.random((B, HEADS, SQ, SKV)) < 0.75).astype(np.float16)
    attention = Attention(1, seen, wide(bias), wide(kept) / 0.75, apart_bytes=2 * 4 * bias.size)
    assert np.isneginf(attention.stats).any()
    program = session.program()
    dbias = program.graph.tensor(dim=list(bias.shape), stride=[HEADS * SQ * SKV, SQ * SKV, SKV, 1], data_type=DT.HALF)
    program.output(dbias)
    numbers = (program.input(np.full((1, 1, 1, 1), number, np.float32)) for number in (1 / 0.75, 0.75))
    options = lengths(program) | {"dropout": (program.input(kept), *numbers), "bias": program.input(bias)}
    *found, of_bias = attention.run(program, **options, dBias=dbias, use_causal_mask=is_causal)
    attention.check(found)
    check_close(of_bias, attention.gradients()[3].sum(0, keepdims=True), 8e-3)


def test_slopes_of_heads(session: Session) -> None:
    slopes = 2.0 ** (-8 * (np.arange(HEADS) + 1) / HEADS)
    distance = np.arange(SKV) - np.arange(SQ)[:, None]
    attention = Attention(seen=below_diagonal(SQ, SKV), added=slopes[:, None, None] * distance)
    attention.check(attention.run(session.program(), use_alibi_mask=True, use_causal_mask=True))


def test_weights_dropped_by_a_mask(session: Session) -> None:
    kept = (RNG.random((B, HEADS, SQ, SKV)) < 0.75).astype(np.float16)
    attention = Attention(kept=wide(kept) / 0.75)
    program = session.program()
    numbers = (program.input(np.full((1, 1, 1, 1), number, np.float32)) for number in (1 / 0.75, 0.75))
    attention.check(attention.run(program, dropout=(program.input(kept), *numbers)))


def test_a_sinks_gradient(session: Session) -> None:
    """Against differences of the sum of o * do in float64."""
    sink = normal(1, HEADS, 1, 1, dtype=np.float32)
    attention = Attention(sink=wide(sink))
    program = session.program()
    dsink = program.graph.tensor(dim=[1, HEADS, 1, 1], stride=[HEADS, 1, 1, 1], data_type=DT.FLOAT)
    program.output(dsink)
    *found, of_sink = attention.run(program, sink_token=program.input(sink), dSink_token=dsink)
    attention.check(found)
    step = 1e-4
    sums = [_products(attention, sink + sign * step) for sign in (1, -1)]
    check_close(of_sink, ((sums[0] - sums[1]) / (2 * step)).reshape(1, HEADS, 1, 1), 5e-3)


def _products(attention: Attention, sink: Array) -> Array:
    """The sum of o * do of each head, for that sink."""
    scores = wide(attention.q) @ wide(attention.k).swapaxes(-1, -2) * SCALE
    p, _ = weights(np.concatenate([scores, np.broadcast_to(wide(sink), (*scores.shape[:3], 1))], -1))
    return (p[..., :SKV] @ wide(attention.v) * wide(attention.do)).sum((0, 2, 3))


def test_a_sinks_gradient_beside_lengths(session: Session) -> None:
    """Rows behind the length have no weights, as their statistics say, and no part in the sum."""
    sink = normal(1, HEADS, 1, 1, dtype=np.float32)
    attention = Attention(sink=wide(sink), seen=in_lengths())
    row_exists = (np.arange(SQ) < QUERIES[:, None])[:, None, :, None]
    expected = -(attention.p_sink * attention.d * row_exists).sum((0, 2), keepdims=True)
    attention.stats = np.where(row_exists, attention.stats, -np.inf).astype(np.float32)
    program = session.program()
    dsink = program.graph.tensor(dim=[1, HEADS, 1, 1], stride=[HEADS, 1, 1, 1], data_type=DT.FLOAT)
    program.output(dsink)
    options = lengths(program) | {"sink_token": program.input(sink), "dSink_token": dsink}
    check_close(attention.run(program, **options)[3], expected, 5e-3)


@pytest.mark.parametrize("numbers", [((29, SQ), (SKV, 37)), ((SQ, 5), (6, SKV)), ((0, 20), (50, 0))])
def test_forward_and_gradients_of_a_band_beside_a_sink(session: Session, numbers: tuple[tuple[int, int], ...]) -> None:
    """The output and the statistics are those of the forward graph: rows without keys, and batches without rows."""
    queries, keys = (np.array(of)[:, None, None, None] for of in numbers)
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    place = row + keys - queries
    seen = (row < queries) & (column < keys) & (column <= place + 7) & (column > place - 14)
    sink = normal(1, HEADS, 1, 1, dtype=np.float32)
    attention = Attention(seen=seen, sink=np.where(row < queries, wide(sink), -np.inf))

    def options(program: Program) -> dict[str, Any]:
        lengths = zip(("seq_len_q", "seq_len_kv"), (queries, keys), strict=True)
        given = {name: program.input(of.astype(np.int32)) for name, of in lengths}
        band = {"diagonal_alignment": BOTTOM_RIGHT, "diagonal_band_left_bound": 14, "diagonal_band_right_bound": 7}
        return given | band | {"use_padding_mask": True, "sink_token": program.input(sink)}

    program = session.program()
    operands = (heads_inside(program, x) for x in (attention.q, attention.k, attention.v))
    o, stats = program.graph.sdpa(*operands, attn_scale=SCALE, generate_stats=True, **options(program))
    program.output(o, np.float16, dim=[B, HEADS, SQ, D], stride=[HEADS * SQ * D, D, HEADS * D, 1])
    program.output(stats, np.float32)
    attention.o, attention.stats = program.run()
    attention.d = (wide(attention.o) * wide(attention.do)).sum(-1, keepdims=True)
    program = session.program()
    dsink = program.graph.tensor(dim=[1, HEADS, 1, 1], stride=[HEADS, 1, 1, 1], data_type=DT.FLOAT)
    program.output(dsink)
    *found, of_sink = attention.run(program, **options(program), dSink_token=dsink)
    attention.check(found)
    check_close(of_sink, -(attention.p_sink * attention.d).sum((0, 2), keepdims=True), 1e-2)


@pytest.mark.parametrize("has_packed_statistics", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences(session: Session, has_packed_statistics: bool, is_causal: bool) -> None:
    """All tensors of heads lie one sequence behind the other, and so may the statistics."""
    seen = in_lengths() & below_diagonal(SQ, SKV) if is_causal else in_lengths()
    attention = Attention(kv_heads=2, seen=seen)
    program = session.program()

    def packed(x: Array, numbers: Array, begins: Any) -> Any:
        _, h, s, d = x.shape
        rows = np.concatenate([x[b, :, : numbers[b]].swapaxes(0, 1) for b in range(B)])
        tensor = program.graph.tensor(
            dim=list(x.shape), stride=[h * s * d, d, h * d, 1],
            data_type=DT.FLOAT if x.dtype == np.float32 else DT.HALF, ragged_offset=begins,
        )  # fmt: skip
        program.pack[tensor] = session.cudart.put(rows)
        return tensor

    def begins(numbers: Array, row: int) -> Any:
        return program.input(np.cumsum([0, *numbers]).reshape(B + 1, 1, 1, 1).astype(np.int32) * row)

    rows_q, rows_k = begins(QUERIES, HEADS * D), begins(KEYS, 2 * D)
    operands = [
        packed(x, KEYS if rows is rows_k else QUERIES, rows)
        for x, rows in ((attention.q, rows_q), (attention.k, rows_k), (attention.v, rows_k), (attention.o, rows_q),
                        (attention.do, rows_q))
    ]  # fmt: skip
    statistics = (
        packed(attention.stats, QUERIES, begins(QUERIES, HEADS))
        if has_packed_statistics
        else program.input(attention.stats)
    )
    gradients = program.graph.sdpa_backward(
        *operands, statistics, attn_scale=SCALE, use_causal_mask=is_causal, **lengths(program)
    )
    likes = ((attention.q, QUERIES, rows_q), (attention.k, KEYS, rows_k), (attention.v, KEYS, rows_k))
    for gradient, (like, _, rows) in zip(gradients, likes, strict=True):
        _, h, s, d = like.shape
        gradient.set_output(True).set_dim(list(like.shape)).set_stride([h * s * d, d, h * d, 1])
        gradient.set_ragged_offset(rows).set_data_type(DT.HALF)
    program.build()
    for gradient, (like, numbers, _) in zip(gradients, likes, strict=True):
        program.pack[gradient] = session.cudart.put(np.full((numbers.sum(), like.shape[1], D), np.nan, np.float16))
    program.graph.execute(program.pack, program.workspace(), handle=session.handle)
    for gradient, (like, numbers, _), expected in zip(gradients, likes, attention.gradients(), strict=False):
        found = session.cudart.get(program.pack[gradient], (numbers.sum(), like.shape[1], D), np.float16)
        for b, first in enumerate(np.cumsum([0, *numbers])[:-1]):
            own = expected[b, :, : numbers[b]]
            check_close(found[first : first + numbers[b]].swapaxes(0, 1), own, 6e-3)
