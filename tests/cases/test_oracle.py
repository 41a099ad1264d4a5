from __future__ import annotations

import numpy as np

from lowdnn import dtypes
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate, trace
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.ops.pointwise import Pointwise
from lowdnn.status import BadParamError, ShapeMismatchError
from tests.support.builders import pointwise_graph
from tests.support.errors import raises


def test_virtual_tensors_are_rounded() -> None:
    builder = CaseBuilder(virtual_type=DataType.BFLOAT16)
    x = builder.tensor((1,), DataType.FLOAT)
    middle = builder.pointwise(PointwiseMode.IDENTITY, x)
    builder.pointwise(PointwiseMode.IDENTITY, middle, store=DataType.FLOAT)
    (result,) = evaluate(builder.graph(), {1: np.array([1 + 2.0**-9], np.float32)}).values()
    assert result.tolist() == [1.0]


def test_outputs_have_storage_type_and_saturate() -> None:
    graph = pointwise_graph(PointwiseMode.ADD, (3,), store=DataType.INT8)
    values = np.array([100, -100, 1.5], np.float32)
    (result,) = evaluate(graph, {1: values, 2: values}).values()
    assert result.dtype == np.int8
    assert result.tolist() == [127, -128, 3]


def test_int64_loses_nothing() -> None:
    graph = pointwise_graph(
        PointwiseMode.ADD, (1,), data_type=DataType.INT64, compute_type=DataType.INT64, store=DataType.INT64
    )
    big = np.array([2**53])
    (result,) = evaluate(graph, {1: big, 2: np.array([1])}).values()
    assert result.tolist() == [2**53 + 1]


def test_constants_and_by_value_tensors() -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 2), DataType.FLOAT)
    half = builder.constant(2, DataType.HALF, 0.1)
    scale = builder.by_value(2, DataType.FLOAT)
    scaled = builder.pointwise(PointwiseMode.MUL, x, half)
    builder.pointwise(PointwiseMode.MUL, scaled, scale, store=DataType.FLOAT)
    inputs = {x.uid: np.ones((2, 2), np.float32), scale.uid: np.array([[4.0]], np.float32)}
    (result,) = evaluate(builder.graph(), inputs).values()
    assert (result == np.float32(np.float16(0.1)) * 4).all()


def test_beta_reads_the_old_output() -> None:
    graph = parse_case("conv n=1 c=1 hw=2x2 k=1 rs=2x2 beta=2").graph()
    inputs = {1: np.ones((1, 1, 2, 2), np.float32), 2: np.ones((1, 1, 2, 2), np.float32)}
    with raises(BadParamError, "convolution_forward.y", expected="old values", got="none"):
        evaluate(graph, inputs)
    inputs[3] = np.full((1, 1, 1, 1), 10, np.float32)
    assert evaluate(graph, inputs)[3].item() == 24


def test_a_whole_chain_against_numpy() -> None:
    graph = parse_case("matmul m=3 n=4 k=5 epilogue=bias+store+relu").graph()
    rng = np.random.default_rng(1)
    a, b, bias = (rng.integers(-4, 5, dims).astype(np.float32) for dims in ((3, 5), (5, 4), (1, 4)))
    uids = [t.uid for t in graph.inputs]
    first, second = evaluate(graph, dict(zip(uids, (a, b, bias), strict=True))).values()
    np.testing.assert_array_equal(first, a @ b + bias)
    np.testing.assert_array_equal(second, np.maximum(a @ b + bias, 0))


def test_trace_shows_virtual_tensors() -> None:
    builder = CaseBuilder()
    x = builder.tensor((2, 3), DataType.FLOAT)
    builder.reduction(ReduceTensorOp.ADD, builder.pointwise(PointwiseMode.ABS, x), (1,), store=DataType.FLOAT)
    steps = trace(builder.graph(), {1: np.array([[1, -2, 3], [-4, 5, -6]], np.float32)})
    assert [(tensor.is_virtual, stored.tolist()) for tensor, stored in steps] == [
        (True, [[1, 2, 3], [4, 5, 6]]),
        (False, [[6], [15]]),
    ]


def test_bit_patterns_go_in_and_out() -> None:
    graph = pointwise_graph(PointwiseMode.NEG, (2,), data_type=DataType.FP8_E4M3, store=DataType.BFLOAT16)
    (result,) = evaluate(graph, {1: dtypes.from_float64(np.array([448.0, -0.5]), DataType.FP8_E4M3)}).values()
    assert dtypes.to_float64(result, DataType.BFLOAT16).tolist() == [-448, 0.5]


def test_inputs_are_checked() -> None:
    graph = pointwise_graph(Pointwise(PointwiseMode.ADD, DataType.FLOAT), (2, 3))
    x = np.zeros((2, 3), np.float32)
    with raises(BadParamError, "inputs[2]", expected="the value of tensor 'b' (uid 2)", got="none"):
        evaluate(graph, {1: x})
    with raises(BadParamError, "tensor 'b' (uid 2).values.dtype", expected="float32", got="float64"):
        evaluate(graph, {1: x, 2: x.astype(np.float64)})
    with raises(ShapeMismatchError, "tensor 'b' (uid 2).values.shape", expected="[2, 3]", got="[3, 2]"):
        evaluate(graph, {1: x, 2: x.reshape(3, 2)})
