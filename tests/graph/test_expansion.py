"""Compound operations: what stands in their place gives what they say, and engines find it again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.cases.oracle import evaluate
from lowdnn.enums import DataType, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.expansion import expanded
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.sink_pattern import sink_of
from lowdnn.ops.base import HasPorts, with_tensors
from lowdnn.ops.diagonal_band_mask import DiagonalBandMask
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.ragged import RaggedLoad, RaggedMove, RaggedStore
from lowdnn.ops.sdpa_forward import SdpaForward
from lowdnn.ops.softmax import Softmax
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError
from tests.support.errors import raises

B, H, SQ, SKV, D, DV = 2, 4, 5, 7, 3, 2
SCORES = (B, H, SQ, SKV)
Arrays = dict[int, NDArray[Any]]


@dataclass(frozen=True)
class Part:
    operations: tuple[HasPorts, ...]


def tensor(uid: int, dims: tuple[int, ...], data_type: DataType = DataType.FLOAT, **more: Any) -> Tensor:
    return Tensor(uid, data_type, dims, packed_strides(dims), 16, **more)


def number(uid: int, value: int) -> Tensor:
    return Tensor(uid, DataType.INT32, (1,), (1,), 4, constant_value=value)


Q, K, V, OUT = (
    tensor(uid, dims)
    for uid, dims in enumerate([(B, H, SQ, D), (B, 2, SKV, D), (B, 1, SKV, DV), (B, H, SQ, DV)], start=1)
)
STATS, BIAS = tensor(5, (B, H, SQ, 1)), tensor(6, (1, H, SQ, SKV))
LENGTHS = {"seq_len_q": tensor(7, (B, 1, 1, 1), DataType.INT32), "seq_len_kv": tensor(8, (B, 1, 1, 1), DataType.INT32)}
SUMS = {f"cu_{port}": replace(t, dims=(B + 1, 1, 1, 1), data_type=DataType.INT64) for port, t in LENGTHS.items()}
BEFORE, BETWEEN, AFTER = (tensor(uid, SCORES, is_virtual=True) for uid in (20, 21, 22))


def modifier(bound: Tensor, **more: Any) -> dict[str, Any]:
    """Adds a bias and leaves keys up to ``bound`` behind a query."""
    add = PointwiseOperation(Pointwise(PointwiseMode.ADD, DataType.FLOAT), x=BEFORE, b=BIAS, y=BETWEEN)
    mask = DiagonalBandMask(BETWEEN, AFTER, PointwiseMode.CMP_GE, shift_right_bound=bound, **more)
    return {"subgraph": Part((add, mask)), "subgraph_input_uid": BEFORE.uid, "subgraph_output_uid": AFTER.uid}


def graph_of(*operations: Any) -> OperationGraph:
    return OperationGraph(expanded(operations))


def drawn(graph: OperationGraph) -> Arrays:
    rng = np.random.default_rng(5)
    drawn = {t.uid: rng.standard_normal(t.dims).astype(np.float32) for t in graph.inputs if not t.is_scalar_value}
    given = {7: [3, 5], 8: [6, 2]}
    for t in graph.inputs:
        if t.uid in given:
            values = np.array(given[t.uid])
            is_sum = t.dims[0] == B + 1
            values = np.concatenate([[0], np.cumsum(values)]) if is_sum else values
            drawn[t.uid] = values.reshape(t.dims).astype(np.int64 if is_sum else np.int32)
    return drawn


def attention(inputs: Arrays, scale: float = 1.0, right: int | None = None, lengths: bool = False) -> Arrays:
    """By uid, from the formula."""
    q, k, v = (np.repeat(inputs[uid], H // inputs[uid].shape[1], axis=1).astype(float) for uid in (1, 2, 3))
    scores = scale * np.einsum("bhqd,bhkd->bhqk", q, k)
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    seen = np.ones(SCORES, bool)
    if right is not None:
        scores = scores + inputs[BIAS.uid]
        seen &= column <= row + right
    if lengths:
        seen &= (row < np.array([3, 5])[:, None, None, None]) & (column < np.array([6, 2])[:, None, None, None])
    exponentials = np.where(seen, np.exp(scores), 0)
    total = exponentials.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return {OUT.uid: exponentials @ v / np.where(total == 0, 1, total), STATS.uid: np.log(total)}


def assert_gives(graph: OperationGraph, inputs: Arrays, expected: Arrays) -> None:
    found = evaluate(graph, inputs)
    for uid, values in expected.items():
        np.testing.assert_allclose(found[uid], values, rtol=1e-5, atol=1e-6)


def test_attention_alone() -> None:
    graph = graph_of(SdpaForward(Q, K, V, OUT, STATS))
    assert isinstance(match_attention(graph), Attention)
    inputs = drawn(graph)
    assert_gives(graph, inputs, attention(inputs))


@pytest.mark.parametrize("lengths", [LENGTHS, SUMS], ids=["single", "cumulated"])
def test_attention_with_a_modifier_and_lengths(lengths: dict[str, Tensor]) -> None:
    scale = Tensor(9, DataType.FLOAT, (1,), (1,), 4, constant_value=0.5)
    graph = graph_of(SdpaForward(Q, K, V, OUT, STATS, scale, **lengths, **modifier(number(10, 1))))
    inputs = drawn(graph)
    assert_gives(graph, inputs, attention(inputs, 0.5, right=1, lengths=True))


@pytest.mark.parametrize("lengths", [LENGTHS, SUMS], ids=["single", "cumulated"])
def test_queries_behind_their_length_have_no_sink(lengths: dict[str, Tensor]) -> None:
    scores, weights = (replace(tensor(uid, SCORES), is_virtual=True) for uid in (19, 20))
    softmax = Softmax(scores, weights, stats=STATS, sink=tensor(21, (1, H, 1, 1)))
    graph = graph_of(SdpaForward(Q, K, V, OUT, softmax=softmax, **lengths))
    inputs = drawn(graph)
    without = attention(inputs, lengths=True)[STATS.uid]
    is_behind = np.arange(SQ)[:, None] >= np.array([3, 5])[:, None, None, None]
    wanted = np.where(is_behind, -np.inf, np.logaddexp(without, inputs[21]))
    np.testing.assert_allclose(evaluate(graph, inputs)[STATS.uid], wanted, rtol=1e-5, atol=1e-6)
    if lengths is LENGTHS:
        found = match_attention(graph)
        assert isinstance(found, Attention), found
        assert found.cuts_sink
        assert found.softmax.sink == softmax.sink


def test_a_sink_that_other_lengths_mask_is_no_attention() -> None:
    scores, weights = (replace(tensor(uid, SCORES), is_virtual=True) for uid in (19, 20))
    softmax = Softmax(scores, weights, sink=tensor(21, (1, H, 1, 1)))
    graph = graph_of(SdpaForward(Q, K, V, OUT, softmax=softmax, **LENGTHS))
    (masked,) = (op.sink for op in graph.operations if isinstance(op, Softmax) and op.sink is not None)
    lengths = LENGTHS["seq_len_q"]
    others = {lengths.uid: replace(lengths, uid=1000)}
    mask = sink_of(graph, masked).operations
    changed = OperationGraph([with_tensors(op, others) if op in mask else op for op in graph.operations])
    assert "expected a mask of the scores of queries whose sink it masks" in str(match_attention(changed))


def test_engines_find_the_band_of_a_modifier() -> None:
    graph = graph_of(SdpaForward(Q, K, V, OUT, **LENGTHS, **modifier(number(10, 1))))
    found = match_attention(graph)
    assert isinstance(found, Attention), found
    assert (found.band.left, found.band.right) == (None, 1)
    assert (found.band.query_lengths, found.band.lengths) == tuple(LENGTHS.values())
    assert [t.uid for t in found.scores.loads] == [BIAS.uid]


def test_engines_find_a_mask_of_tiles() -> None:
    mask = tensor(18, (B, H, 1, 1), DataType.UINT8)
    graph = graph_of(SdpaForward(Q, K, V, OUT, STATS, block_mask=mask, **LENGTHS, **modifier(number(10, 1))))
    found = match_attention(graph)
    assert isinstance(found, Attention), found
    assert (found.band.right, found.band.lengths, found.band.blocks) == (1, LENGTHS["seq_len_kv"], mask)
    inputs = drawn(graph) | {mask.uid: np.array([1, 0, 1, 0], np.uint8).reshape(1, H, 1, 1).repeat(B, 0)}
    expected = attention(inputs, right=1, lengths=True)
    for uid, nothing in ((OUT.uid, 0), (STATS.uid, -np.inf)):
        expected[uid][:, 1::2] = nothing
    assert_gives(graph, inputs, expected)


def test_statistics_of_a_softmax() -> None:
    largest, total = replace(STATS, uid=11), replace(STATS, uid=12)
    softmax = Softmax(tensor(13, SCORES), tensor(14, SCORES), max=largest, sum_exp=total)
    graph = graph_of(SdpaForward(Q, K, V, OUT, STATS, softmax=softmax))
    inputs = drawn(graph)
    assert_gives(graph, inputs, attention(inputs))
    found = evaluate(graph, inputs)
    np.testing.assert_allclose(found[largest.uid] + np.log(found[total.uid]), found[STATS.uid], rtol=1e-5)


def test_dropout() -> None:
    """The dump says which weights the output is the sum of."""
    seed, offset = (tensor(uid, (1, 1, 1, 1), DataType.INT64) for uid in (15, 16))
    dump = tensor(17, SCORES)
    graph = graph_of(
        SdpaForward(Q, K, V, OUT, dropout_seed=seed, dropout_offset=offset, rng_dump=dump, dropout_probability=0.25)
    )
    inputs = drawn(graph) | {uid: np.full((1, 1, 1, 1), uid, np.int64) for uid in (15, 16)}
    found = evaluate(graph, inputs)
    q, k = (np.repeat(inputs[uid], H // inputs[uid].shape[1], axis=1) for uid in (1, 2))
    exponentials = np.exp(np.einsum("bhqd,bhkd->bhqk", q, k))
    weights = exponentials / exponentials.sum(-1, keepdims=True) * found[dump.uid] / 0.75
    np.testing.assert_allclose(found[OUT.uid], weights @ inputs[V.uid], rtol=1e-5, atol=1e-6)
    assert set(np.unique(found[dump.uid])) == {0.0, 1.0}


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("mode", [PointwiseMode.CMP_GE, PointwiseMode.CMP_GT, PointwiseMode.CMP_LE])
@pytest.mark.parametrize("lengths", [{}, LENGTHS, SUMS], ids=["full", "single", "cumulated"])
def test_band_mask(is_left: bool, mode: PointwiseMode, lengths: dict[str, Tensor]) -> None:
    x, y, fill = tensor(30, SCORES), tensor(31, SCORES), Tensor(32, DataType.FLOAT, (1,), (1,), 4, constant_value=-3.0)
    bound = {"left_bound" if is_left else "shift_right_bound": number(33, 2)}
    graph = graph_of(DiagonalBandMask(x, y, mode, fill, **bound, **lengths))
    inputs = drawn(graph)
    shift = np.array([6 - 3, 2 - 5] if lengths else [0, 0])[:, None, None, None]
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    left, right = (column + 2 - shift, row) if is_left else (row + shift + 2, column)
    compare = {
        PointwiseMode.CMP_GE: np.greater_equal,
        PointwiseMode.CMP_GT: np.greater,
        PointwiseMode.CMP_LE: np.less_equal,
    }
    expected = np.where(compare[mode](left, right), inputs[30], np.float32(-3))
    np.testing.assert_array_equal(evaluate(graph, inputs)[31], expected)


def test_band_mask_with_one_length_for_all_batches_and_a_bound_of_float() -> None:
    x, y = tensor(30, SCORES), tensor(31, SCORES)
    lengths = {
        "seq_len_q": tensor(5, (1, 1, 1, 1), DataType.INT32),
        "seq_len_kv": tensor(6, (1, 1, 1, 1), DataType.INT32),
    }
    bound = Tensor(33, DataType.FLOAT, (1,) * 4, (1,) * 4, 4)
    graph = graph_of(DiagonalBandMask(x, y, PointwiseMode.CMP_GT, left_bound=bound, **lengths))
    inputs = drawn(graph) | {uid: np.full((1,) * 4, uid, np.int32) for uid in (5, 6)}
    inputs[33] = np.full((1,) * 4, 2, np.float32)
    row, column = np.arange(SQ)[:, None], np.arange(SKV)
    expected = np.where(column + 2 - 6 + 5 > row, inputs[30], -np.inf)
    np.testing.assert_array_equal(evaluate(graph, inputs)[31], expected)


def test_what_is_refused() -> None:
    with raises(BadParamError, "sdpa_forward.subgraph_input_uid", expected="the uid of an input", got="21"):
        SdpaForward(Q, K, V, OUT, **(modifier(number(10, 1)) | {"subgraph_input_uid": BETWEEN.uid}))
    with raises(BadParamError, "sdpa_forward.subgraph_output_uid", expected="a uid that it writes", got="None"):
        SdpaForward(Q, K, V, OUT, **(modifier(number(10, 1)) | {"subgraph_output_uid": None}))
    with raises(BadParamError, "sdpa_forward.dropout_seed", expected="a tensor with dropout", got="none"):
        SdpaForward(Q, K, V, OUT, dropout_probability=0.5)
    with raises(BadParamError, "sdpa_forward.dropout_probability", expected="0 to 1, not 1", got="1"):
        SdpaForward(Q, K, V, OUT, dropout_probability=1.0)
    with raises(BadParamError, "sdpa_forward.rng_dump", expected="none without dropout", got="17"):
        SdpaForward(Q, K, V, OUT, rng_dump=tensor(17, SCORES))
    with raises(BadParamError, "sdpa_forward.seq_len_q", expected="none beside cu_seq_len_q", got="uid 7"):
        SdpaForward(Q, K, V, OUT, **LENGTHS, **SUMS)
    with raises(ShapeMismatchError, "sdpa_forward.o.dims", expected="[2, 4, 5, 2]", got="[2, 4, 5, 3]"):
        SdpaForward(Q, K, V, replace(Q, uid=4))
    softmax = Softmax(tensor(13, SCORES), tensor(14, SCORES), stats=replace(STATS, uid=11))
    with raises(BadParamError, "sdpa_forward.stats", expected="none beside those of the softmax", got="both"):
        SdpaForward(Q, K, V, OUT, STATS, softmax=softmax)
    bounds = {"left_bound": number(33, 2), "shift_right_bound": number(34, 2)}
    with raises(BadParamError, "diagonal_band_mask.left_bound", expected="none beside shift_right_bound", got="both"):
        DiagonalBandMask(BEFORE, AFTER, PointwiseMode.CMP_GE, **bounds)
    with raises(BadParamError, "diagonal_band_mask.mode", expected="CMP_GE", got="CMP_EQ"):
        DiagonalBandMask(BEFORE, AFTER, PointwiseMode.CMP_EQ)
    with raises(ShapeMismatchError, "diagonal_band_mask.seq_len_q.dims", expected="[2, 1, 1, 1]", got="[3, 1, 1, 1]"):
        lengths = tensor(7, (3, 1, 1, 1), DataType.INT32)
        DiagonalBandMask(BEFORE, AFTER, PointwiseMode.CMP_GE, seq_len_q=lengths)


@pytest.mark.parametrize("paged", ["k", "v", "kv"])
def test_pages_of_a_cache(paged: str) -> None:
    """Two rows in a page, four entries of each batch; the last row that they have room for does not count."""
    rng, rows = np.random.default_rng(5), 2
    plain = graph_of(SdpaForward(Q, K, V, OUT, **LENGTHS))
    values = drawn(plain)
    wanted = evaluate(plain, values, rounds_virtual=False)[OUT.uid]
    tables, given = {}, {"k": K, "v": V}
    for name in paged:
        own = given[name]
        container = tensor(own.uid, (9, own.dims[1], rows, own.dims[3]))
        table = tensor(30 + own.uid, (B, 1, 4, 1), DataType.INT32)
        pages = rng.permutation(9)[: B * 4].reshape(table.dims)
        held = np.zeros(container.dims, np.float32)
        longer = np.pad(values[own.uid], ((0, 0), (0, 0), (0, 1), (0, 0)))
        for batch, entry in np.ndindex(B, 4):
            held[pages[batch, 0, entry, 0]] = longer[batch, :, entry * rows : (entry + 1) * rows]
        given[name], tables[f"page_table_{name}"] = container, table
        values |= {own.uid: held, table.uid: pages.astype(np.int32)}
    softmax = Softmax(BEFORE, AFTER, stats=STATS)
    graph = graph_of(SdpaForward(Q, *given.values(), OUT, **LENGTHS, **tables, softmax=softmax))
    np.testing.assert_allclose(evaluate(graph, values, rounds_virtual=False)[OUT.uid], wanted, rtol=1e-6)
    found = match_attention(graph)
    assert isinstance(found, Attention), found
    assert (found.k_load is not None, found.v_load is not None) == ("k" in paged, "v" in paged)


def test_ragged_tensors_are_loaded_and_stored() -> None:
    """Each once, with as many rows as there may be; between them the operations are virtual tensors'."""
    offsets = tensor(30, (B + 1, 1, 1, 1), DataType.INT64)
    q, k, v, o = (
        replace(t, strides=packed_strides(t.dims, (0, 2, 1, 3)), ragged_offset=offsets, ragged_offset_multiplier=3)
        for t in (Q, K, V, OUT)
    )
    graph = graph_of(SdpaForward(q, k, v, o, **LENGTHS))
    moves = [op for op in graph.operations if isinstance(op, RaggedLoad | RaggedStore)]
    assert [(type(op), op.packed.uid, op.packed.dims) for op in moves] == [
        (RaggedLoad, Q.uid, (1, H, B * SQ, D)),
        (RaggedLoad, K.uid, (1, 2, B * SKV, D)),
        (RaggedLoad, V.uid, (1, 1, B * SKV, DV)),
        (RaggedStore, OUT.uid, (1, H, B * SQ, DV)),
    ]
    assert {(op.offsets, op.multiplier, op.padded.is_virtual) for op in moves} == {(offsets, 3, True)}
    found = match_attention(graph)
    assert isinstance(found, Attention), found
    assert found.ragged == {op.packed.uid: op for op in moves}
    assert OperationGraph.from_json(graph.to_json()).key == graph.key


