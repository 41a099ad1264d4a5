"""Attention forward, on each engine that has it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.compare import differences, expected_outputs
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.engines.base import Engine
from lowdnn.engines.registry import ENGINES as ALL_ENGINES
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.attention_pattern import Attention, match_attention
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import with_tensors
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import check_case, run_plan

MMA, WGMMA = AttentionMma(), AttentionWgmma()
ENGINES: tuple[Engine, ...] = (MMA, WGMMA)
COMPOSITE = next(engine for engine in ALL_ENGINES if engine.name == "composite")

of_each_engine = pytest.mark.parametrize("engine", ENGINES, ids=[engine.name for engine in ENGINES])

#: Each crosses several features; sizes are odd on purpose.
LINES = (
    "sdpa b=2 h=2 q=33 kv=77 d=24 dv=40 lengths=yes stats=yes layout=bshd",
    "sdpa b=1 h=4 hk=2 q=70 kv=50 d=64 causal=bottom_right stats=yes dtype=fp16",
    "sdpa b=1 h=4 hk=1 hv=2 q=65 kv=129 d=16 causal=top_left left=20",
    "sdpa b=2 h=1 q=19 kv=70 d=128 left=5 right=9 stats=yes layout=sbhd",
    "sdpa b=1 h=2 q=33 kv=77 d=64 scores=bias dropout=0.25 dtype=fp16",
    "sdpa b=1 h=1 q=20 kv=40 d=192 dv=128 scores=tanh right=3",
    "sdpa b=1 h=1 q=70 kv=33 d=256 dtype=fp16",
    "sdpa b=1 h=2 q=1 kv=1 d=8 stats=yes",
    "sdpa b=2 h=2 q=1 kv=150 d=64 lengths=yes",
    "sdpa b=1 h=2 q=24 kv=64 d=64 out=fp32",
    "sdpa b=1 h=1 q=5 kv=700 d=16 stats=yes",
    "sdpa b=1 h=1 q=20 kv=100 d=256 dropout=0.25 dtype=fp16",
    "sdpa b=4 h=2 hk=1 q=140 kv=100 d=16 causal=top_left lengths=both stats=yes",
    "sdpa b=1 h=2 hk=1 q=140 kv=400 d=16 right=60 blocks=yes stats=yes",
    "sdpa b=2 h=3 q=70 kv=150 d=16 causal=bottom_right lengths=yes sink=yes stats=log2 layout=bshd",
    "sdpa b=4 h=4 hk=2 q=30 kv=90 d=16 lengths=both sink=yes stats=log2",
    "sdpa b=4 h=2 q=30 kv=90 d=16 lengths=both sink=all stats=lse",
)


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


def matched(line: str) -> Attention:
    found = match_attention(graph_of(line))
    assert isinstance(found, Attention), found
    return found


@of_each_engine
@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, engine: Engine, line: str) -> None:
    """``WGMMA`` with few keys at a time, which compile in half the time and make several tiles."""
    check_case(device, engine, line, {KnobType.TILE_N: 32} if engine is WGMMA else {})


@of_each_engine
@pytest.mark.parametrize("queries", [64, 128])
def test_tiles_of_queries(racing: Runtime, engine: Engine, queries: int) -> None:
    line = "sdpa b=1 h=2 hk=1 q=100 kv=130 d=32 causal=top_left stats=yes"
    check_case(racing, engine, line, {KnobType.TILE_M: queries})


@pytest.mark.parametrize("kib", [100, 160])
def test_tiles_fit_a_device_with_less_shared_memory(racing: Runtime, kib: int) -> None:
    arch = SM_90A.with_shared_bytes(kib << 10, (kib + 1) << 10)
    graph = parse_case("sdpa b=1 h=1 q=80 kv=150 d=128").graph()
    (launch,) = WGMMA.plan(graph, arch, {}).launches
    (usual,) = WGMMA.plan(graph, SM_90A, {}).launches
    assert launch.shared_bytes <= kib << 10 < usual.shared_bytes
    check_case(racing, WGMMA, "sdpa b=1 h=1 q=80 kv=150 d=128", {}, arch)


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
def test_tiles_without_a_mask_lie_between_those_with_one(racing: Runtime, dtype: str) -> None:
    """A block has several tiles of queries; keys at the end of one tile's band do not exist."""
    line = f"sdpa b=1 h=1 q=150 kv=330 d=16 left=100 right=150 stats=yes dtype={dtype}"
    check_case(racing, WGMMA, line, {KnobType.TILE_M: 64, KnobType.TILE_N: 32}, replace(SM_90A, sm_count=1))


