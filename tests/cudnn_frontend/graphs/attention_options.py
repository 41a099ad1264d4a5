"""Attention with scores that a graph of the caller changes, sinks, slopes, other forms, and gradients in fp8."""

from __future__ import annotations

from typing import Any

import cudnn
import ml_dtypes
import numpy as np
import pytest

from tests.cudnn_frontend.data import Array, check_close, normal, wide
from tests.cudnn_frontend.graphs.attention import (
    SCALE,
    SKV,
    SQ,
    B,
    D,
    H,
    below_diagonal,
    forward,
    gradients_of,
    grouped,
    heads_inside,
    qkv,
    score_gradient,
    scores_of,
    weights,
)
from tests.cudnn_frontend.program import DT, Program, Session

OUTPUT = {"dim": [B, H, SQ, D], "stride": [H * SQ * D, D, H * D, 1]}


def attended(program: Program, arrays: tuple[Array, Array, Array], **options: Any) -> Array:
    """o alone."""
    tensors = [heads_inside(program, array) for array in arrays]
    o, _ = program.graph.sdpa(*tensors, attn_scale=SCALE, is_inference=True, **options)
    program.output(o, arrays[0].dtype, **OUTPUT)
    return program.run()[0]


def test_capped_scores_of_an_arrow(session: Session) -> None:
    """The caller's graph caps scores, and leaves the first rows, the first columns and a band; masks are INT32."""
    q, k, v = qkv()
    program = session.program()
    cap, nothing = program.scalar(5.0), program.scalar(-1e9)
    first, band = program.scalar(8, np.int32), program.scalar(4, np.int32)

    def mask(g: Any, compared: Any) -> Any:
        compared.set_data_type(DT.INT32)
        return compared

    def modified(g: Any, scores: Any) -> Any:
        capped = g.mul(a=g.tanh(input=g.div(a=scores, b=cap)), b=cap)
        row, column = g.gen_index(input=scores, axis=2), g.gen_index(input=scores, axis=3)
        for index in (row, column):
            index.set_data_type(DT.INT32)
        distance = g.sub(a=row, b=column, compute_data_type=DT.INT32)
        distance.set_data_type(DT.INT32)
        inside = mask(g, g.cmp_le(input=distance, comparison=band, compute_data_type=DT.BOOLEAN))
        for index in (row, column):
            begins = mask(g, g.cmp_lt(input=index, comparison=first, compute_data_type=DT.BOOLEAN))
            inside = mask(g, g.logical_or(inside, begins, compute_data_type=DT.BOOLEAN))
        return g.binary_select(input0=capped, input1=nothing, mask=inside)

    found = attended(program, (q, k, v), score_mod=modified)
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    inside = (row - column <= 4) | (row < 8) | (column < 8)
    p, _ = weights(np.where(inside, np.tanh(scores_of(q, k) / 5) * 5, -1e9))
    check_close(found, p @ wide(v), 3e-3)


def test_gradients_of_capped_scores(session: Session) -> None:
    q, k, v = qkv()
    capped = np.tanh(scores_of(q, k) / 2)
    p, sums = weights(capped * 2)
    o, do = (p @ wide(v)).astype(np.float16), normal(B, H, SQ, D)
    program = session.program()
    cap, one = program.scalar(2.0), program.scalar(1.0)
    kept: dict[str, Any] = {}

    def modified(g: Any, scores: Any) -> Any:
        kept["tanh"] = g.tanh(input=g.div(a=scores, b=cap))
        return g.mul(a=kept["tanh"], b=cap)

    def modified_gradient(g: Any, gradient: Any) -> Any:
        return g.mul(a=gradient, b=g.sub(a=one, b=g.mul(a=kept["tanh"], b=kept["tanh"])))

    tensors = [heads_inside(program, array) for array in (q, k, v, o, do)]
    gradients = program.graph.sdpa_backward(
        *tensors, stats=program.input(sums.astype(np.float32)), attn_scale=SCALE, score_mod=modified,
        score_mod_bprop=modified_gradient,
    )  # fmt: skip
    for gradient, array in zip(gradients, (q, k, v), strict=True):
        _, h, s, d = array.shape
        program.output(gradient, np.float16, dim=list(array.shape), stride=[h * s * d, d, h * d, 1])
    dq, dk, dv = program.run()
    ds = score_gradient(v, o, do, p) * (1 - capped**2) * SCALE
    check_close(dq, ds @ wide(k), 6e-3)
    check_close(dk, ds.swapaxes(-1, -2) @ wide(q), 6e-3)
    check_close(dv, p.swapaxes(-1, -2) @ wide(do), 6e-3)


