"""Gradients of attention, on each engine that has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.driver import open_driver
from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.attention.attention_backward_wgmma import AttentionBackwardWgmma
from lowdnn.engines.base import Choices, Engine
from lowdnn.engines.composite.attention_backward_parts import AttentionBackwardParts
from lowdnn.engines.composite.composite import Composite
from lowdnn.engines.launch import aligned_bytes
from lowdnn.engines.registry import ENGINES as ALL_ENGINES
from lowdnn.enums import DataType, HeurMode, KnobType, NumericalNote
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import inputs_of
from lowdnn.ops.ragged import RaggedLoad, RaggedMove
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.plan import MathUnit, Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError
from tests.support.data import fresh_seed, real_values
from tests.support.errors import raises
from tests.support.running import Arrays, check_case, check_outputs, run_plan
from tests.support.runtime import open_runtime

MMA, WGMMA = AttentionBackwardMma(), AttentionBackwardWgmma()
ENGINES: tuple[Engine, ...] = (MMA, WGMMA)

#: Computes the gradients in parts, for graphs that the other engines take too.
PARTS = AttentionBackwardParts(
    [one for one in ALL_ENGINES if SdpaBackward not in one.anchors and not isinstance(one, Composite)]
)

of_each_engine = pytest.mark.parametrize("engine", ENGINES, ids=[engine.name for engine in ENGINES])
in_each_form = pytest.mark.parametrize("engine", [*ENGINES, PARTS], ids=lambda engine: engine.name)

#: Each crosses several features; sizes are odd on purpose.
LINES = (
    "sdpa_bwd b=2 h=2 q=33 kv=77 d=24 dv=40 lengths=both layout=bshd",
    "sdpa_bwd b=1 h=4 hk=2 q=70 kv=50 d=64 right=0 place=bottom_right dtype=fp16",
    "sdpa_bwd b=1 h=4 hk=1 q=65 kv=129 d=16 left=20 right=0 scale=device",
    "sdpa_bwd b=2 h=1 q=19 kv=70 d=128 left=5 right=9 layout=sbhd scale=host",
    "sdpa_bwd b=2 h=2 hk=1 q=70 kv=40 d=32 right=0 place=bottom_right lengths=both index=int64 layout=bshd dtype=fp16",
    "sdpa_bwd b=1 h=1 q=20 kv=40 d=192 dv=128 right=3",
    "sdpa_bwd b=1 h=1 q=40 kv=33 d=72 dv=256 dtype=fp16",
    "sdpa_bwd b=1 h=2 q=1 kv=1 d=8",
    "sdpa_bwd b=2 h=2 q=1 kv=150 d=64 lengths=kv",
    "sdpa_bwd b=2 h=3 hk=1 q=100 kv=1 d=16 scale=none",
    "sdpa_bwd b=1 h=2 q=24 kv=64 d=64 out=fp32",
    "sdpa_bwd b=1 h=2 q=90 kv=90 d=40 left=3 right=0 place=bottom_right",
    "sdpa_bwd b=1 h=1 q=9 kv=20 d=128 dtype=fp16",
)
#: Heads of q that share others of k than of v.
SHARED_IN_TWO_WAYS = (
    "sdpa_bwd b=1 h=4 hk=2 hv=1 q=40 kv=50 d=16 right=0",
    "sdpa_bwd b=1 h=6 hk=2 hv=3 q=40 kv=50 d=16 dv=24 lengths=both",
)
#: Options that change scores and weights.
MODIFIED = (
    "sdpa_bwd b=2 h=4 hk=2 q=33 kv=40 d=24 dv=40 lengths=both bias=1h dropout=0.25 right=0",
    "sdpa_bwd b=2 h=2 q=20 kv=40 d=72 bias=11 cap=2 alibi=yes out=fp32",
    "sdpa_bwd b=1 h=2 q=21 kv=35 d=136 dv=16 left=30 bias=b1 cap=1 dropout=0.5 masked=yes dtype=fp16",
)


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, MMA, line)


@pytest.mark.parametrize("line", LINES[:6])
def test_lines_on_wgmma(device: Runtime, line: str) -> None:
    check_case(device, WGMMA, line)


@pytest.mark.parametrize("line", SHARED_IN_TWO_WAYS)
def test_lines_with_heads_shared_in_two_ways(device: Runtime, line: str) -> None:
    check_case(device, MMA, line)


@pytest.mark.parametrize(
    "words",
    [
        "h=2 q=200 kv=150 d=16 right=0 lengths=both",
        "h=1 q=100 kv=150 d=72 right=0",
        "h=2 q=130 kv=100 d=136 dv=16 left=99 lengths=both deterministic=yes",
    ],
)
def test_several_tiles_in_each_kernel_on_wgmma(racing: Runtime, words: str) -> None:
    """Blocks take several tiles of keys each."""
    few = replace(SM_90A, sm_count=2)
    check_case(racing, WGMMA, f"sdpa_bwd b=1 hk=1 {words}", {KnobType.SPLIT_K_SLC: 1}, few)


@pytest.mark.parametrize(
    ("words", "splits"),
    [
        ("h=4 hk=2 q=200 kv=150 d=16 dv=32 right=0 lengths=both", 3),
        ("h=2 q=129 kv=20 d=24 dv=72 left=30", 2),
        ("h=1 q=100 kv=70 d=136 dv=16 left=9 layout=bshd", 2),
        ("h=1 q=130 kv=20 d=16 dtype=e4m3 out=fp32", 2),
    ],
)
def test_split_queries_on_wgmma(racing: Runtime, words: str, splits: int) -> None:
    few = replace(SM_90A, sm_count=3)
    plan = check_case(racing, WGMMA, f"sdpa_bwd b=1 {words}", {KnobType.SPLIT_K_SLC: splits}, few)
    assert dict(plan.choices)[KnobType.SPLIT_K_SLC] == splits


@pytest.mark.parametrize(
    ("words", "splits", "order"),
    [
        ("h=2 hk=1 q=200 kv=300 d=16 dv=32", 2, 0),
        ("h=1 q=150 kv=800 d=24 dv=72", 3, 1),
        ("h=1 q=130 kv=300 d=136 dv=16 layout=bshd lengths=both", 2, 0),
    ],
)
def test_last_keys_with_split_queries_on_wgmma(racing: Runtime, words: str, splits: int, order: int) -> None:
    few = replace(SM_90A, sm_count=2)
    knobs = {KnobType.SPLIT_K_SLC: splits, KnobType.STREAM_K: 1, KnobType.REDUCTION_MODE: order}
    plan = check_case(racing, WGMMA, f"sdpa_bwd b=1 {words}", knobs, few)
    assert dict(plan.choices)[KnobType.STREAM_K] == 1


def test_last_keys_with_split_queries_under_every_policy(scheduled: Runtime) -> None:
    knobs = {KnobType.SPLIT_K_SLC: 2, KnobType.STREAM_K: 1}
    check_case(scheduled, WGMMA, "sdpa_bwd b=1 h=1 q=130 kv=300 d=72", knobs, replace(SM_90A, sm_count=2))


def test_sums_in_any_order(racing: Runtime) -> None:
    line = "sdpa_bwd b=1 h=2 q=70 kv=300 d=16"
    plan = check_case(racing, WGMMA, line, {KnobType.REDUCTION_MODE: 1, KnobType.SWIZZLE: 1})
    assert NumericalNote.NONDETERMINISTIC in plan.numerical_notes
    in_order = WGMMA.plan(graph_of(line), SM_90A, {KnobType.REDUCTION_MODE: 0})
    assert NumericalNote.NONDETERMINISTIC not in in_order.numerical_notes


@pytest.mark.parametrize("line", MODIFIED)
def test_modified_scores_and_dropped_weights(racing: Runtime, line: str) -> None:
    check_case(racing, MMA, line)


def test_a_gradient_of_bias_has_zeros_where_nothing_is_seen(device: Runtime) -> None:
    """Whatever is past the lengths, and whatever the bias is there."""
    case = parse_case("sdpa_bwd b=2 h=1 q=70 kv=90 d=16 right=0 lengths=both bias=bh cap=4 dtype=fp16")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (operation,) = graph.operations
    assert isinstance(operation, SdpaBackward)
    values = {port: inputs[tensor.uid] for port, tensor in inputs_of(operation).items() if tensor.uid in inputs}
    values["seq_len_q"][:, 0, 0, 0], values["seq_len_kv"][:, 0, 0, 0] = (66, 0), (40, 90)
    bias = next(inputs[tensor.uid] for tensor in graph.inputs if tensor.name == "bias")
    bias[:, :, :, 40:], bias[:, :, 66:], bias[1] = np.nan, np.nan, np.inf
    for port in ("q", "o", "d_o", "stats"):
        values[port][1] = np.nan
    numbers = {port: array.astype(np.float64) for port, array in values.items()}
    constants = {
        port: np.full((1, 1, 1, 1), t.constant_value)
        for port, t in inputs_of(operation).items()
        if t.constant_value is not None
    }
    for port, array in operation.forward(numbers | constants).items():
        values[port][0] = array[0]
    results = run_plan(device, MMA.plan(graph, SM_90A, {}), graph, inputs)
    assert all(np.isfinite(array).all() for array in results.values())
    found = results[operation.dbias.uid]
    assert np.isfinite(found).all()
    assert found[0, 0, :66, :40].any()
    assert not found[1].any()
    assert not found[0, 0, :, 40:].any()
    assert not found[0, 0, 66:].any()
    assert not found[0, 0][np.arange(90) > np.arange(70)[:, None]].any()


@pytest.mark.parametrize(
    "words",
    [
        "b=3 h=2 hk=1 q=20 kv=40 d=16 dv=24 right=0 place=bottom_right lengths=both",
        "b=2 h=2 q=33 kv=20 d=8 bias=11 dropout=0.25 out=fp32",
        "b=3 h=2 q=9 kv=400 d=16 alibi=yes lengths=kv dtype=fp16",
    ],
)
def test_ragged_lines(racing: Runtime, words: str) -> None:
    check_case(racing, MMA, f"sdpa_bwd {words} ragged=yes")


def test_weights_of_a_query_that_no_sequence_has_may_be_infinite(racing: Runtime) -> None:
    """A batch packs no query though its length is 1; e^alibi of keys far from it exceeds FLOAT."""
    check_case(racing, MMA, "sdpa_bwd b=2 h=1 q=1 kv=300 d=16 alibi=yes ragged=even")


def test_rows_of_no_sequence_are_not_read_and_stay_as_they_are(device: Runtime) -> None:
    """Sequences begin behind the first row and end before the last one, and one has no queries, another no keys."""
    case = parse_case("sdpa_bwd b=3 h=2 q=12 kv=20 d=16 dtype=fp16 ragged=yes")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    moves = [op for op in graph.operations if isinstance(op, RaggedMove)]
    ends = {move.packed.uid: (1, 8, 8, 15) if move.padded.dims[2] == 12 else (2, 2, 20, 27) for move in moves}
    for move in moves:
        begin, *_, end = ends[move.packed.uid]
        inputs[move.offsets.uid] = np.array(ends[move.packed.uid], inputs[move.offsets.uid].dtype).reshape(-1, 1, 1, 1)
        if isinstance(move, RaggedLoad):
            inputs[move.packed.uid][:, :, :begin] = inputs[move.packed.uid][:, :, end:] = np.nan
    check_outputs(device, MMA.plan(graph, SM_90A, {}), graph, inputs, case.length)


@pytest.mark.parametrize("rows", [64, 128])
def test_tiles(racing: Runtime, rows: int) -> None:
    line = "sdpa_bwd b=1 h=2 hk=1 q=100 kv=130 d=32 right=0 lengths=both"
    check_case(racing, MMA, line, {KnobType.TILE_M: rows})


@pytest.mark.parametrize("rows", [32, 64])
def test_tiles_of_large_heads(racing: Runtime, rows: int) -> None:
    check_case(racing, MMA, "sdpa_bwd b=1 h=1 q=40 kv=70 d=136 dv=144 left=30", {KnobType.TILE_M: rows})


@in_each_form
def test_every_scheduling_policy(scheduled: Runtime, engine: Engine) -> None:
    check_case(scheduled, engine, "sdpa_bwd b=2 h=2 hk=1 q=70 kv=140 d=16 right=70 lengths=kv")


@pytest.mark.parametrize("heads", ["hk=1 hv=2", "hk=3 hv=2"])
def test_heads_shared_in_two_ways(racing: Runtime, heads: str) -> None:
    """The other operand's head changes while a block goes along the heads of q."""
    check_case(racing, MMA, f"sdpa_bwd b=2 h=6 {heads} q=70 kv=40 d=16 left=40")


