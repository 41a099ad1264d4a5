from __future__ import annotations

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.launch import aligned_bytes
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.builder import GraphBuilder
from lowdnn.graph.cases import parse_case
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.oracle import evaluate
from lowdnn.ops.base import inputs_of
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, real_values
from tests.support.running import check_case, check_outputs, run_plan

ENGINE = AttentionBackwardMma()

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
    "sdpa_bwd b=1 h=4 hk=2 hv=1 q=40 kv=50 d=16 right=0",
    "sdpa_bwd b=1 h=6 hk=2 hv=3 q=40 kv=50 d=16 dv=24 lengths=both",
    "sdpa_bwd b=1 h=2 q=90 kv=90 d=40 left=3 right=0 place=bottom_right",
)


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, ENGINE, line)


@pytest.mark.parametrize("rows", [64, 128])
def test_tiles(racing: Runtime, rows: int) -> None:
    line = "sdpa_bwd b=1 h=2 hk=1 q=100 kv=130 d=32 right=0 lengths=both"
    check_case(racing, ENGINE, line, {KnobType.TILE_M: rows})


@pytest.mark.parametrize("rows", [32, 64])
def test_tiles_of_large_heads(racing: Runtime, rows: int) -> None:
    check_case(racing, ENGINE, "sdpa_bwd b=1 h=1 q=40 kv=70 d=136 dv=144 left=30", {KnobType.TILE_M: rows})


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check_case(scheduled, ENGINE, "sdpa_bwd b=2 h=2 hk=1 q=70 kv=70 d=16 right=0 lengths=kv")


@pytest.mark.parametrize("heads", ["hk=1 hv=2", "hk=3 hv=2"])
def test_heads_shared_in_two_ways(racing: Runtime, heads: str) -> None:
    """The other operand's head changes while a block goes along the heads of q."""
    check_case(racing, ENGINE, f"sdpa_bwd b=2 h=6 {heads} q=70 kv=40 d=16 left=40")


def test_the_same_bits_in_any_order(racing: Runtime) -> None:
    case = parse_case("sdpa_bwd b=1 h=4 hk=2 q=70 kv=90 d=16 right=0")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    first, second = (run_plan(racing, ENGINE.plan(graph, SM_90A, {}), graph, inputs) for _ in range(2))
    assert all(first[uid].tobytes() == second[uid].tobytes() for uid in first)


def test_what_sees_nothing_or_is_past_its_length_adds_nothing(device: Runtime) -> None:
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
    check_outputs(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs, case.length)


def test_rows_without_a_sum_have_no_weights(device: Runtime) -> None:
    case = parse_case("sdpa_bwd b=1 h=1 q=20 kv=30 d=16 out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    uids = {tensor.name: tensor.uid for tensor in (*graph.inputs, *graph.outputs)}
    inputs[uids["stats"]][0, 0, 3] = -np.inf
    results = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    assert not results[uids["dq"]][0, 0, 3].any()
    assert all(np.isfinite(values).all() for values in results.values())


@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 0, 20), (1, 20, 0), (0, 20, 20)])
def test_empty_tensors(device: Runtime, batch: int, queries: int, keys: int) -> None:
    builder = GraphBuilder()
    q, k, v, o, d_o = (
        builder.tensor((batch, 2, rows, 16), DataType.HALF) for rows in (queries, keys, keys, queries, queries)
    )
    builder.sdpa_backward(q, k, v, o, d_o, builder.tensor((batch, 2, queries, 1), DataType.FLOAT))
    graph = builder.graph()
    inputs = {
        tensor.uid: real_values(np.random.default_rng(1), tensor.dims, tensor.data_type) for tensor in graph.inputs
    }
    check_outputs(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs, 20)


@pytest.mark.parametrize("size", [8, 40, 64, 96, 128, 192, 256])
def test_sizes_have_kernels_that_fit(size: int) -> None:
    for line in (f"sdpa_bwd b=1 h=1 q=200 kv=70 d={size}", f"sdpa_bwd b=1 h=1 q=9 d={size} dtype=fp16"):
        for arch in (SM_80, SM_90A):
            plan = ENGINE.plan(graph_of(line), arch, {})
            assert len(plan.launches) == 3
            assert all(launch.shared_bytes <= arch.shared_bytes_per_block for launch in plan.launches)


def test_work_is_that_of_the_band_and_the_workspace_that_of_queries() -> None:
    full, causal, narrow = (
        ENGINE.plan(graph_of(f"sdpa_bwd b=1 h=2 q=512 kv=512 d=64 {band}"), SM_90A, {})
        for band in ("", "right=0", "right=0 left=15")
    )
    products = 4 + 3
    assert sum(launch.work.flops for launch in full.launches[1:]) == 2 * products * 2 * 512 * 512 * 64
    assert causal.work.flops == pytest.approx(full.work.flops / 2, rel=0.02)
    assert narrow.work.flops == pytest.approx(full.work.flops * 16 / 512, rel=0.05)
    assert full.workspace_bytes == aligned_bytes(2 * 512 * 8)


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
        ("matmul m=4 n=4 k=4", "operations: expected one SdpaBackward, got ['MatmulOperation']"),
    ],
)
def test_refusals_say_why(line: str, reason: str) -> None:
    assert reason in str(ENGINE.refuse(graph_of(line), SM_90A))
