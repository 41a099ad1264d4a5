from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.pointwise.pointwise import Params, PointwiseEngine
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.pointwise import Pointwise, compute_types, input_ports
from lowdnn.ops.tensor import Tensor
from lowdnn.ops.tolerance import ToleranceClass
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.builders import matmul_graph, pointwise_graph
from tests.support.data import fresh_seed, special_values
from tests.support.running import check_close, check_exact, run_plan
from tests.support.tolerance import assert_close, assert_exact, tolerance

ENGINE = PointwiseEngine()
MODES = PointwiseMode


def arithmetic(mode: PointwiseMode, compute_type: DataType) -> Pointwise:
    """A graph of ``mode`` with parameters that differ from their defaults."""
    return Pointwise(
        mode,
        compute_type,
        relu_lower_clip=-1.0,
        relu_upper_clip=2.0,
        relu_lower_clip_slope=2.0,
        elu_alpha=0.75,
        softplus_beta=1.5,
        swish_beta=1.25,
        axis=1 if mode is MODES.GEN_INDEX else -1,
    )


def all_modes_graph(data_type: DataType, compute_type: DataType) -> OperationGraph:
    """A graph of every mode of ``compute_type``, each on the same operands and with a stored result."""
    builder = CaseBuilder()
    values = {port: builder.tensor((5, 7), data_type, name=port) for port in ("x", "b")}
    condition = builder.tensor((5, 7), DataType.BOOLEAN, name="t")
    ports = {"x": values["x"], "b": values["b"], "dy": values["b"], "t": condition}
    for mode in PointwiseMode:
        if compute_type in compute_types(mode):
            operands = [ports[port] for port in input_ports(mode)]
            builder.pointwise(arithmetic(mode, compute_type), *operands, store=data_type)
    return builder.graph()


@pytest.mark.parametrize(
    ("data_type", "compute_type"),
    [
        (DataType.FLOAT, DataType.FLOAT),
        (DataType.DOUBLE, DataType.DOUBLE),
        (DataType.BFLOAT16, DataType.FLOAT),
        (DataType.HALF, DataType.FLOAT),
        (DataType.INT32, DataType.INT32),
        (DataType.INT64, DataType.INT64),
        (DataType.INT8, DataType.INT32),
        (DataType.BOOLEAN, DataType.BOOLEAN),
        (DataType.FLOAT, DataType.BOOLEAN),
    ],
)
def test_every_mode(device: Runtime, data_type: DataType, compute_type: DataType) -> None:
    graph = all_modes_graph(data_type, compute_type)
    check_close(device, ENGINE, graph, length=1)


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16])
def test_arithmetic_in_16_bits_rounds_every_result(device: Runtime, data_type: DataType) -> None:
    builder = CaseBuilder()
    x, b = builder.tensor((300,), DataType.FLOAT), builder.tensor((300,), data_type)
    product = builder.pointwise(MODES.MUL, x, b, compute_type=data_type, store=DataType.FLOAT)
    builder.pointwise(MODES.ADD, product, b, compute_type=data_type, store=DataType.FLOAT)
    graph = builder.graph()
    rng = np.random.default_rng(fresh_seed())
    inputs = {
        x.uid: rng.standard_normal(300).astype(np.float32),
        b.uid: dtypes.from_float64(rng.standard_normal(300), data_type),
    }
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, DataType.FLOAT)


def test_nan_and_infinity(device: Runtime) -> None:
    builder = CaseBuilder()
    values = special_values(DataType.FLOAT)
    x, b = builder.tensor((1, values.size), DataType.FLOAT), builder.tensor((values.size, 1), DataType.FLOAT)
    arithmetic = (MODES.MIN, MODES.MAX, MODES.ADD, MODES.MUL, MODES.DIV, MODES.MOD, MODES.FLOOR_MOD)
    for mode in (*arithmetic, MODES.CMP_LT, MODES.CMP_EQ, MODES.CMP_NEQ, MODES.CMP_GE):
        builder.pointwise(mode, x, b, store=DataType.FLOAT)
    builder.pointwise(Pointwise(MODES.RELU_FWD, DataType.FLOAT, relu_upper_clip=6.0), x, store=DataType.FLOAT)
    for mode in (MODES.RELU_FWD, MODES.SQRT, MODES.LOG, MODES.GELU_FWD, MODES.SOFTPLUS_FWD, MODES.SWISH_FWD):
        wide = builder.pointwise(MODES.ADD, x, builder.pointwise(MODES.MUL, b, b), alpha2=0.0)
        builder.pointwise(mode, wide, store=DataType.FLOAT)
    operations = [op for op in builder.graph().operations if op.output.rank == 2 and op.output.dims[0] != 1]
    graph = OperationGraph(operations)
    inputs = {x.uid: values.reshape(1, -1), b.uid: values.reshape(-1, 1)}
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        context = graph.producer(graph.tensors[uid])
        assert_close(
            actual[uid], expected, DataType.FLOAT, tolerance(ToleranceClass.POINTWISE, DataType.FLOAT), str(context)
        )