@pytest.mark.parametrize(
    ("engine", "choices", "is_same"),
    [(MMA, {}, True), (WGMMA, {KnobType.REDUCTION_MODE: 0}, True), (WGMMA, {KnobType.REDUCTION_MODE: 1}, False)],
)
def test_the_same_bits_in_any_order_of_blocks(
    kernel_cache_dir: Path, engine: Engine, choices: Choices, is_same: bool
) -> None:
    """Equal ones not under policies that take warps apart: how many multiply at a time is how products are added up."""
    policies = ("lockstep" if is_same else "fuzz(7),early", "cta-reverse")
    case = parse_case("sdpa_bwd b=1 h=2 q=70 kv=400 d=16 out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    plan = engine.plan(graph, SM_90A, choices)
    first, second = (_results(policy, plan, graph, inputs, kernel_cache_dir) for policy in policies)
    assert all(first[uid].tobytes() == second[uid].tobytes() for uid in first) is is_same


def _results(policy: str, plan: Plan, graph: OperationGraph, inputs: Arrays, cache: Path) -> dict[int, NDArray[Any]]:
    with open_runtime(open_driver("emulated", policy=policy), cache) as runtime:
        return run_plan(runtime, plan, graph, inputs)


@in_each_form
def test_what_sees_nothing_or_is_past_its_length_adds_nothing(device: Runtime, engine: Engine) -> None:
    """Whatever is there: NaN in rows past the lengths, and in o and stats of queries before the first key."""
    case = parse_case("sdpa_bwd b=3 h=1 q=50 kv=30 d=16 right=0 place=bottom_right lengths=both dtype=fp16")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (operation,) = graph.operations
    assert isinstance(operation, SdpaBackward)
    values = {port: inputs[t.uid] for port, t in inputs_of(operation).items() if port != "scale"}
    queries, keys = (50, 45, 40), (30, 0, 25)
    values["seq_len_q"][:, 0, 0, 0], values["seq_len_kv"][:, 0, 0, 0] = queries, keys
    for port, array in operation.forward(values | {"scale": np.array(0.25)}).items():
        values[port][:] = array
    for batch in range(3):
        for port in ("o", "stats"):
            values[port][batch, :, : queries[batch] - keys[batch]] = np.nan
        for port in ("q", "o", "d_o", "stats"):
            values[port][batch, :, queries[batch] :] = np.nan
        for port in ("k", "v"):
            values[port][batch, :, keys[batch] :] = np.nan
    expected = evaluate(graph, inputs)
    assert all(np.isfinite(array).all() and array[0].any() and not array[1].any() for array in expected.values())
    check_outputs(device, engine.plan(graph, SM_90A, {}), graph, inputs, case.length)


@in_each_form
def test_rows_without_a_sum_have_no_weights(device: Runtime, engine: Engine) -> None:
    case = parse_case("sdpa_bwd b=1 h=1 q=20 kv=30 d=16 out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    uids = {tensor.name: tensor.uid for tensor in (*graph.inputs, *graph.outputs)}
    inputs[uids["stats"]][0, 0, 3] = -np.inf
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    assert not results[uids["dq"]][0, 0, 3].any()
    assert all(np.isfinite(values).all() for values in results.values())


@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 0, 20), (1, 20, 0), (0, 20, 20)])
def test_empty_tensors(device: Runtime, batch: int, queries: int, keys: int) -> None:
    builder = CaseBuilder()
    q, k, v, o, d_o = (
        builder.tensor((batch, 2, rows, 16), DataType.HALF) for rows in (queries, keys, keys, queries, queries)
    )
    builder.sdpa_backward(q, k, v, o, d_o, builder.tensor((batch, 2, queries, 1), DataType.FLOAT))
    graph = builder.graph()
    inputs = {
        tensor.uid: real_values(np.random.default_rng(1), tensor.dims, tensor.data_type) for tensor in graph.inputs
    }
    check_outputs(device, MMA.plan(graph, SM_90A, {}), graph, inputs, 20)