def test_a_sink_and_its_gradient(session: Session) -> None:
    """Each head has one more score, whose weight goes nowhere."""
    q, k, v = qkv()
    sink = normal(1, H, 1, 1, dtype=np.float32)
    o, stats = forward(session, (q, k, v), sink_token=sink)
    extended = np.concatenate([scores_of(q, k), np.broadcast_to(sink, (B, H, SQ, 1))], -1)
    p, sums = weights(extended)
    check_close(o, p[..., :-1] @ wide(v), 2e-3)
    check_close(stats, sums, 1e-4)
    do = normal(B, H, SQ, D)
    program = session.program()
    tensors = [heads_inside(program, array) for array in (q, k, v, o, do)]
    dsink = program.graph.tensor(dim=[1, H, 1, 1], stride=[H, 1, 1, 1], data_type=DT.FLOAT)
    gradients = program.graph.sdpa_backward(
        *tensors, stats=program.input(stats), attn_scale=SCALE, sink_token=program.input(sink), dSink_token=dsink
    )
    for gradient, array in zip(gradients, (q, k, v), strict=True):
        _, h, s, d = array.shape
        program.output(gradient, np.float16, dim=list(array.shape), stride=[h * s * d, d, h * d, 1])
    program.output(dsink)
    *found, found_sink = program.run()
    for mine, expected in zip(found, gradients_of(q, k, v, o, do, p[..., :-1]), strict=True):
        check_close(mine, expected, 5e-3)
    inner = (wide(do) * wide(o)).sum(-1, keepdims=True)
    check_close(found_sink, -(p[..., -1:] * inner).sum((0, 2), keepdims=True), 1e-2)


def test_largest_scores_and_sums(session: Session) -> None:
    q, k, v = qkv()
    program = session.program()
    tensors = [heads_inside(program, array) for array in (q, k, v)]
    largest, total = (
        program.graph.tensor(dim=[B, H, SQ, 1], stride=[H * SQ, SQ, 1, 1], data_type=DT.FLOAT) for _ in range(2)
    )
    o, _ = program.graph.sdpa(
        *tensors, attn_scale=SCALE, is_inference=True, use_causal_mask=True, score_max=largest, score_sum_exp=total
    )
    program.output(o, np.float16, **OUTPUT)
    for tensor in (largest, total):
        program.output(tensor)
    found, found_largest, found_total = program.run()
    scores = np.where(below_diagonal(SQ, SKV), scores_of(q, k), -np.inf)
    check_close(found, weights(scores)[0] @ wide(v), 2e-3)
    expected = scores.max(-1, keepdims=True)
    check_close(found_largest, expected, 1e-4)
    check_close(found_total, np.exp(scores - expected).sum(-1, keepdims=True), 1e-4)


def test_slopes_of_heads(session: Session) -> None:
    """ALiBi: scores fall with the distance, faster in one head than in the other."""
    q, k, v = qkv()
    found = attended(session.program(), (q, k, v), use_alibi_mask=True, use_causal_mask=True)
    slopes = 2.0 ** (-8 * (np.arange(H) + 1) / H)
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    scores = scores_of(q, k) + slopes[:, None, None] * (column - row)
    p, _ = weights(np.where(below_diagonal(SQ, SKV), scores, -np.inf))
    check_close(found, p @ wide(v), 3e-3)