def test_truth_is_decided_before_conversion(device: Runtime) -> None:
    """Numbers between 0 and 1 are true, although as integers they are 0."""
    builder = CaseBuilder()
    x, b = (builder.tensor((4,), DataType.FLOAT) for _ in range(2))
    for mode in (MODES.LOGICAL_AND, MODES.LOGICAL_OR):
        builder.pointwise(mode, x, b, compute_type=DataType.INT32, store=DataType.INT32)
    builder.pointwise(MODES.LOGICAL_NOT, x, compute_type=DataType.INT32, store=DataType.INT32)
    graph = builder.graph()
    values = np.array([[0.25, 0, 0.25, 0], [0.5, 0.5, 0, 0]], np.float32)
    found = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {x.uid: values[0], b.uid: values[1]})
    assert [array.tolist() for array in found.values()] == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 1]]


def all_values(data_type: DataType) -> np.ndarray:
    """Every value of a type of up to 16 bits except signalling NaN; special and random values of wider types."""
    facts = dtypes.info(data_type)
    if facts.kind is dtypes.Kind.BOOLEAN:
        return np.array([False, True])
    if facts.size_bytes <= 2:
        bits = np.arange(2 ** (8 * facts.size_bytes), dtype=f"u{facts.size_bytes}")
        exponent, quiet = 2**facts.exponent_bits - 1 << facts.mantissa_bits, 1 << max(facts.mantissa_bits - 1, 0)
        signalling = (bits & exponent == exponent) & (bits & quiet == 0) & (bits & quiet - 1 != 0)
        return bits[~signalling | (facts.exponent_bits == 0)].view(facts.storage)
    rng = np.random.default_rng(7)
    if facts.kind is dtypes.Kind.FLOAT:
        scales = 10.0 ** rng.uniform(-12, 12, 4000)
        ties = np.arange(2000) / 16 + np.exp2(rng.integers(-20, 20, 2000))
        random = np.concatenate([rng.standard_normal(4000) * scales, ties]).astype(facts.storage)
    else:
        random = (rng.integers(-(2**62), 2**62, 4000) >> rng.integers(0, 62, 4000)).astype(facts.storage)
    return np.concatenate([special_values(data_type), random])


@pytest.mark.parametrize("source", dtypes.supported(), ids=lambda t: dtypes.info(t).short_name)
def test_conversions_to_every_type_bit_for_bit(device: Runtime, source: DataType) -> None:
    values = all_values(source)
    compute_type = {
        DataType.DOUBLE: DataType.DOUBLE,
        DataType.INT64: DataType.INT64,
        DataType.INT32: DataType.INT32,
    }.get(source, DataType.FLOAT)
    builder = CaseBuilder()
    x = builder.tensor(values.shape, source)
    for target in dtypes.supported():
        builder.pointwise(MODES.IDENTITY, x, compute_type=compute_type, store=target)
    graph = builder.graph()
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, {x.uid: values})
    for uid, expected in evaluate(graph, {x.uid: values}).items():
        target = graph.tensors[uid].data_type
        assert_exact(actual[uid], expected, target, f"{source.name} to {target.name}")


def layouts_graph(dims: tuple[int, ...], x_strides: tuple[int, ...], y_strides: tuple[int, ...]) -> OperationGraph:
    builder = CaseBuilder()
    x = builder.tensor(dims, DataType.BFLOAT16, strides=x_strides)
    y = builder.tensor(dims, DataType.FLOAT, strides=y_strides)
    op = builder.pointwise(MODES.NEG, x, store=DataType.FLOAT)
    graph = builder.graph()
    moved = [
        type(one)(one.pointwise, x=x, y=Tensor(op.uid, y.data_type, dims, y_strides, 16)) for one in graph.operations
    ]
    return OperationGraph(moved)


@pytest.mark.parametrize(
    ("dims", "x_strides", "y_strides"),
    [
        ((4, 6, 8), (48, 8, 1), (48, 8, 1)),
        ((4, 6, 8), (64, 9, 1), (51, 8, 1)),
        ((4, 6, 8), (1, 4, 24), (48, 8, 1)),
        ((4, 6, 8), (48, 8, 1), (1, 32, 4)),
        ((4, 6, 8), (2, 96, 12), (500, 60, 3)),
        ((3, 20, 40), (0, 40, 1), (800, 40, 1)),
        ((3, 20, 40), (20, 1, 0), (800, 40, 1)),
        ((70, 50), (1, 72), (56, 1)),
        ((50, 70), (70, 1), (1, 50)),
        ((1, 1, 1), (5, 3, 2), (1, 7, 9)),
    ],
)
def test_strides(
    device: Runtime, dims: tuple[int, ...], x_strides: tuple[int, ...], y_strides: tuple[int, ...]
) -> None:
    check_exact(device, ENGINE, layouts_graph(dims, x_strides, y_strides))


