"""Scaled dot-product attention, forward and backward."""

from __future__ import annotations

from typing import Any

import cudnn
import ml_dtypes
import numpy as np

from tests.cudnn_frontend.data import RNG, Array, check_close, normal, wide
from tests.cudnn_frontend.program import DT, Program, Session

B, H, SQ, SKV, D = 2, 2, 48, 80, 64
SCALE = 0.125
#: Queries or keys of a tile of the gradients, at most: their sums lie in whole tiles.
TILE = 128


def weights(scores: Array) -> tuple[Array, Array]:
    """(softmax over the last axis, log of the sum of exponentials); a row without scores has weights 0."""
    largest = scores.max(-1, keepdims=True)
    safe = np.where(np.isfinite(largest), largest, 0)
    exponentials = np.exp(scores - safe)
    total = exponentials.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return exponentials / np.where(total > 0, total, 1), np.log(total) + safe


def grouped(x: Array, heads: int) -> Array:
    """Keys or values of fewer heads, one for each query's head."""
    return np.repeat(wide(x), heads // x.shape[1], 1)


def scores_of(q: Array, k: Array) -> Array:
    return wide(q) @ grouped(k, q.shape[1]).swapaxes(-1, -2) * SCALE


def below_diagonal(sq: int, skv: int, offset: int = 0) -> Array:
    return np.arange(skv)[None] <= np.arange(sq)[:, None] + offset


def heads_inside(program: Program, x: Array) -> Any:
    """x[b, h, s, d], in memory [b, s, h, d]."""
    _, h, s, d = x.shape
    return program.input(x, stride=[h * s * d, d, h * d, 1])


def qkv(dtype: Any = np.float16, kv_heads: int = H) -> tuple[Array, Array, Array]:
    return (
        normal(B, H, SQ, D, dtype=dtype),
        normal(B, kv_heads, SKV, D, dtype=dtype),
        normal(B, kv_heads, SKV, D, dtype=dtype),
    )


def forward(session: Session, arrays: tuple[Array, Array, Array], **options: Any) -> list[Array]:
    """(o, stats); tensors among the options are arrays here."""
    program = session.program()
    given = {name: program.input(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    q, k, v = (heads_inside(program, array) for array in arrays)
    o, stats = program.graph.sdpa(q=q, k=k, v=v, attn_scale=SCALE, **({"generate_stats": True} | given))
    program.output(o, arrays[0].dtype, dim=[B, H, SQ, D], stride=[H * SQ * D, D, H * D, 1])
    program.output(stats, np.float32)
    return program.run()


def backward(session: Session, arrays: tuple[Array, ...], sm_count: int | None = None, **options: Any) -> list[Array]:
    """(dq, dk, dv) of q, k, v, o, do and the statistics, planned for ``sm_count`` multiprocessors."""
    program = session.program(sm_count=sm_count)
    given = {name: program.input(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    q, k, v, o, do = (heads_inside(program, array) for array in arrays[:5])
    gradients = program.graph.sdpa_backward(
        q=q, k=k, v=v, o=o, dO=do, stats=program.input(arrays[5]), attn_scale=SCALE, **given
    )
    for gradient, array in zip(gradients, arrays, strict=False):
        _, h, s, d = array.shape
        program.output(gradient, array.dtype, dim=list(array.shape), stride=[h * s * d, d, h * d, 1])
    results = program.run()
    assert program.graph.get_workspace_size() <= workspace_bytes(arrays[0], arrays[1])
    return results


def workspace_bytes(q: Array, k: Array, apart: int = 0) -> int:
    """The most bytes of the workspace of one operation, whose scores lie nowhere.

    The wheel stores dq and a number for each row in fp32. The plan has sums of dq in fp32 for whole tiles of queries,
    two numbers for each row, a page, and what lies ``apart``. Where heads share keys it has sums of dk and dv for each
    head of queries.
    """
    b, h, rows, columns = q.shape
    queries, keys = (-(-length // TILE) * TILE for length in (rows, k.shape[2]))
    stored, sums = 4 * b * h * rows * (columns + 1), 4 * b * h * queries * columns
    shared = 2 * 4 * b * h * keys * columns if k.shape[1] < h else 0
    return stored + sums + shared + 8 * b * h * queries + 4096 + apart


def gradients_of(q: Array, k: Array, v: Array, o: Array, do: Array, p: Array) -> tuple[Array, Array, Array]:
    """dq, dk, dv for weights p and the output o as it was stored; shared keys and values sum over queries' heads."""
    dv = p.swapaxes(-1, -2) @ wide(do)
    ds = score_gradient(v, o, do, p) * SCALE
    dk = ds.swapaxes(-1, -2) @ wide(q)
    heads, shared = q.shape[1], (*k.shape[:2], q.shape[1] // k.shape[1], *k.shape[2:])
    return ds @ grouped(k, heads), dk.reshape(shared).sum(2), dv.reshape(shared).sum(2)


def score_gradient(v: Array, o: Array, do: Array, p: Array, kept: Array | float = 1.0) -> Array:
    """The gradient of the scores, before they are scaled; ``kept``: what dropout multiplies weights by."""
    dp = wide(do) @ grouped(v, do.shape[1]).swapaxes(-1, -2) * kept
    return p * (dp - (wide(o) * wide(do)).sum(-1, keepdims=True))


def test_plain_and_its_gradients(session: Session) -> None:
    """Keys and values of one head for both heads of queries."""
    q, k, v = qkv(kv_heads=1)
    o, stats = forward(session, (q, k, v))
    p, sums = weights(scores_of(q, k))
    check_close(o, p @ grouped(v, H), 2e-3)
    check_close(stats, sums, 1e-4)
    do = normal(B, H, SQ, D)
    for found, expected in zip(
        backward(session, (q, k, v, o, do, stats)), gradients_of(q, k, v, o, do, p), strict=True
    ):
        check_close(found, expected, 4e-3)


def test_scores_are_stored_nowhere(session: Session) -> None:
    """In the graph's intermediate type they would take more than the workspace.

    Few multiprocessors have work without parts of the queries, whose sums of dk and dv the workspace would hold.
    """
    q, do = (normal(1, 2, 384, D) for _ in range(2))
    k, v = (normal(1, 1, 384, D) for _ in range(2))
    p, sums = weights(scores_of(q, k))
    o = (p @ grouped(v, 2)).astype(np.float16)
    assert workspace_bytes(q, k) < 4 * p.size
    found = backward(session, (q, k, v, o, do, sums.astype(np.float32)), sm_count=4)
    for gradient, expected in zip(found, gradients_of(q, k, v, o, do, p), strict=True):
        check_close(gradient, expected, 4e-3)


def test_gradients_of_an_odd_number_of_queries(session: Session) -> None:
    """The workspace of the wheel itself ends at a multiple of 4 alone, where that of the plan begins."""
    q, do = (normal(B, H, SQ - 1, D) for _ in range(2))
    _, k, v = qkv()
    p, sums = weights(scores_of(q, k))
    o = (p @ wide(v)).astype(np.float16)
    found = backward(session, (q, k, v, o, do, sums.astype(np.float32)))
    for gradient, expected in zip(found, gradients_of(q, k, v, o, do, p), strict=True):
        check_close(gradient, expected, 4e-3)


def test_causal(session: Session) -> None:
    """The diagonal begins top left; bf16."""
    q, k, v = qkv(ml_dtypes.bfloat16)
    o, stats = forward(session, (q, k, v), use_causal_mask=True)
    p, _ = weights(np.where(below_diagonal(SQ, SKV), scores_of(q, k), -np.inf))
    check_close(o, p @ wide(v), 1.5e-2)
    do = normal(B, H, SQ, D, dtype=ml_dtypes.bfloat16)
    found = backward(session, (q, k, v, o, do, stats), use_causal_mask=True)
    for mine, expected in zip(found, gradients_of(q, k, v, o, do, p), strict=True):
        check_close(mine, expected, 3e-2)


def test_a_band_that_ends_bottom_right(session: Session) -> None:
    q, k, v = qkv()
    o, _ = forward(
        session,
        (q, k, v),
        diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
        diagonal_band_right_bound=0,
        diagonal_band_left_bound=20,
    )
    offset = SKV - SQ
    band = below_diagonal(SQ, SKV, offset) & ~below_diagonal(SQ, SKV, offset - 20)
    p, _ = weights(np.where(band, scores_of(q, k), -np.inf))
    check_close(o, p @ wide(v), 2e-3)


def test_padding(session: Session) -> None:
    """Each sequence has its own lengths; what is behind them is not looked at, and its gradients are 0."""
    q, k, v = qkv()
    lengths_q, lengths_kv = np.array([48, 17], np.int32), np.array([33, 80], np.int32)
    options = {
        "use_padding_mask": True,
        "seq_len_q": lengths_q.reshape(B, 1, 1, 1),
        "seq_len_kv": lengths_kv.reshape(B, 1, 1, 1),
    }
    o, stats = forward(session, (q, k, v), **options)
    rows = np.arange(SQ) < lengths_q[:, None]
    columns = np.arange(SKV) < lengths_kv[:, None]
    p, _ = weights(np.where(columns[:, None, None], scores_of(q, k), -np.inf))
    p = p * rows[:, None, :, None]
    check_close(o * rows[:, None, :, None], p @ wide(v), 2e-3)
    do = normal(B, H, SQ, D)
    found = backward(session, (q, k, v, o, do, stats), **options)
    for mine, expected in zip(found, gradients_of(q, k, v, o, do, p), strict=True):
        check_close(mine, expected, 4e-3)


def test_bias_and_its_gradient(session: Session) -> None:
    q, k, v = qkv()
    bias = normal(1, H, SQ, SKV)
    o, stats = forward(session, (q, k, v), bias=bias)
    p, _ = weights(scores_of(q, k) + wide(bias))
    check_close(o, p @ wide(v), 2e-3)
    do = normal(B, H, SQ, D)
    program = session.program()
    q_of, k_of, v_of, o_of, do_of = (heads_inside(program, array) for array in (q, k, v, o, do))
    dbias = program.graph.tensor(dim=[1, H, SQ, SKV], stride=[H * SQ * SKV, SQ * SKV, SKV, 1], data_type=DT.HALF)
    gradients = program.graph.sdpa_backward(
        q=q_of, k=k_of, v=v_of, o=o_of, dO=do_of, stats=program.input(stats), attn_scale=SCALE,
        bias=program.input(bias), dBias=dbias,
    )  # fmt: skip
    for gradient, array in zip(gradients, (q, k, v), strict=True):
        _, h, s, d = array.shape
        program.output(gradient, np.float16, dim=list(array.shape), stride=[h * s * d, d, h * d, 1])
    program.output(dbias)
    *found, found_bias = program.run()
    for mine, expected in zip(found, gradients_of(q, k, v, o, do, p), strict=True):
        check_close(mine, expected, 4e-3)
    check_close(found_bias, score_gradient(v, o, do, p).sum(0, keepdims=True), 4e-3)


def test_dropout_is_the_same_forward_and_backward(session: Session) -> None:
    """The mask that was drawn is stored; dropped weights are the same ones in both directions."""
    q, k, v = qkv()
    probability, seed, offset = 0.3, np.full((1, 1, 1, 1), 1234, np.int64), np.full((1, 1, 1, 1), 7, np.int64)
    program = session.program()
    tensors = [heads_inside(program, array) for array in (q, k, v)]
    mask = program.graph.tensor(dim=[B, H, SQ, SKV], stride=[H * SQ * SKV, SQ * SKV, SKV, 1], data_type=DT.FLOAT)
    o_of, stats_of = program.graph.sdpa(
        *tensors, attn_scale=SCALE, generate_stats=True, rng_dump=mask,
        dropout=(probability, program.input(seed), program.input(offset)),
    )  # fmt: skip
    program.output(o_of, np.float16, dim=[B, H, SQ, D], stride=[H * SQ * D, D, H * D, 1])
    program.output(stats_of, np.float32)
    program.output(mask, np.float32)
    o, stats, kept = program.run()
    assert set(np.unique(kept)) == {0, 1} or len(np.unique(kept)) == 2
    kept = (kept != 0) / (1 - probability)
    assert abs(kept.mean() - 1) < 0.05
    p, sums = weights(scores_of(q, k))
    check_close(stats, sums, 1e-4)
    check_close(o, p * kept @ wide(v), 3e-3)
    do = normal(B, H, SQ, D)
    program = session.program()
    q_of, k_of, v_of, o_of, do_of = (heads_inside(program, array) for array in (q, k, v, o, do))
    gradients = program.graph.sdpa_backward(
        q=q_of, k=k_of, v=v_of, o=o_of, dO=do_of, stats=program.input(stats), attn_scale=SCALE,
        dropout=(probability, program.input(seed), program.input(offset)),
    )  # fmt: skip
    for gradient, array in zip(gradients, (q, k, v), strict=True):
        _, h, s, d = array.shape
        program.output(gradient, np.float16, dim=list(array.shape), stride=[h * s * d, d, h * d, 1])
    dq, dk, dv = program.run()
    check_close(dv, (p * kept).swapaxes(-1, -2) @ wide(do), 4e-3)
    ds = score_gradient(v, o, do, p, kept) * SCALE
    check_close(dq, ds @ wide(k), 5e-3)
    check_close(dk, ds.swapaxes(-1, -2) @ wide(q), 5e-3)


def test_pages(session: Session) -> None:
    """Keys and values lie in pages of 16; a table tells each sequence's pages in their order."""
    page, pages = 16, SKV // 16
    q, k, v = qkv()
    order_k, order_v = (RNG.permutation(B * pages).reshape(B, 1, pages, 1).astype(np.int32) for _ in range(2))

    def paged(x: Array, order: Array) -> Array:
        container = np.empty((B * pages, H, page, D), x.dtype)
        for b in range(B):
            for number in range(pages):
                container[order[b, 0, number, 0]] = x[b, :, number * page : (number + 1) * page]
        return container

    lengths_q, lengths_kv = (np.array(numbers, np.int32).reshape(B, 1, 1, 1) for numbers in ((48, 48), (70, 33)))
    program = session.program()
    o, _ = program.graph.sdpa(
        q=heads_inside(program, q), k=program.input(paged(k, order_k)), v=program.input(paged(v, order_v)),
        is_inference=True, attn_scale=SCALE, use_padding_mask=True,
        seq_len_q=program.input(lengths_q), seq_len_kv=program.input(lengths_kv),
        paged_attention_k_table=program.input(order_k), paged_attention_v_table=program.input(order_v),
        paged_attention_max_seq_len_kv=SKV,
    )  # fmt: skip
    program.output(o, np.float16, dim=[B, H, SQ, D], stride=[H * SQ * D, D, H * D, 1])
    columns = np.arange(SKV) < lengths_kv.reshape(B, 1)
    p, _ = weights(np.where(columns[:, None, None], scores_of(q, k), -np.inf))
    check_close(program.run()[0], p @ wide(v), 2e-3)


def test_packed_sequences(session: Session) -> None:
    """Queries, keys and outputs lie one sequence behind the other; offsets tell where each begins."""
    lengths = np.array([30, 48], np.int32)
    q, k, v = (normal(B, H, SQ, D) for _ in range(3))
    offsets = np.array([0, 30, 78], np.int32).reshape(B + 1, 1, 1, 1)
    program = session.program()
    begins = program.input(offsets * H * D)

    def packed(x: Array) -> Any:
        rows = np.concatenate(
            [x[b, :, :length].swapaxes(0, 1).reshape(length, H * D) for b, length in enumerate(lengths)]
        )
        tensor = program.graph.tensor(
            dim=[B, H, SQ, D], stride=[H * SQ * D, D, H * D, 1], data_type=DT.HALF, ragged_offset=begins
        )
        program.pack[tensor] = session.cudart.put(rows)
        return tensor

    o, _ = program.graph.sdpa(
        q=packed(q), k=packed(k), v=packed(v), is_inference=True, attn_scale=SCALE, use_causal_mask=True,
        use_padding_mask=True, seq_len_q=program.input(lengths.reshape(B, 1, 1, 1)),
        seq_len_kv=program.input(lengths.reshape(B, 1, 1, 1)),
    )  # fmt: skip
    o.set_output(True).set_dim([B, H, SQ, D]).set_stride([H * SQ * D, D, H * D, 1]).set_ragged_offset(begins)
    o.set_data_type(DT.HALF)
    program.build()
    program.pack[o] = session.cudart.put(np.full((78, H, D), np.nan, np.float16))
    program.graph.execute(program.pack, program.workspace(), handle=session.handle)
    found = session.cudart.get(program.pack[o], (78, H, D), np.float16)
    p, _ = weights(np.where(below_diagonal(SQ, SQ), scores_of(q, k), -np.inf))
    expected = p @ wide(v)
    for b, (first, length) in enumerate(zip((0, 30), lengths, strict=True)):
        check_close(found[first : first + length].swapaxes(0, 1), expected[b, :, :length], 2e-3)


def test_fp8(session: Session) -> None:
    """Weights are multiplied by 256 before they are rounded; the output's largest absolute value comes out.

    Rounding moves each weight, and then the output, by a 16th of itself at most.
    """
    e4m3 = ml_dtypes.float8_e4m3fn
    q, k, v = qkv(e4m3)
    program = session.program()
    scales = dict.fromkeys(("descale_q", "descale_k", "descale_v", "scale_o"), 1.0)
    scales |= {"scale_s": 256.0, "descale_s": 1 / 256}
    o, _, amax_s, amax_o = program.graph.sdpa_fp8(
        *(heads_inside(program, array) for array in (q, k, v)),
        **{name: program.input(np.full((1, 1, 1, 1), value, np.float32)) for name, value in scales.items()},
        is_inference=True,
        attn_scale=SCALE,
        use_causal_mask=True,
    )
    program.output(o, e4m3, dim=[B, H, SQ, D], stride=[H * SQ * D, D, H * D, 1])
    for amax in (amax_s, amax_o):
        program.output(amax, np.float32, dim=[1, 1, 1, 1], stride=[1, 1, 1, 1])
    found, _, largest = program.run()
    p, _ = weights(np.where(below_diagonal(SQ, SKV), scores_of(q, k), -np.inf))
    expected, of_weights = p @ wide(v), p @ np.abs(wide(v)) / 16
    assert (np.abs(wide(found) - expected) <= of_weights * 17 / 16 + np.abs(expected) / 16 + 2**-9).all()
    assert abs(largest.item() - np.abs(expected).max()) <= of_weights.max()