@of_each_engine
def test_tiles_that_are_passed_over(racing: Runtime, engine: Engine) -> None:
    """At either end and in the middle, of one head or of both; what lies there is not read."""
    case = parse_case("sdpa b=1 h=2 hk=1 q=200 kv=1300 d=8 blocks=yes stats=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor.uid for tensor in graph.inputs}
    bits = np.array([0b10000100, 0, 0b00001100, 0b100, 0, 0, 0b11000000, 0], np.uint8)
    inputs[of["blocks"]] = bits.reshape(1, 2, 2, 2)
    for part in (slice(0, 256), slice(512, 768)):  # tiles that no row of either head sees
        inputs[of["k"]][..., part] = inputs[of["v"]][:, :, part] = 0x7FC0
    results = run_plan(racing, engine.plan(graph, SM_90A, {}), graph, inputs)
    zeroed = {uid: np.where(values == 0x7FC0, 0, values).astype(values.dtype) for uid, values in inputs.items()}
    for uid, expected in expected_outputs(graph, zeroed, (), case.length).items():
        assert not differences(results[uid], expected.values, graph.tensors[uid].data_type, expected.allowed)


@of_each_engine
def test_a_mask_of_tiles_may_lie_anyhow(device: Runtime, engine: Engine) -> None:
    """Neighbouring bytes of a row lie apart, rows of tiles side by side."""
    case = parse_case("sdpa b=1 h=2 hk=1 q=140 kv=1300 d=8 blocks=yes stats=yes")
    graph = case.graph()
    (mask,) = (tensor for tensor in graph.inputs if tensor.name == "blocks")
    moved = {mask.uid: replace(mask, strides=(40, 20, 1, 5))}
    graph = OperationGraph([with_tensors(op, moved) for op in graph.operations])
    inputs = case.inputs(fresh_seed(), exact=False)
    bits = np.array([0b01010011, 0b101, 0b00001100, 0b110, 0b1000, 0b1, 0b11000000, 0b010], np.uint8)
    inputs[mask.uid] = bits.reshape(1, 2, 2, 2)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    for uid, expected in expected_outputs(graph, inputs, (), case.length).items():
        assert not differences(results[uid], expected.values, graph.tensors[uid].data_type, expected.allowed)


@pytest.mark.parametrize("queries", [128, 192])
def test_warpgroups_take_turns(racing: Runtime, queries: int) -> None:
    line = "sdpa b=2 h=1 q=150 kv=520 d=16 causal=bottom_right lengths=yes stats=yes"
    check_case(racing, WGMMA, line, {KnobType.TILE_M: queries})


def test_values_are_cleared_between_turns(racing: Runtime) -> None:
    """A block has several tiles of queries, each with keys beyond a length."""
    few = replace(SM_90A, sm_count=2)
    check_case(racing, WGMMA, "sdpa b=6 h=1 q=100 kv=100 d=16 lengths=yes", {KnobType.TILE_M: 128}, few)


@of_each_engine
def test_a_query_without_keys_gives_nothing(device: Runtime, engine: Engine) -> None:
    """The first 20 of 50 queries stand before the first of 30 keys; the second batch has none."""
    line = "sdpa b=2 h=1 q=50 kv=30 d=16 causal=bottom_right lengths=yes stats=yes"
    case = parse_case(line)
    graph = case.graph()
    inputs = case.inputs(fresh_seed(), exact=False)
    (lengths,) = (tensor for tensor in graph.inputs if tensor.name == "lengths")
    inputs[lengths.uid] = np.array([30, 0], np.int32).reshape(lengths.dims)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    found = {tensor.name: results[tensor.uid].reshape(2, 50, -1) for tensor in graph.outputs}
    assert not found["c"][0, :20].any()
    assert found["c"][0, 20:].any()
    assert not found["c"][1].any()
    assert np.isneginf(found["stats"][0, :20]).all()
    assert np.isfinite(found["stats"][0, 20:]).all()
    assert np.isneginf(found["stats"][1]).all()
    assert not found["sum_exp"][1].any()


@of_each_engine
def test_a_query_without_keys_has_its_sink_as_statistics(device: Runtime, engine: Engine) -> None:
    """The first 20 of 50 queries stand before the first of 30 keys; the sink of the second head is none."""
    case = parse_case("sdpa b=1 h=2 q=50 kv=30 d=16 causal=bottom_right sink=yes stats=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (sink,) = (tensor for tensor in graph.inputs if tensor.name == "sink")
    inputs[sink.uid] = np.array([3, -np.inf], np.float32).reshape(sink.dims)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    found = {tensor.name: results[tensor.uid].reshape(2, 50, -1)[:, :20] for tensor in graph.outputs}
    assert not found["c"].any()
    for name in ("stats", "max"):
        np.testing.assert_array_equal(found[name], np.broadcast_to([[[3]], [[-np.inf]]], (2, 20, 1)))
    np.testing.assert_array_equal(found["sum_exp"], np.broadcast_to([[[1]], [[0]]], (2, 20, 1)))


@pytest.mark.parametrize("engine", [*ENGINES, AttentionDecode(), COMPOSITE], ids=lambda engine: engine.name)
@pytest.mark.parametrize("sinks", ["yes", "all"])
def test_the_sink_of_queries_behind_their_length(device: Runtime, engine: Engine, sinks: str) -> None:
    """Such queries have no sink, as in cuDNN; queries that see no key for another reason have theirs."""
    size = 12 if engine is COMPOSITE else 16  # a size that no other engine takes
    case = parse_case(f"sdpa b=3 h=2 q=50 kv=30 d={size} causal=bottom_right lengths=both sink={sinks} stats=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor for tensor in graph.inputs}
    for name, values in {"queries": (50, 33, 0), "lengths": (30, 12, 30), "sink": (3, -1)}.items():
        inputs[of[name].uid] = np.array(values, inputs[of[name].uid].dtype).reshape(of[name].dims)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    found = {tensor.name: results[tensor.uid] for tensor in graph.outputs}
    is_behind = np.arange(50) >= np.array([50, 33, 0])[:, None]
    without_keys = (np.arange(50) < 20) | is_behind
    has_none = is_behind[:, None] & (sinks == "yes") & np.ones((1, 2, 1), bool)
    has_sink = without_keys[:, None] & ~has_none
    assert has_sink.any()
    for rows, largest, total in ((has_none, np.full(2, -np.inf), 0), (has_sink, np.array([3, -1]), 1)):
        expected = np.broadcast_to(largest[:, None], rows.shape)[rows]
        np.testing.assert_array_equal(found["stats"][..., 0][rows], expected)
        np.testing.assert_array_equal(found["max"][..., 0][rows], expected)
        assert (found["sum_exp"][..., 0][rows] == total).all()
        assert not found["c"][rows].any()
    assert np.isfinite(found["stats"][..., 0][~has_none]).all()


def test_a_sink_that_is_masked_otherwise_is_not_taken() -> None:
    """The mask is by lengths of keys, or by lengths of queries where scores have no mask of theirs."""
    graph = graph_of("sdpa b=3 h=2 q=50 kv=30 d=16 lengths=both sink=yes stats=yes")
    queries, lengths = (next(t for t in graph.inputs if t.name == name) for name in ("queries", "lengths"))
    assert matched("sdpa b=3 h=2 q=50 kv=30 d=16 lengths=both sink=yes").cuts_sink
    assert not matched("sdpa b=3 h=2 q=50 kv=30 d=16 lengths=both sink=all").cuts_sink
    (sink,) = (tensor for tensor in graph.inputs if tensor.name == "sink")
    selects = [op for op in graph.consumers(sink) if getattr(op, "mode", None) is PointwiseMode.BINARY_SELECT]
    assert isinstance(selects[0], PointwiseOperation)
    comparison = graph.producer(selects[0].operands["t"])
    others = replace(lengths, data_type=queries.data_type, uid=max(graph.tensors) + 1)
    operations = [with_tensors(op, {queries.uid: others}) if op is comparison else op for op in graph.operations]
    changed = OperationGraph(operations)
    for engine in ENGINES:
        assert "expected a mask of the scores of queries whose sink it masks" in str(engine.refuse(changed, SM_90A))


@of_each_engine
def test_keys_beyond_the_length_may_be_anything(racing: Runtime, engine: Engine) -> None:
    line = "sdpa b=2 h=1 q=70 kv=150 d=16 lengths=yes"
    case = parse_case(line)
    graph = case.graph()
    inputs = case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor.uid for tensor in graph.inputs}
    existing = (140, 3)
    inputs[of["lengths"]] = np.array(existing, np.int32).reshape(2, 1, 1, 1)
    plan = engine.plan(graph, SM_90A, {})
    expected = run_plan(racing, plan, graph, inputs)
    nan = 0x7FC0
    for batch, length in enumerate(existing):
        inputs[of["k"]][batch, ..., length:] = nan
        inputs[of["v"]][batch, :, length:] = nan
    found = run_plan(racing, plan, graph, inputs)
    for tensor in graph.outputs:
        np.testing.assert_array_equal(found[tensor.uid], expected[tensor.uid])


@of_each_engine
def test_scores_of_any_size(device: Runtime, engine: Engine) -> None:
    """Log-sum-exps of a few hundred, on both sides of 0, neither overflow nor vanish."""
    line = "sdpa b=1 h=1 q=16 kv=40 d=16 stats=yes"
    case = parse_case(line)
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (q, *_) = graph.inputs
    inputs[q.uid] = np.where(np.arange(16)[:, None] % 2, inputs[q.uid] + 0x0400, inputs[q.uid]).astype(np.uint16)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    expected = evaluate(graph, inputs, rounds_virtual=False)
    stats = next(tensor for tensor in graph.outputs if tensor.name == "stats")
    assert np.abs(expected[stats.uid]).max() > 200
    np.testing.assert_allclose(results[stats.uid], expected[stats.uid], rtol=2e-6)


@pytest.mark.parametrize("size", [8, 40, 64, 96, 128, 192, 256])
def test_sizes_have_kernels_that_fit(size: int) -> None:
    for line in (f"sdpa b=1 h=1 q=200 kv=70 d={size}", f"sdpa b=1 h=1 q=9 d={size} dtype=fp16 causal=top_left"):
        for engine, arch in ((MMA, SM_80), (MMA, SM_90A), (WGMMA, SM_90A)):
            plan = engine.plan(graph_of(line), arch, {})
            assert all(launch.shared_bytes <= arch.shared_bytes_per_block for launch in plan.launches)


def test_masks_leave_a_band() -> None:
    plain = matched("sdpa b=1 h=1 q=20 kv=30 d=16")
    assert (plain.band.left, plain.band.right, plain.band.lengths) == (None, None, None)
    assert plain.band.scores.uid == plain.softmax.x.uid
    causal = matched("sdpa b=1 h=1 q=20 kv=30 d=16 causal=bottom_right left=7 lengths=yes")
    assert (causal.band.left, causal.band.right) == (7 - 10, 10)
    assert causal.band.lengths is not None
    assert len(causal.scores.operations) == 1  # the scale
    narrow = matched("sdpa b=1 h=1 q=20 kv=30 d=16 left=0 right=0")
    assert (narrow.band.left, narrow.band.right) == (0, 0)


@of_each_engine
def test_work_is_that_of_the_band(engine: Engine) -> None:
    full, causal, narrow = (
        engine.plan(graph_of(f"sdpa b=1 h=2 q=768 d=64 {mask}"), SM_90A, {}).work.flops
        for mask in ("", "causal=top_left", "causal=top_left left=15")
    )
    assert full == 4 * 2 * 768 * 768 * 64
    assert causal == pytest.approx(full / 2, rel=0.02)
    assert narrow == pytest.approx(full * 16 / 768, rel=0.05)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sdpa b=1 h=1 q=20 d=20", "q's head: expected a multiple of 8 up to 256, got 20"),
        ("sdpa b=1 h=1 q=20 d=16 dv=264", "v's head: expected a multiple of 8 up to 256, got 264"),
        ("sdpa b=1 h=1 q=20 d=16 dtype=fp32", "first product's a: expected HALF or BFLOAT16"),
        ("sdpa b=1 h=1 q=20 d=16 align=8", "alignment_bytes: expected a multiple of 16, got 8"),
        ("matmul m=4 n=4 k=4", "operations: expected two MatmulOperation and one Softmax between them, got 1 and 0"),
        ("softmax dims=4x4", "operations: expected two MatmulOperation and one Softmax between them, got 0 and 1"),
    ],
)
@of_each_engine
def test_refusals_say_why(engine: Engine, line: str, reason: str) -> None:
    assert reason in str(engine.refuse(graph_of(line), SM_90A))