@pytest.mark.parametrize("operand", [(1, 8, 1, 1), (2, 1, 5, 7), (1, 1, 1, 7), (2, 8, 5, 1), (1, 1, 1, 1), (1,)])
@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.CHANNELS_LAST])
def test_broadcast(device: Runtime, operand: tuple[int, ...], layout: Layout) -> None:
    builder = CaseBuilder(layout)
    x = builder.tensor((2, 8, 5, 7), DataType.HALF)
    b = builder.tensor(operand, DataType.FLOAT, layout=Layout.ROW_MAJOR)
    builder.pointwise(MODES.MUL, x, b, store=DataType.HALF, alpha1=2.0, alpha2=3.0)
    check_exact(device, ENGINE, builder.graph())


def test_by_value_operands(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((100,), DataType.FLOAT)
    by_value = builder.by_value(1, DataType.HALF)
    third = builder.constant(1, DataType.HALF, 1 / 3)
    scaled = builder.pointwise(MODES.MUL, x, by_value)
    builder.pointwise(MODES.ADD, scaled, third, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_another_constant_or_shape_is_no_other_kernel() -> None:
    def kernel(value: float, rows: int) -> object:
        builder = CaseBuilder()
        x = builder.tensor((rows, 64), DataType.FLOAT)
        clip = Pointwise(MODES.RELU_FWD, DataType.FLOAT, relu_upper_clip=value)
        sum_ = builder.pointwise(MODES.ADD, x, builder.constant(2, DataType.FLOAT, value), alpha1=value)
        builder.pointwise(clip, sum_, store=DataType.FLOAT)
        return ENGINE.plan(builder.graph(), SM_90A, {}).kernels

    assert kernel(2.0, 3) == kernel(5.5, 40)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 255, 2048, 2049, 8192 + 13])
def test_tails_of_vectors_and_blocks(device: Runtime, count: int) -> None:
    graph = pointwise_graph(MODES.ADD, (count,), data_type=DataType.BFLOAT16)
    for threads, unroll in ((64, 1), (64, 4), (256, 2)):
        check_exact(device, ENGINE, graph, choices={KnobType.BLOCK_SIZE: threads, KnobType.MULTIPLY: unroll})


