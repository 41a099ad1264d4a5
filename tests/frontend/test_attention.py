"""``pygraph.sdpa``, end to end, against attention written out in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.graph_tensor import Tensor
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.status import BadParamError
from tests.frontend.attention_reference import DV, FLOAT, HALF, HK, KEY, QUERY, SCALE, SKV, SQ, B, D, H, drawn, expected
from tests.support.data import fresh_seed
from tests.support.errors import raises


class Case:
    """A graph with q, k and v, and what it gives."""

    def __init__(self, handle: Handle, data: dict[str, np.ndarray] | None = None) -> None:
        self.handle, self.data = handle, data or drawn()
        self.graph = pygraph("sdpa", HALF, FLOAT, FLOAT, handle)
        self.q, self.k, self.v = (self.graph.tensor(self.data[name].shape) for name in "qkv")
        self.values: dict[Tensor, Any] = {
            tensor: cudnn.from_numpy(self.data[name], handle)
            for name, tensor in zip("qkv", (self.q, self.k, self.v), strict=True)
        }

    def input(self, values: np.ndarray) -> Tensor:
        tensor = self.graph.tensor_like(cudnn.from_numpy(values, self.handle))
        self.values[tensor] = cudnn.from_numpy(values, self.handle)
        return tensor

    def run(self, **arguments: Any) -> tuple[np.ndarray, np.ndarray]:
        o, stats = self.graph.sdpa(self.q, self.k, self.v, attn_scale=SCALE, generate_stats=True, **arguments)
        assert stats is not None
        o.set_output(True)
        stats.set_output(True)
        self.graph.build([cudnn.heur_mode.A])
        outputs = {o: np.zeros((B, H, SQ, DV), np.float16), stats: np.zeros((B, H, SQ, 1), np.float32)}
        self.values |= {tensor: cudnn.from_numpy(zeros, self.handle) for tensor, zeros in outputs.items()}
        workspace = np.zeros(max(self.graph.get_workspace_size(), 1), np.uint8)
        self.graph.execute(self.values, cudnn.from_numpy(workspace, self.handle))
        return self.values[o].numpy(), self.values[stats].numpy()

    def check(self, wanted: tuple[np.ndarray, np.ndarray], **arguments: Any) -> None:
        o, stats = self.run(**arguments)
        np.testing.assert_allclose(o.astype(np.float64), wanted[0], rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(stats, wanted[1], rtol=1e-5, atol=1e-5)


@pytest.fixture
def case(handle: Handle) -> Case:
    return Case(handle)


def test_plain(case: Case) -> None:
    case.check(expected(case.data))
    assert case.graph.get_plan_name_at_index(0).startswith("eng34_attention_decode")


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"use_causal_mask": True}, KEY <= QUERY),
        ({"use_causal_mask_bottom_right": True}, KEY <= QUERY + SKV - SQ),
        ({"use_causal_mask": True, "sliding_window_length": 5}, (KEY <= QUERY) & (KEY > QUERY - 5)),
        ({"diagonal_band_left_bound": 3, "diagonal_band_right_bound": 2}, (KEY <= QUERY + 2) & (KEY > QUERY - 3)),
        (
            {"diagonal_band_left_bound": 4, "diagonal_alignment": cudnn.diagonal_alignment.BOTTOM_RIGHT},
            KEY > QUERY + SKV - SQ - 4,
        ),
    ],
)
def test_masks(case: Case, arguments: dict[str, Any], seen: np.ndarray) -> None:
    case.check(expected(case.data, seen=seen), **arguments)


def test_a_mask_of_tiles(case: Case) -> None:
    """There is one tile: half of the heads see it, others nothing."""
    blocks = np.array([1, 0, 0, 255], np.uint8).reshape(1, H, 1, 1).repeat(B, 0)
    seen = blocks.astype(bool)
    case.check(expected(case.data, seen=seen & (KEY <= QUERY)), block_mask=case.input(blocks), use_causal_mask=True)


def test_scale_and_bias_are_tensors(case: Case) -> None:
    bias = np.random.default_rng(fresh_seed()).standard_normal((1, H, SQ, SKV)).astype(np.float16)
    wanted = expected(case.data, lambda scores: scores + bias.astype(np.float64))
    case.check(wanted, bias=case.input(bias))


def test_alibi(case: Case) -> None:
    slopes = 2.0 ** (-8 * (np.arange(H) + 1) / H)
    wanted = expected(case.data, lambda s: s + slopes[:, None, None] * (KEY - QUERY), KEY <= QUERY)
    case.check(wanted, use_alibi_mask=True, use_causal_mask=True)


@pytest.mark.parametrize("is_bottom_right", [False, True])
def test_lengths(case: Case, is_bottom_right: bool) -> None:
    """The second batch has no key."""
    queries, keys = (np.array(values, np.int32).reshape(B, 1, 1, 1) for values in ([SQ - 4, 3], [SKV - 9, 0]))
    seen = (queries > QUERY) & (keys > KEY)
    if is_bottom_right:
        seen = seen & (QUERY + keys - queries >= KEY)
    case.check(
        expected(case.data, seen=seen),
        use_padding_mask=True,
        seq_len_q=case.input(queries),
        seq_len_kv=case.input(keys),
        use_causal_mask_bottom_right=is_bottom_right,
    )


@pytest.mark.parametrize("paged", ["k", "v", "kv"])
def test_pages_of_a_cache(handle: Handle, paged: str) -> None:
    """Rows of a page: 8; of a table's 6 pages, the first 5 hold 37 keys."""
    case, rows, longest = Case(handle), 8, 40
    rng = np.random.default_rng(fresh_seed())
    arguments: dict[str, Any] = {}
    for name in paged:
        table = rng.permutation(20)[: B * 6].reshape(B, 1, 6, 1).astype(np.int32)
        values = np.zeros((B, HK, longest, case.data[name].shape[3]), np.float16)
        values[:, :, :SKV] = case.data[name]
        pages = np.full((20, HK, rows, values.shape[3]), np.nan, np.float16)
        for batch, number in np.ndindex(B, longest // rows):
            pages[table[batch, 0, number, 0]] = values[batch, :, number * rows : (number + 1) * rows]
        del case.values[getattr(case, name)]
        setattr(case, name, case.input(pages))
        arguments[f"paged_attention_{name}_table"] = case.input(table)
    keys = np.array([SKV, 11], np.int32).reshape(B, 1, 1, 1)
    queries = np.full((B, 1, 1, 1), SQ, np.int32)
    case.check(
        expected(case.data, seen=keys > KEY),
        use_padding_mask=True,
        seq_len_q=case.input(queries),
        seq_len_kv=case.input(keys),
        paged_attention_max_seq_len_kv=None if paged == "kv" else SKV,  # by default, what the tables have room for
        **arguments,
    )
    assert case.graph.get_plan_name_at_index(0).startswith("eng34_attention_decode")


def test_cumulated_lengths(case: Case) -> None:
    """Lengths of keys are a vector, those of queries a tensor; one side of either form may be beside one of the
    other."""
    queries, keys = np.array([SQ - 4, 3]), np.array([SKV - 9, 12])
    sums = np.concatenate([[0], np.cumsum(queries)]).astype(np.int64).reshape(B + 1, 1, 1, 1)
    seen = (queries.reshape(B, 1, 1, 1) > QUERY) & (keys.reshape(B, 1, 1, 1) > KEY)
    case.check(
        expected(case.data, seen=seen),
        use_padding_mask=True,
        cu_seq_len_q=case.input(sums),
        cu_seq_len_kv=case.input(np.concatenate([[0], np.cumsum(keys)]).astype(np.int32)),
    )


def test_a_sink_and_all_statistics(case: Case) -> None:
    """The sink is one more score; the log-sum-exp is to base 2."""
    sink = np.array([-1, 0, 2, 30], np.float32).reshape(1, H, 1, 1)
    largest, total = (case.input(np.zeros((B, H, SQ, 1), np.float32)).set_output(True) for _ in range(2))
    o, stats = case.run(
        sink_token=case.input(sink), score_max=largest, score_sum_exp=total, stats_use_log2=True, use_causal_mask=True
    )
    plain, without = expected(case.data, seen=KEY <= QUERY)
    wanted = np.logaddexp(without, sink)
    np.testing.assert_allclose(stats * np.log(2), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(o, plain * np.exp(without - wanted), rtol=2e-3, atol=2e-3)
    maxima, sums = (case.values[tensor].numpy() for tensor in (largest, total))
    assert (maxima >= sink).all()
    np.testing.assert_allclose(maxima + np.log(sums), wanted, rtol=1e-5, atol=1e-5)


def test_queries_behind_their_length_have_no_sink(case: Case) -> None:
    """The statistics of such queries are minus infinity, as in cuDNN."""
    sink = np.array([-1, 0, 2, 30], np.float32).reshape(1, H, 1, 1)
    queries, keys = np.array([SQ, 5]), np.array([0, SKV - 3])
    assert B == 2
    _, stats = case.run(
        sink_token=case.input(sink),
        use_padding_mask=True,
        seq_len_q=case.input(queries.astype(np.int32).reshape(B, 1, 1, 1)),
        seq_len_kv=case.input(keys.astype(np.int32).reshape(B, 1, 1, 1)),
    )
    np.testing.assert_array_equal(stats[0], np.broadcast_to(sink[0], (H, SQ, 1)))
    assert np.isneginf(stats[1, :, 5:]).all()
    assert np.isfinite(stats[1, :, :5]).all()


@pytest.mark.parametrize("in_elements", [True, False])
def test_ragged_tensors(handle: Handle, in_elements: bool) -> None:
    """Sequences of queries and keys packed as (T, H, D), the second has no query; offsets count rows or elements."""
    rng = np.random.default_rng(fresh_seed())
    queries, keys = np.array([SQ, 0, 9]), np.array([SKV, 5, 20])
    graph, values = pygraph("sdpa", HALF, FLOAT, FLOAT, handle), {}
    packed: dict[str, np.ndarray] = {}

    def offsets_of(lengths: np.ndarray, row: int) -> tuple[Tensor, int]:
        sums = np.concatenate([[0], np.cumsum(lengths)]) * (row if in_elements else 1)
        array = cudnn.from_numpy(sums.astype(np.int64 if in_elements else np.int32).reshape(-1, 1, 1, 1), handle)
        values[made := graph.tensor_like(array)] = array
        return made, 1 if in_elements else row

    def ragged(tensor: Tensor, lengths: np.ndarray, heads: int, size: int) -> Tensor:
        offset, multiplier = offsets_of(lengths, heads * size)
        tensor.set_stride((int(lengths.max()) * heads * size, size, heads * size, 1))
        return tensor.set_ragged_offset(offset).set_ragged_offset_multiplier(multiplier)

    tensors = {}
    for name, (lengths, heads, size) in {"q": (queries, H, D), "k": (keys, HK, D), "v": (keys, HK, DV)}.items():
        packed[name] = rng.standard_normal((lengths.sum(), heads, size)).astype(np.float16)
        tensors[name] = ragged(graph.tensor((3, heads, int(lengths.max()), size)), lengths, heads, size)
        values[tensors[name]] = cudnn.from_numpy(packed[name], handle)
    lengths = [cudnn.from_numpy(n.astype(np.int32).reshape(3, 1, 1, 1), handle) for n in (queries, keys)]
    seq_lens = [graph.tensor_like(array) for array in lengths]
    values |= dict(zip(seq_lens, lengths, strict=True))
    o, stats = graph.sdpa(
        *tensors.values(),
        attn_scale=SCALE,
        generate_stats=True,
        use_padding_mask=True,
        seq_len_q=seq_lens[0],
        seq_len_kv=seq_lens[1],
        use_causal_mask_bottom_right=True,
    )
    assert stats is not None
    ragged(o.set_output(True), queries, H, DV)
    ragged(stats.set_output(True), queries, H, 1)
    graph.build([cudnn.heur_mode.A])
    values[o] = cudnn.from_numpy(np.zeros((queries.sum(), H, DV), np.float16), handle)
    values[stats] = cudnn.from_numpy(np.zeros((queries.sum(), H, 1), np.float32), handle)
    graph.execute(values, cudnn.from_numpy(np.zeros(max(1, graph.get_workspace_size()), np.uint8), handle))
    first_query, first_key = 0, 0
    for rows, others in zip(queries, keys, strict=True):
        q, k, v = (
            packed[name][begin : begin + count].transpose(1, 0, 2)[np.newaxis]
            for name, begin, count in (("q", first_query, rows), ("k", first_key, others), ("v", first_key, others))
        )
        seen = np.arange(others)[None, :] <= np.arange(rows)[:, None] + others - rows
        wanted_o, wanted_stats = (x[0].transpose(1, 0, 2) for x in expected({"q": q, "k": k, "v": v}, seen=seen))
        found = slice(first_query, first_query + rows)
        np.testing.assert_allclose(values[o].numpy()[found], wanted_o, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(values[stats].numpy()[found], wanted_stats, rtol=1e-5, atol=1e-5)
        first_query, first_key = first_query + rows, first_key + others


def test_engines_find_the_band_of_padded_causal_attention() -> None:
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q, k, v = (graph.tensor(dims) for dims in ((B, H, SQ, D), (B, HK, SKV, D), (B, HK, SKV, DV)))
    lengths = [graph.tensor((B, 1, 1, 1), data_type=cudnn.data_type.INT32) for _ in range(2)]
    o, _ = graph.sdpa(
        q,
        k,
        v,
        use_padding_mask=True,
        seq_len_q=lengths[0],
        seq_len_kv=lengths[1],
        diagonal_band_left_bound=5,
        diagonal_band_right_bound=1,
    )
    o.set_output(True)
    found = match_attention(graph._lowered())
    assert isinstance(found, Attention)
    assert (found.band.left, found.band.right) == (4, 1)
    assert found.band.lengths is not None
    assert found.band.lengths.uid == lengths[1].get_uid()
    assert found.band.query_lengths is not None
    assert found.band.query_lengths.uid == lengths[0].get_uid()
    assert not found.scores.operations


def test_a_score_modifier(case: Case) -> None:
    def soft_cap(graph: Any, scores: Tensor) -> Tensor:
        return graph.mul(graph.tanh(graph.mul(scores, 0.5)), 2.0)

    case.check(expected(case.data, lambda scores: 2 * np.tanh(scores / 2)), score_mod=soft_cap)


def test_dropout(case: Case) -> None:
    """A mask of the caller's; and random numbers, which are the same for the same seed and offset."""
    mask = np.random.default_rng(fresh_seed()).integers(0, 2, (B, H, SQ, SKV)).astype(np.float16)
    o, stats = case.run(dropout=(case.input(mask), 2.0))
    scores = np.einsum(
        "bhqd,bhkd->bhqk", *(np.repeat(case.data[n].astype(float), r, 1) for n, r in (("q", 1), ("k", 2)))
    )
    weights = np.exp(scores * SCALE - stats) * mask * 2
    wanted = weights @ np.repeat(case.data["v"].astype(float), 2, 1)
    np.testing.assert_allclose(o.astype(float), wanted, rtol=2e-3, atol=4e-3)


def test_random_dropout(handle: Handle) -> None:
    found, data = [], drawn()
    for number in (5, 5, 6):
        case = Case(handle, data)
        seed, offset = (case.input(np.array([value], np.int64)) for value in (99, number))
        found.append(case.run(dropout=(0.5, seed, offset))[0])
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()
    case = Case(handle, data)
    dump = case.input(np.zeros((B, H, SQ, SKV), np.float32)).set_output(True)
    seed, offset = (case.input(np.array([value], np.int64)) for value in (99, 5))
    stored, _ = case.run(dropout=(0.5, seed, offset), rng_dump=dump)  # in parts, as the mask is stored
    np.testing.assert_allclose(found[0].astype(float), stored.astype(float), rtol=2e-3, atol=4e-3)


def test_the_mask_of_random_dropout_is_stored(case: Case) -> None:
    dump = case.input(np.zeros((B, H, SQ, SKV), np.float32)).set_output(True)
    seed, offset = (case.input(np.array([value], np.int64)) for value in (99, 5))
    o, stats = case.run(dropout=(0.25, seed, offset), rng_dump=dump)
    mask = case.values[dump].numpy()
    assert set(np.unique(mask)) == {0, 1}
    scores = np.einsum(
        "bhqd,bhkd->bhqk", *(np.repeat(case.data[n].astype(float), r, 1) for n, r in (("q", 1), ("k", 2)))
    )
    wanted = (np.exp(scores * SCALE - stats) * mask / 0.75) @ np.repeat(case.data["v"].astype(float), 2, 1)
    np.testing.assert_allclose(o.astype(float), wanted, rtol=2e-3, atol=4e-3)


def test_gradients_follow_the_forward_pass(case: Case) -> None:
    """Along a direction, the sum of gradients times it is the slope of sum(O * dO)."""
    o, stats = case.run(use_causal_mask_bottom_right=True)
    rng = np.random.default_rng(fresh_seed())
    d_o = rng.standard_normal(o.shape).astype(np.float16)
    graph = pygraph("sdpa_backward", HALF, FLOAT, FLOAT, case.handle)
    arrays = [*(case.data[name] for name in "qkv"), o, d_o, stats]
    tensors = [graph.tensor_like(cudnn.from_numpy(array, case.handle)) for array in arrays]
    gradients = graph.sdpa_backward(*tensors, attn_scale=SCALE, use_causal_mask_bottom_right=True)
    for gradient in gradients:
        gradient.set_output(True).set_data_type(FLOAT)
    graph.build([cudnn.heur_mode.A])
    values = {tensor: cudnn.from_numpy(array, case.handle) for tensor, array in zip(tensors, arrays, strict=True)}
    results = [np.zeros(case.data[name].shape, np.float32) for name in "qkv"]
    values |= {t: cudnn.from_numpy(zeros, case.handle) for t, zeros in zip(gradients, results, strict=True)}
    workspace = cudnn.from_numpy(np.zeros(graph.get_workspace_size(), np.uint8), case.handle)
    graph.execute(values, workspace)
    seen, step = KEY <= QUERY + SKV - SQ, 1e-4
    for name, gradient in zip("qkv", gradients, strict=True):
        direction = rng.standard_normal(case.data[name].shape)
        ends = [
            expected(case.data | {name: case.data[name].astype(np.float64) + sign * step * direction}, seen=seen)[0]
            for sign in (-1, 1)
        ]
        slope = float(((ends[1] - ends[0]) * d_o.astype(np.float64)).sum()) / (2 * step)
        assert (values[gradient].numpy() * direction).sum() == pytest.approx(slope, rel=0.02, abs=0.2), name


def test_the_gradient_of_a_sink(case: Case) -> None:
    """Along a direction, the sum of it times that is the slope of sum(O * dO), over the queries that there are."""
    rng = np.random.default_rng(fresh_seed())
    sink = rng.standard_normal((1, H, 1, 1)).astype(np.float32)
    lengths = [np.array(values, np.int32).reshape(B, 1, 1, 1) for values in ([SQ - 4, 3], [SKV - 9, SKV])]
    seen = (lengths[0] > QUERY) & (lengths[1] > KEY)
    plain, without = expected(case.data, seen=seen)

    def attention(sink: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stats = np.logaddexp(without, sink)
        return plain * np.exp(without - stats), stats

    o, stats = attention(sink)
    stats = np.where(lengths[0] > QUERY, stats, -np.inf)  # as the forward pass has it
    d_o = rng.standard_normal(o.shape).astype(np.float16)
    d_o[1, :, 3:] = np.nan
    graph = pygraph("sdpa_backward", HALF, FLOAT, FLOAT, case.handle)
    arrays = [*(case.data[name] for name in "qkv"), o.astype(np.float16), d_o, stats.astype(np.float32), sink, *lengths]
    tensors = [graph.tensor_like(cudnn.from_numpy(array, case.handle)) for array in arrays]
    gradient = graph.tensor((1, H, 1, 1), data_type=FLOAT).set_output(True)
    *inputs, sinks, queries, keys = tensors
    gradients = graph.sdpa_backward(
        *inputs,
        attn_scale=SCALE,
        use_padding_mask=True,
        seq_len_q=queries,
        seq_len_kv=keys,
        sink_token=sinks,
        dSink_token=gradient,
    )
    for other in gradients:
        other.set_output(True).set_data_type(HALF)
    graph.build([cudnn.heur_mode.A])
    found = cudnn.from_numpy(np.zeros((1, H, 1, 1), np.float32), case.handle)
    values = {tensor: cudnn.from_numpy(array, case.handle) for tensor, array in zip(tensors, arrays, strict=True)}
    others = {t: cudnn.from_numpy(np.zeros(t.get_dim(), np.float16), case.handle) for t in gradients}
    workspace = cudnn.from_numpy(np.zeros(graph.get_workspace_size(), np.uint8), case.handle)
    graph.execute(values | others | {gradient: found}, workspace)
    direction, step = rng.standard_normal(sink.shape), 1e-4
    ends = [attention(sink + sign * step * direction)[0] for sign in (-1, 1)]
    slope = float(((ends[1] - ends[0]) * np.nan_to_num(d_o.astype(float))).sum()) / (2 * step)
    assert (found.numpy() * direction).sum() == pytest.approx(slope, rel=0.02, abs=0.05)
    assert all(np.isfinite(array.numpy()).all() for array in others.values())


def test_gradients_are_one_operation() -> None:
    """With the bounds, the scale and the lengths that were given; outputs lie as q, k and v do."""
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q, o = graph.tensor((B, H, SQ, D)), graph.tensor((B, H, SQ, DV))
    k, v = graph.tensor((B, HK, SKV, D), (SKV * HK * D, D, HK * D, 1)), graph.tensor((B, HK, SKV, DV))
    stats = graph.tensor((B, H, SQ, 1), data_type=FLOAT)
    lengths = [graph.tensor((B, 1, 1, 1), data_type=cudnn.data_type.INT32) for _ in range(2)]
    gradients = graph.sdpa_backward(
        q,
        k,
        v,
        o,
        o,
        stats,
        attn_scale=SCALE,
        use_padding_mask=True,
        seq_len_q=lengths[0],
        seq_len_kv=lengths[1],
        use_causal_mask_bottom_right=True,
        sliding_window_length=7,
        use_deterministic_algorithm=True,
    )
    for gradient in gradients:
        gradient.set_output(True).set_data_type(HALF)
    (operation,) = graph._lowered().operations
    assert [tensor.get_dim() for tensor in gradients] == [tensor.get_dim() for tensor in (q, k, v)]
    assert gradients[1].get_stride() == k.get_stride()
    assert isinstance(operation, SdpaBackward)
    assert (operation.left, operation.right, operation.is_bottom_right) == (6, 0, True)
    assert operation.is_deterministic
    assert operation.scale is not None
    assert operation.scale.constant_value == SCALE
    assert operation.seq_len_q is not None


def test_what_is_not_there_is_refused() -> None:
    graph = pygraph("sdpa", HALF, FLOAT, FLOAT, sm_version=90)
    q = graph.tensor((1, 1, 8, 16))
    with raises(BadParamError, "sdpa.rng_dump", expected="None without dropout"):
        graph.sdpa(q, q, q, rng_dump=q)
    with raises(BadParamError, "sdpa.rng_dump", expected="None beside a mask"):
        graph.sdpa(q, q, q, dropout=(q, 2.0), rng_dump=q)
    with raises(BadParamError, "sdpa.seq_len_kv", expected="None beside cu_seq_len_kv"):
        graph.sdpa(q, q, q, seq_len_kv=q, cu_seq_len_kv=q)
    with raises(BadParamError, "sdpa.cu_seq_len_q.dim", expected="[2, 1, 1, 1]", got="[1, 1, 8, 16]"):
        graph.sdpa(q, q, q, cu_seq_len_q=q)
    with raises(BadParamError, "sdpa.use_causal_mask", expected="one causal mask", got="two"):
        graph.sdpa(q, q, q, use_causal_mask=True, use_causal_mask_bottom_right=True)
    with raises(BadParamError, "sdpa.diagonal_band_right_bound", expected="None with a causal mask", got="0"):
        graph.sdpa(q, q, q, use_causal_mask=True, diagonal_band_right_bound=0)
    with raises(BadParamError, "sdpa.use_padding_mask", expected="seq_len_q and seq_len_kv", got="True"):
        graph.sdpa(q, q, q, use_padding_mask=True)
    with raises(BadParamError, "sdpa.paged_attention_k_table", expected="None without seq_len_kv"):
        graph.sdpa(q, q, q, paged_attention_k_table=q)
    with raises(BadParamError, "sdpa.q.dim", expected="4 extents", got="[8, 16]"):
        graph.sdpa(graph.tensor((8, 16)), q, q)
    with raises(BadParamError, "sdpa.dropout.probability", expected="0 to 1", got="1.0"):
        graph.sdpa(q, q, q, dropout=(1.0, q, q))
    with raises(BadParamError, "sdpa.is_inference", expected="None", got="True"):
        graph.sdpa(q, q, q, is_inference=True, generate_stats=True)
    with raises(BadParamError, "sdpa_backward.dSink_token", expected="None without sink_token"):
        graph.sdpa_backward(q, q, q, q, q, q, dSink_token=q)
    with raises(BadParamError, "sdpa_backward.use_causal_mask", expected="one causal mask", got="two"):
        graph.sdpa_backward(q, q, q, q, q, q, use_causal_mask=True, use_causal_mask_bottom_right=True)
    with raises(BadParamError, "sdpa.score_mod", expected="no other mask"):
        graph.sdpa(q, q, q, use_causal_mask=True, score_mod=lambda graph, scores: scores)