@pytest.mark.parametrize("size", [8, 40, 64, 96, 128, 192, 256])
def test_sizes_have_kernels_that_fit(size: int) -> None:
    for line in (f"sdpa_bwd b=1 h=1 q=200 kv=70 d={size}", f"sdpa_bwd b=1 h=1 q=9 d={size} dtype=fp16"):
        for engine, arch in ((MMA, SM_80), (MMA, SM_90A), (WGMMA, SM_90A)):
            plan = engine.plan(graph_of(line), arch, {})
            assert len(plan.launches) == 3
            assert all(launch.shared_bytes <= arch.shared_bytes_per_block for launch in plan.launches)


def test_what_happens_to_scores_leaves_room_for_two_blocks() -> None:
    for size in (64, 128, 256):
        plan = MMA.plan(graph_of(f"sdpa_bwd b=1 h=1 q=200 kv=70 d={size} bias=11 cap=2 dropout=0.1"), SM_90A, {})
        assert len(plan.launches) == 4
        assert all(launch.shared_bytes <= SM_90A.shared_bytes_per_block for launch in plan.launches)


@pytest.mark.parametrize(("engine", "products"), [(MMA, 4 + 3), (WGMMA, 5)])
def test_work_is_that_of_the_band(engine: Engine, products: int) -> None:
    def flops(band: str) -> int:
        plan = engine.plan(graph_of(f"sdpa_bwd b=1 h=2 q=512 kv=512 d=64 {band}"), SM_90A, {})
        return sum(launch.work.flops for launch in plan.launches if launch.work.unit is not MathUnit.FMA_F32)

    full = flops("")
    assert full == 2 * products * 2 * 512 * 512 * 64
    assert flops("right=0") == pytest.approx(full / 2, rel=0.02)
    assert flops("right=0 left=15") == pytest.approx(full * 16 / 512, rel=0.05)