def test_padded_rows_of_an_odd_extent(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((5, 13), DataType.BFLOAT16, strides=(16, 1))
    b = builder.tensor((5, 1), DataType.BFLOAT16)
    builder.pointwise(MODES.ADD, x, b, store=DataType.BFLOAT16, layout=Layout.PADDED)
    check_exact(device, ENGINE, builder.graph())


@pytest.mark.parametrize("dims", [(0,), (3, 0, 4), (0, 1)])
def test_empty_tensors_launch_nothing(device: Runtime, dims: tuple[int, ...]) -> None:
    assert check_exact(device, ENGINE, pointwise_graph(MODES.RELU_FWD, dims)).launches == ()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gen_index_keeps_its_axis_separate(device: Runtime, axis: int) -> None:
    builder = CaseBuilder()
    x = builder.tensor((3, 4, 16), DataType.FLOAT)
    index = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.FLOAT, axis=axis), x)
    builder.pointwise(MODES.ADD, index, x, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_index_along_a_repeated_axis_is_zero(device: Runtime) -> None:
    builder = CaseBuilder()
    row = builder.tensor((1, 16), DataType.FLOAT)
    x = builder.tensor((3, 16), DataType.FLOAT)
    index = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.FLOAT, axis=0), row)
    builder.pointwise(MODES.ADD, index, x, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_intermediates_that_are_stored_and_used_again(device: Runtime) -> None:
    builder = CaseBuilder(virtual_type=DataType.BFLOAT16)
    x = builder.tensor((6, 40), DataType.FLOAT)
    first = builder.pointwise(MODES.ADD, x, x, store=DataType.INT8)
    second = builder.pointwise(MODES.RELU_FWD, first)
    third = builder.pointwise(MODES.MUL, second, first, store=DataType.HALF, layout=Layout.TRANSPOSED)
    builder.pointwise(MODES.SUB, third, x, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    check_exact(scheduled, ENGINE, layouts_graph((9, 70), (70, 1), (72, 1)))
    check_exact(scheduled, ENGINE, pointwise_graph(MODES.MAX, (2, 8, 5, 5), (1, 8, 1, 1), data_type=DataType.HALF))


def test_indices_of_64_bits_give_the_same(device: Runtime) -> None:
    graph = pointwise_graph(MODES.ADD, (3, 5, 6), (3, 1, 6))
    plan = ENGINE.plan(graph, SM_90A, {})
    (kernel,) = plan.kernels
    wide = tuple((name, "i64" if name == "INDEX" else value) for name, value in kernel.parameters)
    changed = type(plan)(**vars(plan) | {"kernels": (type(kernel)(**vars(kernel) | {"parameters": wide}),)})
    inputs = {1: np.arange(90, dtype=np.float32).reshape(3, 5, 6), 2: np.arange(18, dtype=np.float32).reshape(3, 1, 6)}
    actual = run_plan(device, changed, graph, inputs)
    for uid, expected in evaluate(graph, inputs).items():
        assert_exact(actual[uid], expected, DataType.FLOAT)


def test_more_than_32_bits_of_elements_are_planned() -> None:
    plan = ENGINE.plan(pointwise_graph(MODES.NEG, (3, 2**31), data_type=DataType.BFLOAT16), SM_90A, {})
    assert dict(plan.kernels[0].parameters)["INDEX"] == "u32"
    plan = ENGINE.plan(pointwise_graph(MODES.ADD, (2**17, 2**17, 3), (1, 2**17, 1)), SM_90A, {})
    assert dict(plan.kernels[0].parameters)["INDEX"] == "i64"


def test_vectors_follow_alignment_and_strides() -> None:
    def vector(align: int, row_stride: int) -> object:
        builder = CaseBuilder(alignment_bytes=align)
        x = builder.tensor((4, 64), DataType.BFLOAT16, strides=(row_stride, 1))
        builder.pointwise(MODES.NEG, x, store=DataType.BFLOAT16)
        return dict(ENGINE.plan(builder.graph(), SM_90A, {}).kernels[0].parameters)["VECTOR"]

    assert [vector(16, 64), vector(16, 72), vector(16, 68), vector(16, 65), vector(4, 64)] == [8, 8, 4, 1, 2]


def test_a_transposition_reads_rows_and_writes_whole_sectors() -> None:
    plan = ENGINE.plan(layouts_graph((64, 48), (1, 64), (48, 1)), SM_90A, {})
    parameters = dict(plan.kernels[0].parameters)
    assert (parameters["VECTOR_AXIS"], parameters["VECTOR"]) == (0, 8)


def test_refusals_name_what_they_found() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "MatmulOperation" in refusal.reason
    with pytest.raises(NotSupportedError, match="MatmulOperation"):
        ENGINE.plan(matmul_graph(), SM_90A, {})

    builder = CaseBuilder()
    row = builder.tensor((1, 8), DataType.FLOAT)
    small = builder.pointwise(MODES.NEG, row, store=DataType.FLOAT)
    builder.pointwise(MODES.ADD, small, builder.tensor((4, 8), DataType.FLOAT), store=DataType.FLOAT)
    refusal = ENGINE.refuse(builder.graph(), SM_90A)
    assert refusal is not None
    assert "dims: expected" in refusal.reason


def test_unknown_knob_value() -> None:
    with pytest.raises(BadParamError, match="BLOCK_SIZE"):
        ENGINE.plan(pointwise_graph(MODES.NEG, (8,)), SM_90A, {KnobType.BLOCK_SIZE: 100})


def test_work_counts_each_byte_once() -> None:
    graph = pointwise_graph(MODES.ADD, (64, 128), (1, 128), data_type=DataType.BFLOAT16)
    work = ENGINE.plan(graph, SM_90A, {}).work
    assert (work.bytes, work.flops) == (2 * (64 * 128 + 128 + 64 * 128), 64 * 128)


def test_parameters_are_the_fields_of_params() -> None:
    (kernel,) = ENGINE.plan(pointwise_graph(MODES.NEG, (8,)), SM_90A, {}).kernels
    assert [name for name, _ in kernel.parameters] == [item.name for item in fields(Params)]


@pytest.mark.parametrize("data_type", dtypes.supported(), ids=lambda t: dtypes.info(t).short_name)
def test_by_value_tensors_of_every_type_and_nothing_else(device: Runtime, data_type: DataType) -> None:
    builder = CaseBuilder()
    value, third = builder.by_value(1, data_type), builder.constant(1, data_type, 3.0)
    builder.pointwise(MODES.ADD, value, third, store=DataType.DOUBLE)
    builder.pointwise(MODES.MUL, builder.tensor((9,), DataType.FLOAT), value, store=DataType.FLOAT)
    operations = builder.graph().operations
    check_exact(device, ENGINE, OperationGraph(operations[:1]))
    check_exact(device, ENGINE, OperationGraph(operations[1:]))