@pytest.mark.parametrize("implementation", ["COMPOSITE", "UNIFIED"])
def test_implementations(session: Session, implementation: str) -> None:
    """One operation, or several, in the backend's terms."""
    q, k, v = qkv(kv_heads=1)
    found = attended(
        session.program(), (q, k, v), use_causal_mask=True,
        implementation=getattr(cudnn.attention_implementation, implementation),
    )  # fmt: skip
    p, _ = weights(np.where(below_diagonal(SQ, SKV), scores_of(q, k), -np.inf))
    check_close(found, p @ grouped(v, H), 2e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths_of_products(session: Session, is_causal: bool) -> None:
    """The form of several operations has lengths of its products; what lies behind them, NaN say, reaches nothing."""
    q, k, v = qkv()
    lengths = {"seq_len_q": np.array([29, SQ]), "seq_len_kv": np.array([SKV, 37])}
    rows, columns = (np.arange(s) < lengths[name][:, None] for name, s in (("seq_len_q", SQ), ("seq_len_kv", SKV)))
    seen = rows[:, None, :, None] & columns[:, None, None] & (below_diagonal(SQ, SKV) if is_causal else True)
    p, _ = weights(np.where(seen, scores_of(q, k), -np.inf))
    expected = p @ wide(v)
    for b in range(B):
        q[b, :, ~rows[b]] = k[b, :, ~columns[b]] = v[b, :, ~columns[b]] = np.nan
    program = session.program()
    given = {name: program.input(of.reshape(B, 1, 1, 1).astype(np.int32)) for name, of in lengths.items()}
    found = attended(
        program, (q, k, v), use_causal_mask=is_causal, use_padding_mask=True, **given,
        implementation=cudnn.attention_implementation.COMPOSITE,
    )  # fmt: skip
    check_close(found, expected, 2e-3)


def test_gradients_in_fp8(session: Session) -> None:
    """Scales of powers of two keep what is rounded to fp8 in its range; the size of heads is what the wheel takes."""
    e4m3, size = ml_dtypes.float8_e4m3fn, 128
    q, k, v, do = (normal(1, H, SQ, size, dtype=e4m3) for _ in range(4))
    p, sums = weights(scores_of(q, k))
    o = (p @ wide(v)).astype(e4m3)
    program = session.program()
    scales = dict.fromkeys(("descale_q", "descale_k", "descale_v", "descale_o", "descale_dO"), 1.0)
    scales |= {"descale_s": 1 / 128, "scale_s": 128.0, "descale_dP": 1 / 8, "scale_dP": 8.0}
    scales |= dict.fromkeys(("scale_dQ", "scale_dK", "scale_dV"), 8.0)
    results = program.graph.sdpa_fp8_backward(
        *(heads_inside(program, array) for array in (q, k, v, o, do)), program.input(sums.astype(np.float32)),
        **{name: program.input(np.full((1, 1, 1, 1), value, np.float32)) for name, value in scales.items()},
        attn_scale=SCALE,
    )  # fmt: skip
    for gradient in results[:3]:
        program.output(gradient, e4m3, dim=[1, H, SQ, size], stride=[H * SQ * size, size, H * size, 1])
    for amax in results[3:]:
        program.output(amax, np.float32, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1])
    *found, amax_dq, amax_dk, amax_dv, _ = program.run()
    ds = score_gradient(v, o, do, p) * SCALE
    expected = (ds @ wide(k), ds.swapaxes(-1, -2) @ wide(q), p.swapaxes(-1, -2) @ wide(do))
    for mine, true, amax in zip(found, expected, (amax_dq, amax_dk, amax_dv), strict=True):
        error = np.sqrt(np.mean((wide(mine) / 8 - true) ** 2) / np.mean(true**2))
        assert error < 0.06, error
        assert abs(amax.item() / np.abs(true).max() - 1) < 0.2 or abs(amax.item() / 8 / np.abs(true).max() - 1) < 0.2