def test_a_ragged_tensor_that_is_read_before_its_writer_is_given() -> None:
    """The tensor is not loaded: its reader gets the stored values."""
    offsets = tensor(30, (B + 1, 1, 1, 1), DataType.INT64)
    o = replace(OUT, strides=packed_strides(OUT.dims, (0, 2, 1, 3)), ragged_offset=offsets)
    active = PointwiseOperation(Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT), x=o, y=tensor(31, OUT.dims))
    graph = graph_of(active, SdpaForward(Q, K, V, o))
    assert [type(op) for op in graph.operations if isinstance(op, RaggedMove)] == [RaggedStore]


def test_statistics_inside_may_be_ragged() -> None:
    offsets = tensor(30, (B + 1, 1, 1, 1), DataType.INT64)
    of_rows = [
        replace(tensor(uid, STATS.dims, ragged_offset=offsets), strides=(H * SQ, 1, H, 1)) for uid in (40, 41, 42)
    ]
    softmax = Softmax(BEFORE, AFTER, *of_rows)
    graph = graph_of(SdpaForward(Q, K, V, OUT, softmax=softmax))
    stored = [op.packed.uid for op in graph.operations if isinstance(op, RaggedStore)]
    assert stored == [40, 41, 42]


def test_page_tables_may_be_ragged() -> None:
    """Attention reads the pages behind a load of the table, which comes before all others."""
    table = tensor(30, (B, 1, 4, 1), DataType.INT32, ragged_offset=tensor(32, (B + 1, 1, 1, 1), DataType.INT32))
    container = tensor(2, (9, 2, 2, 16), DataType.HALF)
    q, v, o = (tensor(one.uid, (*one.dims[:3], 16), DataType.HALF) for one in (Q, V, OUT))
    q = replace(q, ragged_offset=tensor(33, (B + 1, 1, 1, 1), DataType.INT32), strides=(9, 16, 16 * H, 1))
    graph = graph_of(SdpaForward(q, container, v, o, page_table_k=table, **LENGTHS))
    assert isinstance(graph.operations[0], RaggedLoad)
    assert graph.operations[0].packed.uid == 30
    behind = graph.subgraph(graph.operations[1:])
    found = match_attention(behind)
    assert isinstance(found, Attention), found
    assert found.k_load is not None


def test_what_cannot_be_ragged_or_in_pages_is_refused() -> None:
    offsets = tensor(30, (5, 1, 1, 1), DataType.INT64)
    x, y = (tensor(uid, (4, 6), ragged_offset=offsets) for uid in (1, 2))
    operation = PointwiseOperation(Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT), x=x, y=y)
    table = tensor(30, (B, 1, 4, 1), DataType.INT32)
    with raises(BadParamError, "sdpa_forward.seq_len_kv", expected="a tensor with page_table_v", got="none"):
        SdpaForward(Q, K, tensor(3, (9, 1, 2, DV)), OUT, page_table_v=table)
    with raises(NotSupportedError, "tensor uid 1.ragged_offset", expected="[batch, heads, rows, size]", got="[4, 6]"):
        expanded((operation,))
    where = "operation_graph: tensor uid 1.ragged_offset"
    with raises(NotSupportedError, where, expected="None where nothing loads or stores it", got="a tensor"):
        OperationGraph((operation,))