def test_workspace_has_terms_and_sums() -> None:
    graph = graph_of("sdpa_bwd b=1 h=2 q=500 kv=512 d=64")
    assert MMA.plan(graph, SM_90A, {}).workspace_bytes == aligned_bytes(2 * 500 * 8)
    tiles = 2 * 4
    sums, terms, turns = tiles * 128 * 64 * 4, tiles * 128 * 8, aligned_bytes((tiles + 1) * 4)
    of_splits = {1: 0, 2: 2 * tiles * 128 * (64 + 64) * 4}
    for splits, of_keys in of_splits.items():
        plan = WGMMA.plan(graph, SM_90A, {KnobType.SPLIT_K_SLC: splits})
        assert plan.workspace_bytes == sums + terms + turns + of_keys
    few = replace(SM_90A, sm_count=3)
    plan = WGMMA.plan(graph, few, {KnobType.SPLIT_K_SLC: 2, KnobType.STREAM_K: 1})
    assert plan.workspace_bytes == sums + terms + turns + of_splits[2] * (tiles % 3) // tiles


@pytest.mark.parametrize(
    ("words", "heads", "order", "splits", "stream"),
    [
        ("b=2 h=16 q=8192 d=128", 16, 0, 3, 1),
        ("b=2 h=16 q=8192 d=128 right=0", 16, 1, 1, 0),
        ("b=2 h=32 q=8192 d=64 right=0", 32, 0, 1, 0),
        ("b=2 h=8 q=8192 d=256 right=0", 8, 1, 1, 0),
        ("b=2 h=8 q=8192 d=256", 4, 1, 3, 1),
        ("b=8 h=16 q=2048 d=128", 16, 0, 1, 0),
        ("b=32 h=16 q=512 d=128", 32, 0, 1, 0),
        ("b=1 h=12 hk=3 q=8192 d=128 left=9 deterministic=yes", 2, 0, 2, 0),
        ("b=2 h=10 q=4096 kv=77 d=64", 16, 0, 6, 0),
        ("b=1 h=8 q=1024 d=64", 8, 1, 2, 0),
        ("b=8 h=32 hk=8 q=1500 d=96 right=0", 32, 1, 1, 0),  # few blocks with long ways
        ("b=8 h=32 q=1500 d=96 right=0", 16, 1, 1, 0),
        ("b=8 h=32 hk=4 q=1200 d=128 right=0", 16, 1, 2, 0),
        ("b=8 h=16 hk=4 q=1500 d=256 right=0", 16, 1, 1, 0),
    ],
)
def test_default_knobs_of_wgmma(words: str, heads: int, order: int, splits: int, stream: int) -> None:
    plan = WGMMA.plan(graph_of(f"sdpa_bwd {words}"), SM_90A, {})
    assert dict(plan.choices) == {
        KnobType.SWIZZLE: heads,
        KnobType.REDUCTION_MODE: order,
        KnobType.SPLIT_K_SLC: splits,
        KnobType.STREAM_K: stream,
    }
    assert (NumericalNote.NONDETERMINISTIC in plan.numerical_notes) == bool(order)


