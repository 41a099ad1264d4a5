"""Attention forward in fp8, with numbers that operands and results are scaled by."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.attention.attention_decode import AttentionDecode
from lowdnn.engines.attention.attention_mma import AttentionMma
from lowdnn.engines.attention.attention_wgmma import AttentionWgmma
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.reduction import Reduction, ReductionOperation
from lowdnn.runtime.runtime import Runtime
from tests.support.data import fresh_seed
from tests.support.running import check_case, run_plan

WGMMA = AttentionWgmma()
NAN = 0x7F  # in e4m3

#: Each crosses several features; sizes are odd on purpose.
LINES = (
    "sdpa b=2 h=1 q=33 kv=77 d=48 dv=80 lengths=yes stats=yes layout=bshd dtype=e4m3",
    "sdpa b=1 h=4 hk=2 q=70 kv=50 d=64 causal=bottom_right stats=lse dtype=e5m2 out=fp16",
    "sdpa b=1 h=4 hk=1 hv=2 q=65 kv=290 d=16 causal=top_left left=20 dtype=e4m3 out=bf16",
    "sdpa b=1 h=1 q=40 kv=200 d=128 stats=lse layout=sbhd dtype=e4m3",
    "sdpa b=1 h=2 q=33 kv=77 d=64 scores=tanh right=3 sink=yes stats=log2 dtype=e4m3",
    "sdpa b=1 h=1 q=20 kv=50 d=256 dtype=e4m3",
    "sdpa b=1 h=2 q=1 kv=1 d=16 stats=yes dtype=e5m2",
    "sdpa b=3 h=2 hk=1 q=140 kv=100 d=16 causal=top_left lengths=both dtype=e4m3 out=fp32",
    "sdpa b=1 h=2 hk=1 q=140 kv=400 d=32 right=60 blocks=yes dtype=e4m3",
)


def graph_of(line: str) -> OperationGraph:
    return parse_case(line).graph()


@pytest.mark.parametrize("line", LINES)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, WGMMA, line)


@pytest.mark.parametrize("queries", [64, 192])
def test_values_are_transposed_beside_everything_else(racing: Runtime, queries: int) -> None:
    """More tiles of keys than stages, tiles of queries with different numbers of them, some without any."""
    line = "sdpa b=2 h=1 q=70 kv=150 d=48 causal=bottom_right lengths=yes stats=lse dtype=e4m3 out=bf16"
    check_case(racing, WGMMA, line, {KnobType.TILE_M: queries, KnobType.TILE_N: 32})


@pytest.mark.parametrize(
    "words",
    [
        "kv=150 stats=yes",
        "kv=150 causal=bottom_right lengths=yes sink=yes",
        "kv=150 lengths=both sink=yes stats=yes",
        "kv=95 left=20 right=20",  # one key alone for rows of a tile that do not exist
    ],
)
def test_largest_magnitudes(device: Runtime, words: str) -> None:
    """The largest weights come before rounding, the largest outputs that are stored in FLOAT before their scale."""
    case = parse_case(f"sdpa b=2 h=2 q=90 d=16 dtype=e4m3 out=fp32 {words}")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    results = run_plan(device, WGMMA.plan(graph, SM_90A, {}), graph, inputs)
    exact = evaluate(graph, inputs, rounds_virtual=False)
    largest_weight, largest_output = (tensor.uid for tensor in graph.outputs if tensor.element_count == 1)
    o = next(tensor.uid for tensor in graph.outputs if tensor.dims == (2, 2, 90, 16))
    scale = next(inputs[tensor.uid] for tensor in graph.inputs if tensor.name == "scale_o")
    np.testing.assert_allclose(results[largest_weight], exact[largest_weight], rtol=1e-3)
    np.testing.assert_allclose(results[largest_output] * scale, np.abs(results[o]).max(), rtol=1e-6)


def test_small_weights_count(device: Runtime) -> None:
    """A key that outweighs each of 500 others by far, whose weights together are as large: rounded relative to the
    largest one, they still add up."""
    case = parse_case("sdpa b=1 h=1 q=3 kv=501 d=16 dtype=e4m3 out=fp32")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor for tensor in graph.inputs}
    values = {"q": 1.0, "k": 0.0, "v": 1.0, **dict.fromkeys(of.keys() - {"q", "k", "v", "scale"}, 1.0)}
    for name, value in values.items():
        array = np.full(of[name].dims, value)
        if name == "k":
            array[..., 0] = 1.5  # scores of 6 and 0, weights of 403 and 1
        if name == "v":
            array[:, :, 0] = -1.0
        inputs[of[name].uid] = dtypes.from_float64(array, of[name].data_type)
    results = run_plan(device, WGMMA.plan(graph, SM_90A, {}), graph, inputs)
    o = next(tensor.uid for tensor in graph.outputs if tensor.dims == (1, 1, 3, 16))
    weight = np.exp(6.0)
    np.testing.assert_allclose(results[o], (500 - weight) / (500 + weight), atol=0.04)


def test_keys_beyond_the_length_may_be_anything(racing: Runtime) -> None:
    case = parse_case("sdpa b=2 h=1 q=9 kv=150 d=16 lengths=yes dtype=e4m3")
    graph, inputs = case.graph(), case.inputs(fresh_seed(), exact=False)
    of = {tensor.name: tensor.uid for tensor in graph.inputs}
    existing = (140, 3)
    inputs[of["lengths"]] = np.array(existing, np.int32).reshape(2, 1, 1, 1)
    plan = WGMMA.plan(graph, SM_90A, {})
    expected = run_plan(racing, plan, graph, inputs)
    for batch, length in enumerate(existing):
        inputs[of["k"]][batch, ..., length:] = NAN
        inputs[of["v"]][batch, :, length:] = NAN
    found = run_plan(racing, plan, graph, inputs)
    for tensor in graph.outputs:
        np.testing.assert_array_equal(found[tensor.uid], expected[tensor.uid])


@pytest.mark.parametrize("size", [16, 64, 80, 128, 192, 256])
def test_sizes_have_kernels_that_fit(size: int) -> None:
    for words in ("q=200 kv=70", "q=9", "q=4096 causal=top_left"):
        plan = WGMMA.plan(graph_of(f"sdpa b=1 h=1 d={size} {words} dtype=e4m3"), SM_90A, {})
        assert all(launch.shared_bytes <= SM_90A.shared_bytes_per_block for launch in plan.launches)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("sdpa b=1 h=1 q=20 d=24 dtype=e4m3", "q's head: expected a multiple of 16 up to 256, got 24"),
        ("sdpa b=1 h=1 q=20 d=16 dtype=e4m3 dropout=0.5", "expected weights in fp8 that numbers alone scale"),
    ],
)
def test_refusals_say_why(line: str, reason: str) -> None:
    assert reason in str(WGMMA.refuse(graph_of(line), SM_90A))


@pytest.mark.parametrize("engine", [AttentionMma(), AttentionDecode()], ids=["mma", "decode"])
def test_other_kernels_take_neither_fp8_nor_largest_magnitudes(engine: AttentionMma | AttentionDecode) -> None:
    graph = graph_of("sdpa b=1 h=1 q=20 d=16 dtype=e4m3")
    assert "expected none that reduces, got a ReductionOperation" in str(engine.refuse(graph, SM_90A))
    without = OperationGraph(op for op in graph.operations if not isinstance(op, ReductionOperation))
    assert "expected HALF or BFLOAT16, all the same, got FP8_E4M3" in str(engine.refuse(without, SM_90A))


def test_largest_magnitudes_are_of_weights_and_outputs() -> None:
    graph = graph_of("sdpa b=1 h=1 q=20 d=16 dtype=e4m3")
    (first, second) = (op for op in graph.operations if isinstance(op, ReductionOperation))

    def refused(*changed: ReductionOperation) -> str:
        others = [op for op in graph.operations if not isinstance(op, ReductionOperation)]
        return str(WGMMA.refuse(OperationGraph([*others, *changed]), SM_90A))

    scores = next(op.c for op in graph.operations if type(op).__name__ == "MatmulOperation")
    of_scores = ReductionOperation(first.reduction, scores, first.y)
    total = ReductionOperation(Reduction(ReduceTensorOp.ADD, DataType.FLOAT), first.x, first.y)
    assert refused(first, second) == "None"
    assert "expected an AMAX of the softmax or of the output" in refused(of_scores)
    assert "expected no reductions but AMAX of everything" in refused(total)
    twice = ReductionOperation(first.reduction, second.x, first.y)
    assert "expected one AMAX of the output, got several" in refused(second, twice)


def test_attention_in_16_bits_has_largest_magnitudes_too(device: Runtime) -> None:
    builder = CaseBuilder()
    q, v = (builder.tensor((1, 1, rows, 16), DataType.HALF) for rows in (20, 30))
    k = builder.tensor((1, 1, 16, 30), DataType.HALF, strides=(480, 480, 1, 16))
    weights = builder.softmax(builder.matmul(q, k), (3,))
    largest_weight = builder.reduction(ReduceTensorOp.AMAX, weights, (0, 1, 2, 3), store=DataType.FLOAT)
    rounded = builder.pointwise(PointwiseMode.IDENTITY, weights, virtual=DataType.HALF)
    o = builder.matmul(rounded, v, store=DataType.FLOAT)
    largest_output = builder.reduction(ReduceTensorOp.AMAX, o, (0, 1, 2, 3), store=DataType.FLOAT)
    graph, rng = builder.graph(), np.random.default_rng(fresh_seed())
    inputs = {tensor.uid: rng.standard_normal(tensor.dims).astype(np.float16) for tensor in (q, k, v)}
    results = run_plan(device, WGMMA.plan(graph, SM_90A, {}), graph, inputs)
    exact = evaluate(graph, inputs, rounds_virtual=False)
    np.testing.assert_allclose(results[largest_weight.uid], exact[largest_weight.uid], rtol=1e-4)
    np.testing.assert_array_equal(results[largest_output.uid].item(), np.abs(results[o.uid]).max())
