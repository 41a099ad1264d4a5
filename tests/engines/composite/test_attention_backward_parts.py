"""Gradients of attention in parts: graphs that no fused engine takes, and values that must not spread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.registry import ENGINES, engine_named
from lowdnn.enums import DataType, HeurMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.heuristics.ranking import rank
from lowdnn.ops.base import inputs_of, with_tensors
from lowdnn.ops.sdpa_backward import SdpaBackward
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed, real_values
from tests.support.running import Arrays, check_case, check_outputs, run_plan

ENGINE, COMPOSITE = engine_named("attention_backward_parts"), engine_named("composite")

#: Each crosses several features that fused engines refuse.
LINES = (
    "sdpa_bwd b=2 h=2 q=9 kv=20 d=12 right=0 dtype=fp16",
    "sdpa_bwd b=2 h=4 hk=2 hv=1 q=9 kv=20 d=264 dv=12 right=1 left=3 place=bottom_right lengths=both dtype=bf16",
    "sdpa_bwd b=2 h=4 hk=2 q=9 kv=20 d=20 bias=1h cap=2 alibi=yes dropout=0.25 dtype=fp32",
    "sdpa_bwd b=1 h=2 q=7 kv=5 d=3 bias=b1 dropout=0.5 masked=yes scale=device layout=sbhd dtype=fp32",
    "sdpa_bwd b=2 h=2 q=9 kv=20 d=12 lengths=kv index=int64 scale=none dtype=fp64",
    # Scores of some 60 units, whose last bit a weight feels.
    "sdpa_bwd b=1 h=2 q=16 d=264 kv=40 scale=none dtype=fp32",
    "sdpa_bwd b=1 h=2 q=1 kv=1 d=1 scale=host dtype=fp64 out=fp32",
    "sdpa_bwd b=2 h=4 hk=2 q=9 kv=20 d=20 lengths=both right=2 dropout=0.25 dtype=e4m3 d_o=e5m2",
    "sdpa_bwd b=1 h=2 hk=1 q=9 kv=12 d=12 left=3 dtype=e5m2 d_o=fp16 out=bf16",
)
RAGGED = (
    "sdpa_bwd b=3 h=2 hk=1 q=9 kv=20 d=12 lengths=both bias=bh dtype=fp32 ragged=yes",
    "sdpa_bwd b=2 h=2 q=9 kv=20 d=24 right=0 lengths=both dtype=e4m3 ragged=yes",
)


@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, line: str) -> None:
    plan = check_case(device, ENGINE, line)
    assert len(plan.parts) > 5


@pytest.mark.parametrize("line", RAGGED)
def test_ragged_lines(racing: Runtime, line: str) -> None:
    plan = check_case(racing, COMPOSITE, line)
    assert any("attention_backward_parts" in part for part in plan.parts)
    assert any("ragged" in part for part in plan.parts)


def test_on_the_oldest_architecture(device: Runtime) -> None:
    assert all(kernel.target == "sm_80" for kernel in check_case(device, ENGINE, LINES[1], arch=SM_80).kernels)


def test_it_is_the_last_resort() -> None:
    """The engine is not offered where one computes the gradients in its own kernels, and alone elsewhere."""
    taken = parse_case("sdpa_bwd b=1 h=2 q=20 d=16").graph()
    assert "one engine takes the whole graph: attention_backward_mma" in str(ENGINE.refuse(taken, SM_90A))
    ranking = rank(parse_case(LINES[0]).graph(), SM_90A, HeurMode.A, ENGINES)
    assert [candidate.engine.name for candidate in ranking.candidates] == [ENGINE.name]


def test_uids_may_be_the_largest() -> None:
    """Tensors between the parts have other uids."""
    (operation,) = parse_case(LINES[2]).graph().operations
    largest = {x.uid: replace(x, uid=2**63 - 1) for x in (inputs_of(operation)["q"],)}
    graph = OperationGraph([with_tensors(operation, largest)])
    assert ENGINE.refuse(graph, SM_90A) is None
    assert ENGINE.plan(graph, SM_90A, {}).parts


def test_other_operations_are_refused() -> None:
    graph = parse_case("sdpa b=1 h=1 q=2 d=8").graph()
    assert "operations: expected one SdpaBackward, got " in str(ENGINE.refuse(graph, SM_90A))


def strided(builder: CaseBuilder, **options: Any) -> tuple[Tensor, ...]:
    """q, k, v, o, d_o, stats that do not lie densely: rows with gaps, elements apart, an expanded gradient."""
    types = {"data_type": DataType.HALF}
    return (
        builder.tensor((2, 4, 5, 16), **types, strides=(2000, 400, 37, 2), name="q"),
        builder.tensor((2, 2, 7, 16), **types, strides=(1, 2, 100, 4), name="k"),
        builder.tensor((2, 2, 7, 16), **types, strides=(0, 0, 16, 1), name="v"),
        builder.tensor((2, 4, 5, 16), **types, strides=(320, 16, 64, 1), name="o"),
        builder.tensor((2, 4, 5, 16), **types, strides=(0, 0, 0, 0), name="d_o"),
        builder.tensor((2, 4, 5, 1), DataType.FLOAT, strides=(40, 10, 2, 1), name="stats"),
    )


def test_rows_that_do_not_lie_densely(racing: Runtime) -> None:
    builder = CaseBuilder(alignment_bytes=4)
    q, k, v, o, d_o, stats = strided(builder)
    dq, dk, dv = (
        builder.tensor(like.dims, DataType.HALF, strides=strides, name=name)
        for name, like, strides in (
            ("dq", q, (2000, 400, 37, 2)),
            ("dk", k, (1, 2, 100, 4)),
            ("dv", v, (500, 250, 1, 9)),
        )
    )
    graph = OperationGraph([SdpaBackward(q, k, v, o, d_o, stats, dq, dk, dv)])
    inputs = forward_of(graph)
    check_outputs(racing, ENGINE.plan(graph, SM_90A, {}), graph, inputs, 10)


def forward_of(graph: OperationGraph) -> Arrays:
    """Random inputs, with the output and the statistics that belong to them."""
    (operation,) = graph.operations
    assert isinstance(operation, SdpaBackward)
    rng = np.random.default_rng(fresh_seed())
    inputs = {}
    for tensor in graph.inputs:
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.strides)
        values = real_values(rng, tensor.dims, tensor.data_type)
        inputs[tensor.uid] = np.array(np.broadcast_to(values[first], tensor.dims))
    values = {port: inputs[tensor.uid].astype(np.float64) for port, tensor in inputs_of(operation).items()}
    for port, array in operation.forward(values).items():
        tensor = getattr(operation, port)
        inputs[tensor.uid] = array.astype(inputs[tensor.uid].dtype)
    return inputs


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_one_query_of_very_negative_scores(device: Runtime, dtype: str) -> None:
    """A row's log-sum-exp is far below 0, another's minus infinity; gradients are those of the formula, and 0."""
    case = parse_case(f"sdpa_bwd b=2 h=1 q=1 kv=20 d=12 bias=b1 dtype={dtype} out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    (operation,) = graph.operations
    assert isinstance(operation, SdpaBackward)
    uids = {tensor.name: tensor.uid for tensor in (*graph.inputs, *graph.outputs)}
    inputs[uids["bias"]][0] = -60000.0
    inputs[uids["bias"]][1] = -np.inf
    values = {p: inputs[t.uid].astype(np.float64) for p, t in inputs_of(operation).items() if t.uid in inputs}
    for port, array in operation.forward({**values, "scale": np.array(12**-0.5)}).items():
        tensor = getattr(operation, port)
        inputs[tensor.uid] = array.astype(inputs[tensor.uid].dtype)
    assert inputs[uids["stats"]][0] < -50000
    assert inputs[uids["stats"]][1] == -np.inf
    found = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    assert found[uids["dv"]][0].any()
    assert not any(found[uids[name]][1].any() for name in ("dq", "dk", "dv", "dbias"))
    for uid, values_of in evaluate(graph, inputs).items():
        np.testing.assert_allclose(found[uid].astype(np.float64), values_of.astype(np.float64), rtol=0.02, atol=0.02)


def test_lengths_beyond_the_tensors_and_rows_without_gradients(device: Runtime) -> None:
    """Lengths end with their tensors; a row of d_o that is 0 adds nothing, whatever its statistics."""
    case = parse_case("sdpa_bwd b=2 h=1 q=5 kv=9 d=12 right=0 place=bottom_right lengths=both dtype=fp16 out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    uids = {tensor.name: tensor.uid for tensor in graph.inputs}
    inputs[uids["seq_len_q"]][1], inputs[uids["seq_len_kv"]][1] = 50, 10
    inputs[uids["d_o"]][0, 0, 0], inputs[uids["stats"]][0, 0, 0] = 0, -1e4
    found = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        np.testing.assert_allclose(found[uid], expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 0, 5), (1, 5, 0), (0, 5, 5)])
def test_empty_tensors(device: Runtime, batch: int, queries: int, keys: int) -> None:
    builder = CaseBuilder()
    q, k, v, o, d_o = (
        builder.tensor((batch, 2, rows, 12), DataType.FLOAT) for rows in (queries, keys, keys, queries, queries)
    )
    builder.sdpa_backward(q, k, v, o, d_o, builder.tensor((batch, 2, queries, 1), DataType.FLOAT))
    graph = builder.graph()
    inputs = {t.uid: np.ones(t.dims, np.float32) for t in graph.inputs}
    found = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    assert all(not array.any() for array in found.values())
