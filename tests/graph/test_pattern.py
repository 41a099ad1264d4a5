from __future__ import annotations

from collections.abc import Callable

import pytest

from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.pattern import (
    ACCUMULATOR_UID,
    Anchored,
    AnchoredWithReductions,
    dag_of,
    match_anchored,
    match_anchored_with_reductions,
)
from lowdnn.ops.convolution import Convolution, ConvolutionOperation
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation
from lowdnn.ops.tensor import Tensor


def convolution(line: str) -> Anchored[ConvolutionForward]:
    found = match_anchored(parse_case("conv n=1 c=4 hw=5x5 k=6 rs=3x3 " + line).graph(), ConvolutionForward)
    assert isinstance(found, Anchored), found
    return found


def refusal(graph: OperationGraph) -> str:
    found = match_anchored(graph, MatmulOperation)
    assert isinstance(found, str)
    return found


def test_an_anchor_alone() -> None:
    found = convolution("dtype=bf16")
    assert found.epilogue.anchor is found.anchor.y
    assert found.epilogue.operations == ()
    assert found.epilogue.stores == (found.anchor.y,)
    assert found.epilogue.dims == (1, 6, 3, 3)


def test_an_epilogue() -> None:
    found = convolution("dtype=bf16 epilogue=scale+residual+scalar+double+relu")
    dag = found.epilogue
    assert dag.anchor is found.anchor.y
    assert [op.mode.name for op in dag.operations] == ["MUL", "ADD", "MUL", "MUL", "RELU_FWD"]
    assert [t.dims for t in dag.loads] == [(1, 6, 1, 1), (1, 6, 3, 3)]
    assert [t.name for t in dag.scalars] == ["scalar", "constant"]
    assert dag.stores == (dag.operations[-1].output,)
    assert dag.result is None


def test_stored_intermediates() -> None:
    found = convolution("epilogue=store+relu+store+neg")
    assert found.epilogue.stores == (found.anchor.y, *(op.output for op in found.epilogue.operations))


@pytest.mark.parametrize(
    ("line", "mode", "alpha", "loads"),
    [("alpha=2", "IDENTITY", 2.0, 0), ("alpha=2 beta=3", "ADD", 2.0, 1), ("beta=3", "ADD", 1.0, 1)],
)
def test_alpha_and_beta_become_an_operation(line: str, mode: str, alpha: float, loads: int) -> None:
    found = convolution(f"dtype=fp16 {line} epilogue=store+relu")
    dag = found.epilogue
    assert dag.anchor is not None
    assert (dag.anchor.uid, dag.anchor.data_type, dag.anchor.is_virtual) == (ACCUMULATOR_UID, DataType.FLOAT, True)
    blend = dag.operations[0]
    assert (blend.mode.name, blend.x, blend.y, blend.alpha1) == (mode, dag.anchor, found.anchor.y, alpha)
    assert dag.loads == (found.anchor.y,) * loads
    assert dag.stores == (found.anchor.y, dag.operations[1].output)


def test_alpha_of_an_integer_accumulator_is_float_arithmetic() -> None:
    dag = convolution("dtype=int8 alpha=0.5").epilogue
    assert dag.anchor is not None
    assert dag.anchor.data_type is DataType.INT32
    assert dag.operations[0].pointwise.compute_type is DataType.FLOAT


@pytest.mark.parametrize("direction", [ConvolutionBackwardData, ConvolutionBackwardFilter])
def test_gradients_are_anchors(direction: type[ConvolutionOperation]) -> None:
    geometry = Convolution(DataType.FLOAT, 1, (1,), (1,), (2,), (1,))
    builder = CaseBuilder()
    dy = builder.tensor((2, 6, 3), DataType.HALF)
    if direction is ConvolutionBackwardData:
        w = builder.tensor((6, 4, 3), DataType.HALF)
        output = builder.convolution_data_gradient(dy, w, (2, 4, 6), geometry=geometry, alpha=2.0)
    else:
        x = builder.tensor((2, 4, 6), DataType.HALF)
        output = builder.convolution_filter_gradient(x, dy, (6, 4, 3), geometry=geometry, alpha=2.0)
    builder.pointwise(PointwiseMode.NEG, output, store=DataType.HALF)
    found = match_anchored(builder.graph(), direction)
    assert isinstance(found, Anchored), found
    assert found.anchor.output is output
    assert found.epilogue.dims == output.dims
    assert [op.mode.name for op in found.epilogue.operations] == ["IDENTITY", "NEG"]