@of_each_engine
def test_a_stored_score_is_refused(engine: Engine) -> None:
    graph = graph_of("sdpa b=1 h=1 q=20 d=16")
    stored = replace(matched("sdpa b=1 h=1 q=20 d=16").first.c, is_virtual=False)
    changed = OperationGraph(with_tensors(op, {stored.uid: stored}) for op in graph.operations)
    assert "expected a virtual tensor, got one that is stored" in str(engine.refuse(changed, SM_90A))


@pytest.mark.parametrize(
    ("name", "strides", "reason"),
    [
        ("q", (0, 644, 16, 1), "multiples of 8 beside a head's, got [0, 644, 16]"),
        ("v", (0, 1280, 32, 2), "1 along a head's elements, got 2"),
    ],
)
def test_heads_that_no_copy_of_16_bytes_reads_are_refused(name: str, strides: tuple[int, ...], reason: str) -> None:
    graph = graph_of("sdpa b=1 h=2 q=20 kv=40 d=16")
    (tensor,) = (tensor for tensor in graph.inputs if tensor.name == name)
    moved = {tensor.uid: replace(tensor, strides=strides)}
    assert reason in str(MMA.refuse(OperationGraph([with_tensors(op, moved) for op in graph.operations]), SM_90A))


@pytest.mark.parametrize(
    ("scale", "factor", "between", "expected"),
    [
        (0.5, 1.0, DataType.HALF, (0, 0)),
        (-0.5, 1.0, DataType.HALF, (1, 0)),
        (0.5, 2.0, DataType.HALF, (0, 1)),
        (0.5, 1.0, DataType.BFLOAT16, (0, 1)),
    ],
)
def test_what_is_more_than_a_scale_and_a_conversion(
    scale: float, factor: float, between: DataType, expected: tuple[int, int]
) -> None:
    """Scores times a number below 0, weights times a number, and weights that a third type rounds."""
    builder = CaseBuilder()
    q, k, v = (builder.tensor((1, 1, rows, 16), DataType.HALF) for rows in (20, 40, 40))
    scores = builder.matmul(q, builder.transpose(k, (0, 1, 3, 2)))
    scores = builder.pointwise(PointwiseMode.MUL, scores, builder.constant(4, DataType.FLOAT, scale))
    weights = builder.softmax(scores, (3,))
    for data_type, alpha in ((between, factor), (DataType.HALF, 1.0)):
        weights = builder.pointwise(PointwiseMode.IDENTITY, weights, alpha1=alpha, virtual=data_type)
    builder.matmul(weights, v, store=DataType.HALF)
    parameters = dict(MMA.plan(builder.graph(), SM_90A, {}).kernels[0].parameters)
    assert (parameters["HAS_SCORES"], parameters["HAS_WEIGHTS"]) == expected


