"""Gradients of attention in fp8, with numbers that operands, what is rounded inside and results are scaled by."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.attention.attention_backward_mma import AttentionBackwardMma
from lowdnn.engines.attention.attention_backward_wgmma import AttentionBackwardWgmma
from lowdnn.engines.base import Choices, Engine
from lowdnn.enums import DataType, KnobType
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.sdpa_fp8_backward import LARGEST, NUMBERS, SdpaFp8Backward
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import Arrays, check_case, run_plan

MMA, WGMMA = AttentionBackwardMma(), AttentionBackwardWgmma()
NAN = 0x7F  # in both types

#: Each crosses several features; sizes are odd on purpose.
LINES = (
    "sdpa_bwd b=2 h=1 q=33 kv=45 d=16 dv=48 lengths=both layout=bshd dtype=e4m3 d_o=e5m2",
    "sdpa_bwd b=1 h=2 hk=2 hv=1 q=33 kv=35 d=64 right=0 place=bottom_right scale=device dtype=e5m2 d_o=e4m3",
    "sdpa_bwd b=1 h=1 q=20 kv=40 d=192 dv=128 left=9 layout=sbhd scale=host dtype=e4m3 out=bf16",
    "sdpa_bwd b=1 h=2 hk=1 q=40 kv=35 d=32 dropout=0.25 scale=none dtype=e4m3 out=fp32",
)


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


def operation_of(graph: OperationGraph) -> SdpaFp8Backward:
    (operation,) = graph.operations
    assert isinstance(operation, SdpaFp8Backward)
    return operation


@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, MMA, line)


@pytest.mark.parametrize(
    "words",
    [
        "b=2 h=2 hk=1 q=40 kv=45 d=16 dv=80 right=0 lengths=both layout=bshd scale=device d_o=e5m2 out=fp32",
        "b=1 h=1 q=20 kv=70 d=144 dv=16 left=9 layout=sbhd out=fp16 deterministic=yes",
    ],
)
def test_lines_on_wgmma(racing: Runtime, words: str) -> None:
    check_case(racing, WGMMA, f"sdpa_bwd {words} dtype=e4m3")


def test_conversions_without_instructions(racing: Runtime) -> None:
    line = "sdpa_bwd b=1 h=1 q=20 kv=17 d=16 right=0 dtype=e4m3 d_o=e5m2"
    assert all(kernel.target == "sm_80" for kernel in check_case(racing, MMA, line, arch=SM_80).kernels)


def drawn(line: str) -> tuple[OperationGraph, Arrays]:
    case = parse_case(line)
    return case.graph(), case.inputs(fresh_seed(), exact=False)


@pytest.mark.parametrize(
    ("engine", "choices"), [(MMA, {KnobType.TILE_M: 64}), (MMA, {KnobType.TILE_M: 128}), (WGMMA, {})]
)
def test_largest_magnitudes(device: Runtime, engine: Engine, choices: Choices) -> None:
    """The largest gradients come before their scales, those of scores before rounding. Queries and keys that do not
    exist have none, although their terms and values might."""
    graph, inputs = drawn("sdpa_bwd b=2 h=2 hk=1 q=70 kv=37 d=16 lengths=both dtype=e4m3 out=fp32")
    op = operation_of(graph)
    results = run_plan(device, engine.plan(graph, SM_90A, choices), graph, inputs)
    largest = dict(zip(LARGEST, (results[tensor.uid].item() for tensor in op.largest), strict=True))
    for port in ("dq", "dk", "dv"):
        scale = inputs[op.numbers[NUMBERS.index(f"scale_{port}")].uid].item()
        stored = np.abs(results[getattr(op, port).uid]).max()
        assert largest[port] * scale == pytest.approx(stored, rel=1e-6)
    exact = evaluate(graph, inputs, rounds_virtual=False)[op.largest[LARGEST.index("dp")].uid]
    assert largest["dp"] == pytest.approx(exact.item(), rel=1e-4)


@pytest.mark.parametrize("engine", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_rounded_operands_saturate(device: Runtime, engine: Engine) -> None:
    """A scale of weights that none of them fits: all count as 448, the largest e4m3."""
    graph, inputs = drawn("sdpa_bwd b=1 h=1 q=3 kv=1 d=16 dtype=e4m3 d_o=e5m2 out=fp32")
    op = operation_of(graph)
    for name, value in {"scale_s": 1000, "descale_s": 1, "descale_d_o": 1, "scale_dv": 1}.items():
        inputs[op.numbers[NUMBERS.index(name)].uid] = np.full((1, 1, 1, 1), value, np.float32)
    results = run_plan(device, engine.plan(graph, SM_90A, {}), graph, inputs)
    d_o = dtypes.to_values(inputs[op.d_o.uid], DataType.FP8_E5M2)
    np.testing.assert_allclose(results[op.dv.uid], 448 * d_o.sum(2, keepdims=True), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("engine", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_rows_past_the_lengths_may_be_anything(racing: Runtime, engine: Engine) -> None:
    graph, inputs = drawn("sdpa_bwd b=2 h=1 q=40 kv=50 d=16 right=3 lengths=both dtype=e4m3")
    op = operation_of(graph)
    assert op.seq_len_q is not None
    assert op.seq_len_kv is not None
    existing = {op.seq_len_q.uid: (33, 0), op.seq_len_kv.uid: (50, 7)}
    for uid, lengths in existing.items():
        inputs[uid] = np.array(lengths, np.int32).reshape(2, 1, 1, 1)
    plan = engine.plan(graph, SM_90A, {})
    expected = run_plan(racing, plan, graph, inputs)
    for ports, uid in {("q", "o", "d_o", "stats"): op.seq_len_q.uid, ("k", "v"): op.seq_len_kv.uid}.items():
        for port in ports:
            for batch, length in enumerate(existing[uid]):
                inputs[getattr(op, port).uid][batch, :, length:] = np.nan if port == "stats" else NAN
    found = run_plan(racing, plan, graph, inputs)
    for tensor in graph.outputs:
        np.testing.assert_array_equal(found[tensor.uid], expected[tensor.uid])


def test_nothing_has_magnitudes_of_0(device: Runtime) -> None:
    graph, inputs = drawn("sdpa_bwd b=1 h=2 q=0 kv=20 d=16 dtype=e4m3")
    results = run_plan(device, MMA.plan(graph, SM_90A, {}), graph, inputs)
    assert [results[tensor.uid].item() for tensor in operation_of(graph).largest] == [0] * len(LARGEST)


@pytest.mark.parametrize("engine", [MMA, WGMMA], ids=["mma", "wgmma"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("d=24 dtype=e4m3", "strides: expected multiples of 16 beside a head's"),
        (
            "d=16 dtype=e4m3 d_o=fp16",
            "d_o.data_type: expected FP8_E4M3 or FP8_E5M2, the same for all but d_o, got HALF",
        ),
        ("d=16 dtype=e4m3 out=fp64", "dq.data_type: expected HALF, BFLOAT16, FLOAT, FP8_E4M3 or FP8_E5M2, the same"),
        ("d=16 dtype=e4m3 ragged=yes", "expected heads with strides, got a ragged tensor beside fp8"),
    ],
)
def test_refusals_say_why(engine: Engine, words: str, reason: str) -> None:
    assert reason in str(engine.refuse(graph_of(f"sdpa_bwd b=1 h=1 q=20 {words}"), SM_90A))