def test_graphs_without_one_anchor_are_refused() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    c = builder.matmul(a, b, store=DataType.FLOAT)
    builder.matmul(c, b, store=DataType.FLOAT)
    assert refusal(builder.graph()) == "operations: expected exactly one MatmulOperation, got 2"
    assert "got 0" in refusal(parse_case("pointwise dims=4 ops=relu").graph())


def test_other_operations_are_refused() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    builder.reduction(ReduceTensorOp.ADD, builder.matmul(a, b), (1,), store=DataType.FLOAT)
    assert "got ReductionOperation" in refusal(builder.graph())


def test_reductions_reduce_one_value_of_the_epilogue() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    value = builder.pointwise(PointwiseMode.RELU_FWD, builder.matmul(a, b), store=DataType.HALF)
    builder.gen_stats(value)
    builder.reduction(ReduceTensorOp.AMAX, value, (0, 1), store=DataType.FLOAT)
    found = match_anchored_with_reductions(builder.graph(), MatmulOperation)
    assert isinstance(found, AnchoredWithReductions), found
    assert [type(op).__name__ for op in found.reductions] == ["GenStats", "ReductionOperation"]
    assert found.epilogue.result is value
    assert found.epilogue.stores == (value,)
    assert "got GenStats" in refusal(builder.graph())


def test_without_reductions_there_is_no_result() -> None:
    graph = parse_case("matmul m=4 n=4 k=4 epilogue=relu").graph()
    found = match_anchored_with_reductions(graph, MatmulOperation)
    assert isinstance(found, AnchoredWithReductions), found
    assert (found.reductions, found.epilogue.result) == ((), None)
    assert match_anchored(graph, MatmulOperation) == Anchored(found.anchor, found.epilogue)


def test_reductions_outside_the_epilogue_are_refused() -> None:
    def refused(build: Callable[[CaseBuilder, Tensor], object]) -> str:
        builder = CaseBuilder()
        a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
        build(builder, builder.matmul(a, b, store=DataType.FLOAT))
        found = match_anchored_with_reductions(builder.graph(), MatmulOperation)
        assert isinstance(found, str)
        return found

    def reduce(builder: CaseBuilder, value: Tensor, store: DataType | None = DataType.FLOAT) -> Tensor:
        return builder.reduction(ReduceTensorOp.ADD, value, (0,), store=store)

    def two_values(builder: CaseBuilder, value: Tensor) -> None:
        reduce(builder, value)
        reduce(builder, builder.pointwise(PointwiseMode.NEG, value))

    assert "expected the tensor that the others reduce" in refused(two_values)
    assert "from the epilogue" in refused(lambda g, value: reduce(g, g.tensor((4, 4), DataType.FLOAT)))
    read = refused(lambda g, value: g.pointwise(PointwiseMode.ADD, value, reduce(g, value, None), store=DataType.FLOAT))
    assert "expected outputs that are stored and not read" in read


def test_a_prologue_is_refused() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    builder.matmul(builder.pointwise(PointwiseMode.RELU_FWD, a), b, store=DataType.FLOAT)
    assert refusal(builder.graph()).startswith("MatmulOperation.a: expected a graph input")


def test_stored_outputs_of_another_shape_are_refused() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    bias = builder.tensor((1, 4), DataType.FLOAT)
    scaled = builder.pointwise(PointwiseMode.EXP, bias, store=DataType.FLOAT)
    builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b), scaled, store=DataType.FLOAT)
    assert "expected [4, 4] for a stored tensor, got [1, 4]" in refusal(builder.graph())


def test_virtual_values_may_repeat() -> None:
    builder = CaseBuilder()
    a, b = (builder.tensor((4, 4), DataType.FLOAT) for _ in range(2))
    bias = builder.tensor((1, 4), DataType.FLOAT)
    scaled = builder.pointwise(PointwiseMode.EXP, bias)
    builder.pointwise(PointwiseMode.ADD, builder.matmul(a, b), scaled, store=DataType.FLOAT)
    found = match_anchored(builder.graph(), MatmulOperation)
    assert isinstance(found, Anchored)
    assert found.epilogue.loads == (bias,)


def test_a_dag_without_an_anchor() -> None:
    graph = parse_case("pointwise dims=4x5 ops=add+store+relu broadcast=row").graph()
    operations = tuple(op for op in graph.operations if isinstance(op, PointwiseOperation))
    dag = dag_of((4, 5), operations, result=operations[-1].output)
    assert dag.loads == graph.inputs
    assert dag.stores == graph.outputs
    assert (dag.anchor, dag.result) == (None, operations[-1].output)