def test_wgmma_is_for_one_architecture() -> None:
    graph = graph_of("sdpa b=1 h=1 q=20 d=16")
    assert MMA.refuse(graph, SM_80) is None
    assert "arch: expected sm_90a, got sm_80" in str(WGMMA.refuse(graph, SM_80))


def test_large_tiles_are_for_what_needs_few_registers() -> None:
    def tiles(line: str) -> tuple[int, ...]:
        return WGMMA.knobs(graph_of(line), SM_90A)[0].values

    assert tiles("sdpa b=1 h=1 q=20 d=64 causal=top_left lengths=yes") == (64, 128, 192)
    assert tiles("sdpa b=1 h=1 q=20 d=128 dtype=e4m3") == (64, 128, 192)
    for words in ("d=64 dropout=0.5", "d=64 scores=bias", "d=72", "d=144 dtype=e4m3"):
        assert tiles(f"sdpa b=1 h=1 q=20 {words}") == (64, 128)


@pytest.mark.parametrize(
    ("words", "queries"),
    [("q=2048", 192), ("q=1024", 128), ("q=2048 causal=top_left", 128), ("q=2048 scores=tanh", 128)],
)
def test_large_heads_of_fp8_have_large_tiles_where_these_are_full(words: str, queries: int) -> None:
    plan = WGMMA.plan(graph_of(f"sdpa b=1 h=1 d=128 dtype=e4m3 {words}"), SM_90A, {})
    assert dict(plan.choices)[KnobType.TILE_M] == queries


def test_keys_are_taken_as_far_as_there_is_room() -> None:
    graph = graph_of("sdpa b=1 h=1 q=200 d=64")

    def keys_of(queries: int, keys: int) -> int:
        choices = {KnobType.TILE_M: queries, KnobType.TILE_N: keys}
        return dict(WGMMA.plan(graph, SM_90A, choices).kernels[0].parameters)["TILE_KV"]

    assert [keys_of(queries, 192) for queries in (64, 128, 192)] == [192, 192, 128]
    assert [keys_of(queries, 48) for queries in (64, 192)] == [48, 48]
    for words, keys in (
        ("q=200 d=256", 64),
        ("q=2000 d=128", 144),
        ("q=2000 d=128 right=0", 128),
        ("q=8000 d=128 right=0", 128),
        ("q=8000 d=128 right=0 dtype=e4m3", 192),
        ("q=4000 d=64", 128),
    ):
        assert dict(WGMMA.plan(graph_of(f"sdpa b=1 h=1 {words}"), SM_90A, {}).choices)[KnobType.TILE_N] == keys