def test_no_plan_of_a_deterministic_graph_sums_in_any_order() -> None:
    graph = graph_of("sdpa_bwd b=1 h=1 q=200 d=128 deterministic=yes")
    with raises(BadParamError, "attention_backward_wgmma.REDUCTION_MODE", expected="one of [0]", got="1"):
        WGMMA.plan(graph, SM_90A, {KnobType.REDUCTION_MODE: 1})


@pytest.mark.parametrize("size", [64, 128, 256])
def test_wgmma_is_the_first_choice(size: int) -> None:
    graph = graph_of(f"sdpa_bwd b=2 h=8 q=1024 d={size} right=0")
    best = rank(graph, SM_90A, HeurMode.A, ENGINES).best
    assert best is not None
    assert best.engine is WGMMA


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sdpa_bwd b=1 h=1 q=20 d=20", "q.dims[3]: expected a multiple of 8 up to 256, got 20"),
        ("sdpa_bwd b=1 h=1 q=20 d=16 dv=264", "v.dims[3]: expected a multiple of 8 up to 256, got 264"),
        (
            "sdpa_bwd b=1 h=1 q=20 d=16 dtype=fp32",
            "q.data_type: expected HALF or BFLOAT16, the same for all, got FLOAT",
        ),
        ("sdpa_bwd b=1 h=1 q=20 d=16 out=fp64", "dq.data_type: expected HALF, BFLOAT16 or FLOAT"),
        ("sdpa_bwd b=1 h=1 q=20 d=16 align=8", "alignment_bytes: expected a multiple of 16, got 8"),
        ("matmul m=4 n=4 k=4", "operations: expected one SdpaBackward, got MatmulOperation"),
    ],
)
@of_each_engine
def test_refusals_say_why(engine: Engine, line: str, reason: str) -> None:
    assert reason in str(engine.refuse(graph_of(line), SM_90A))


def test_what_wgmma_leaves_to_mma() -> None:
    plain, shared = graph_of("sdpa_bwd b=1 h=1 q=20 d=16"), graph_of(SHARED_IN_TWO_WAYS[0])
    assert MMA.refuse(plain, SM_80) is None
    assert "arch: expected sm_90a, got sm_80" in str(WGMMA.refuse(plain, SM_80))
    assert MMA.refuse(shared, SM_90A) is None
    assert "v.dims[1]: expected k's 2 heads, got 1" in str(WGMMA.refuse(shared, SM_90A))
    for words in ("bias=1h", "cap=3", "dropout=0.5", "ragged=yes"):
        modified = graph_of(f"sdpa_bwd b=1 h=1 q=20 d=16 {words}")
        assert MMA.refuse(modified, SM_90A) is None
        reason = "inner, dbias, ragged_offset: expected no operations on scores and weights"
        assert reason in str(WGMMA.refuse(modified, SM_90A))
    many = graph_of("sdpa_bwd b=65536 h=512 q=1 kv=1 d=8")
    assert MMA.refuse(many, SM_90A) is None
    assert "rows in whole tiles of 128, got 4294967296" in str(WGMMA.refuse(many, SM_90A))
