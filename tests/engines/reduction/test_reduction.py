from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_90A
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.oracle import evaluate
from lowdnn.engines.reduction.reduction import ReductionEngine
from lowdnn.enums import DataType, KnobType, PointwiseMode, ReduceTensorOp
from lowdnn.graph.graph import OperationGraph
from lowdnn.graph.layouts import Layout
from lowdnn.ops.pointwise import Pointwise
from lowdnn.plan import KernelRef, Plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError
from tests.support.builders import matmul_graph, reduction_graph
from tests.support.data import fresh_seed
from tests.support.running import check_close, check_exact, run_plan
from tests.support.tolerance import assert_exact

ENGINE = ReductionEngine()
OPS = ReduceTensorOp
MODES = PointwiseMode

#: (dims, axes) of reductions of rows, columns, everything and nothing, and of axes that do not merge.
SHAPES = [
    ((9, 100), (1,)),
    ((100, 9), (0,)),
    ((9, 100), (0, 1)),
    ((4, 5, 64), (0, 2)),
    ((4, 5, 64), (1,)),
    ((3, 1, 5), (1,)),
    ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 2)),
    ((1, 1), (0, 1)),
    ((2, 2, 3, 3, 2, 2), (1, 3, 5)),
]

#: NORM2 is not defined for integers.
INTEGER_OPS = [operator for operator in OPS if operator is not OPS.NORM2]


def slices(count: int) -> dict[KnobType, int]:
    return {KnobType.SPLIT_K_SLC: count}


@pytest.mark.parametrize(
    ("operator", "compute_type", "axes", "split"),
    [(operator, DataType.FLOAT, (1,), 1) for operator in OPS]
    + [(operator, DataType.INT64, (0,), 4) for operator in INTEGER_OPS],
)
def test_every_operator(
    device: Runtime, operator: ReduceTensorOp, compute_type: DataType, axes: tuple[int, ...], split: int
) -> None:
    """Operands are integers whose products and sums are exact."""
    graph = reduction_graph(operator, (6, 20), axes, data_type=compute_type, compute_type=compute_type)
    rng = np.random.default_rng(fresh_seed())
    values = rng.choice([-1, 0, 1, 1], (6, 20)) if operator.name.startswith("MUL") else rng.integers(-4, 5, (6, 20))
    inputs = {1: values.astype(dtypes.info(compute_type).storage)}
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, slices(split)), graph, inputs)
    assert_exact(actual[2], evaluate(graph, inputs)[2], compute_type, operator.name)


@pytest.mark.parametrize(
    ("data_type", "compute_type", "store"),
    [
        (DataType.HALF, DataType.FLOAT, DataType.HALF),
        (DataType.BFLOAT16, DataType.FLOAT, DataType.FLOAT),
        (DataType.BFLOAT16, DataType.DOUBLE, DataType.BFLOAT16),
        (DataType.DOUBLE, DataType.DOUBLE, DataType.DOUBLE),
        (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT),
        (DataType.FP8_E5M2, DataType.FLOAT, DataType.FLOAT),
        (DataType.INT8, DataType.INT32, DataType.INT32),
        (DataType.INT32, DataType.INT64, DataType.INT64),
        (DataType.UINT8, DataType.INT32, DataType.INT8),
        (DataType.BOOLEAN, DataType.INT32, DataType.INT32),
        (DataType.FLOAT, DataType.INT32, DataType.FLOAT),
    ],
)
def test_data_types(device: Runtime, data_type: DataType, compute_type: DataType, store: DataType) -> None:
    for axis in (0, 1):
        graph = reduction_graph(OPS.ADD, (17, 24), (axis,), data_type=data_type, compute_type=compute_type, store=store)
        check_exact(device, ENGINE, graph, length=24)


@pytest.mark.parametrize(("dims", "axes"), SHAPES)
@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.PADDED])
def test_shapes_and_layouts(device: Runtime, dims: tuple[int, ...], axes: tuple[int, ...], layout: Layout) -> None:
    check_exact(device, ENGINE, reduction_graph(OPS.ADD, dims, axes, layout=layout), length=900)


@pytest.mark.parametrize("axes", [(2, 3), (0, 2, 3), (1,), (0,)])
@pytest.mark.parametrize(("layout", "split"), [(Layout.ROW_MAJOR, 1), (Layout.CHANNELS_LAST, 8)])
def test_images(device: Runtime, axes: tuple[int, ...], layout: Layout, split: int) -> None:
    graph = reduction_graph(
        OPS.ADD, (3, 16, 5, 7), axes, data_type=DataType.BFLOAT16, store=DataType.FLOAT, layout=layout
    )
    check_exact(device, ENGINE, graph, length=1680, choices=slices(split))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("strides", [(0, 40, 1), (40, 0, 1), (20, 1, 0), (0, 0, 0)])
def test_repeated_elements_of_stride_zero(device: Runtime, axes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    builder = CaseBuilder()
    x = builder.tensor((3, 20, 40), DataType.FLOAT, strides=strides)
    builder.reduction(OPS.ADD, x, axes, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=120)


@pytest.mark.parametrize("width", [1, 4, 64, 256])
@pytest.mark.parametrize("axes", [(1,), (0,)])
def test_widths(device: Runtime, width: int, axes: tuple[int, ...]) -> None:
    graph = reduction_graph(OPS.ADD, (43, 77), axes, data_type=DataType.HALF, store=DataType.FLOAT)
    choices = {KnobType.THREADS_PER_ROW: width, KnobType.MULTIPLY: 2, KnobType.SPLIT_K_SLC: 2}
    check_exact(device, ENGINE, graph, length=77, choices=choices)


@pytest.mark.parametrize("operator", [OPS.MAX, OPS.MUL])
def test_rows_that_end_within_a_vector(device: Runtime, operator: ReduceTensorOp) -> None:
    """Missing elements are neither larger than the negative elements nor a factor."""
    builder = CaseBuilder()
    x = builder.tensor((5, 21), DataType.FLOAT, strides=(24, 1))
    builder.reduction(operator, x, (1,), store=DataType.FLOAT)
    graph = builder.graph()
    inputs = {x.uid: -np.ones((5, 21), np.float32)}
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, {}), graph, inputs)
    (y,) = graph.outputs
    assert_exact(actual[y.uid], evaluate(graph, inputs)[y.uid], DataType.FLOAT, operator.name)


def test_uneven_slices_of_rows_in_two_axes(device: Runtime) -> None:
    """The last slice has a group less than the others, followed in memory by the next row."""
    graph = reduction_graph(OPS.ADD, (3, 4, 21), (0, 2), data_type=DataType.HALF, store=DataType.FLOAT)
    check_exact(device, ENGINE, graph, length=63, choices=slices(2))


@pytest.mark.parametrize("unroll", [1, 2, 8])
def test_long_rows_and_columns_leave_no_group_out(device: Runtime, unroll: int) -> None:
    for dims, axes in (((2, 6007), (1,)), ((6007, 2), (0,)), ((12014,), (0,)), ((3, 6008), (1,))):
        graph = reduction_graph(OPS.ADD, dims, axes, data_type=DataType.BFLOAT16, store=DataType.FLOAT)
        check_exact(device, ENGINE, graph, length=12014, choices={KnobType.MULTIPLY: unroll})


def test_real_sums_stay_accurate(device: Runtime) -> None:
    """A sum of 2^18 numbers near 1 in fp32 would lose five digits in an accumulator that adds them one by one."""
    graph = reduction_graph(OPS.ADD, (1 << 18,), (0,))
    rng = np.random.default_rng(fresh_seed())
    inputs = {1: rng.uniform(0.5, 1.5, 1 << 18).astype(np.float32)}
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, slices(2)), graph, inputs)
    exact = inputs[1].astype(np.float64).sum()
    assert abs(float(actual[2][0]) - exact) <= 4 * 2.0**-24 * exact


@pytest.mark.parametrize("operator", [OPS.MIN, OPS.MAX, OPS.AMAX, OPS.ADD, OPS.NORM2])
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_nan_wins(device: Runtime, operator: ReduceTensorOp, axes: tuple[int, ...]) -> None:
    graph = reduction_graph(operator, (40, 40), axes)
    values = np.random.default_rng(3).standard_normal((40, 40)).astype(np.float32)
    values[7, 9] = np.nan
    values[3, 30], values[31, 2] = np.inf, -np.inf
    actual = run_plan(device, ENGINE.plan(graph, SM_90A, slices(4)), graph, {1: values})[2]
    expected = evaluate(graph, {1: values})[2]
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    assert np.allclose(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    ("operator", "compute_type"),
    [(operator, DataType.FLOAT) for operator in OPS] + [(operator, DataType.INT32) for operator in INTEGER_OPS],
)
def test_nothing_reduced_gives_the_neutral_element(
    device: Runtime, operator: ReduceTensorOp, compute_type: DataType
) -> None:
    for dims, axes in (((3, 0), (1,)), ((0, 5), (0,)), ((0, 0), (0, 1))):
        graph = reduction_graph(operator, dims, axes, data_type=compute_type, compute_type=compute_type)
        check_exact(device, ENGINE, graph)


def test_no_outputs_launch_nothing(device: Runtime) -> None:
    assert check_exact(device, ENGINE, reduction_graph(OPS.ADD, (0, 5), (1,))).launches == ()


def normalised_graph(axes: tuple[int, ...], layout: Layout) -> OperationGraph:
    """The graph of z = (sum over axes of |2 x + bias|) * scale - 1, which also stores the sum and |...|."""
    builder = CaseBuilder(layout)
    x = builder.tensor((4, 16, 6), DataType.BFLOAT16)
    bias = builder.tensor((1, 16, 1), DataType.FLOAT)
    moved = builder.pointwise(MODES.ADD, x, bias, alpha1=2.0)
    size = builder.pointwise(MODES.ABS, moved, store=DataType.HALF)
    y = builder.reduction(OPS.ADD, size, axes, store=DataType.FLOAT)
    scale = builder.tensor(y.dims, DataType.HALF)
    product = builder.pointwise(MODES.MUL, y, scale)
    builder.pointwise(MODES.SUB, product, builder.constant(3, DataType.FLOAT, 1.0), store=DataType.FLOAT)
    return builder.graph()


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2)])
@pytest.mark.parametrize(("layout", "split"), [(Layout.ROW_MAJOR, 4), (Layout.CHANNELS_LAST, 1)])
def test_pointwise_operations_on_both_sides(device: Runtime, axes: tuple[int, ...], layout: Layout, split: int) -> None:
    plan = check_exact(device, ENGINE, normalised_graph(axes, layout), length=384, choices=slices(split))
    assert len(plan.launches) == (2 if split > 1 else 1)


def test_index_of_an_axis_before_and_after(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((4, 5, 8), DataType.FLOAT)
    index = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.FLOAT, axis=2), x)
    y = builder.reduction(OPS.ADD, builder.pointwise(MODES.MUL, index, x), (2,))
    rows = builder.pointwise(Pointwise(MODES.GEN_INDEX, DataType.FLOAT, axis=1), y)
    builder.pointwise(MODES.ADD, rows, y, store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph(), length=40)


def test_operations_with_the_dims_of_x_are_fused(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((12, 40), DataType.FLOAT)
    builder.pointwise(MODES.RELU_FWD, x, store=DataType.BFLOAT16)
    builder.reduction(OPS.MAX, x, (1,), store=DataType.FLOAT)
    check_exact(device, ENGINE, builder.graph())


def test_real_values_after_an_average(device: Runtime) -> None:
    builder = CaseBuilder()
    x = builder.tensor((30, 300), DataType.HALF)
    mean = builder.reduction(OPS.AVG, builder.pointwise(MODES.MUL, x, x), (1,))
    builder.pointwise(MODES.SQRT, mean, store=DataType.FLOAT)
    check_close(device, ENGINE, builder.graph(), length=300)


def test_every_scheduling_policy(scheduled: Runtime) -> None:
    for axes in ((0,), (1,), (0, 1)):
        graph = reduction_graph(OPS.ADD, (70, 130), axes, data_type=DataType.BFLOAT16, store=DataType.FLOAT)
        for split in (1, 3):
            check_exact(scheduled, ENGINE, graph, length=9100, choices=slices(2 ** (split - 1)))


def with_wide_indices(plan: Plan) -> Plan:
    def widened(kernel: KernelRef) -> KernelRef:
        macros = tuple((name, "i64" if name == "INDEX" else value) for name, value in kernel.parameters)
        return replace(kernel, parameters=macros)

    return replace(plan, kernels=tuple(map(widened, plan.kernels)))


@pytest.mark.parametrize(("axes", "split"), [((0, 2), 1), ((0,), 4)])
def test_indices_of_64_bits_give_the_same(device: Runtime, axes: tuple[int, ...], split: int) -> None:
    graph = reduction_graph(OPS.ADD, (6, 5, 40), axes)
    inputs = {1: np.random.default_rng(5).integers(-4, 5, (6, 5, 40)).astype(np.float32)}
    plan = with_wide_indices(ENGINE.plan(graph, SM_90A, slices(split)))
    assert_exact(run_plan(device, plan, graph, inputs)[2], evaluate(graph, inputs)[2], DataType.FLOAT)


def test_huge_reductions_are_planned_with_64_bit_indices() -> None:
    plan = plan_of((2**18, 2**18), (0, 1))
    assert {dict(kernel.parameters)["INDEX"] for kernel in plan.kernels} == {"i64"}


def plan_of(dims: tuple[int, ...], axes: tuple[int, ...]) -> Plan:
    return ENGINE.plan(reduction_graph(OPS.ADD, dims, axes, data_type=DataType.BFLOAT16), SM_90A, {})


@pytest.mark.parametrize("dims", [(8192, 8192), (65536, 1024), (1024, 65536)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_large_reductions_fill_the_device(dims: tuple[int, ...], axes: tuple[int, ...]) -> None:
    plan = plan_of(dims, axes)
    assert plan.launches[0].grid[0] >= 3 * SM_90A.sm_count
    assert plan.workspace_bytes <= 1 << 20
    assert plan.work.bytes < 1.02 * 2 * dims[0] * dims[1]


@pytest.mark.parametrize(
    ("dims", "width", "slices"),
    [
        ((32, 512, 784), 256, 1),
        ((64, 256, 3136), 256, 1),
        ((32, 128, 784), 256, 1),
        ((128, 128, 3136), 256, 4),
        ((32, 64, 12544), 256, 8),
        ((8, 4096, 200), 16, 3),
        ((32, 1024, 196), 256, 1),
    ],
)
def test_large_planes_have_a_block_and_slices_where_these_would_be_too_few(
    dims: tuple[int, ...], width: int, slices: int
) -> None:
    """A plane also has one block where slices would take longer than another launch."""
    plan = plan_of(dims, (0, 2))
    chosen = dict(plan.choices)
    assert (chosen[KnobType.THREADS_PER_ROW], chosen[KnobType.SPLIT_K_SLC]) == (width, slices)
    assert len(plan.launches) == (1 if slices == 1 else 2)


def test_the_same_plan_for_equal_graphs() -> None:
    assert plan_of((512, 512), (0,)) == plan_of((512, 512), (0,))


def test_another_shape_is_no_other_kernel() -> None:
    assert plan_of((8192, 4096), (1,)).kernels == plan_of((8190, 4096), (1,)).kernels


def test_refusals_name_what_they_found() -> None:
    refusal = ENGINE.refuse(matmul_graph(), SM_90A)
    assert refusal is not None
    assert "exactly one ReductionOperation or GenStats, got 0" in refusal.reason
    with pytest.raises(NotSupportedError, match="exactly one"):
        ENGINE.plan(matmul_graph(), SM_90A, {})
    with pytest.raises(BadParamError, match="THREADS_PER_ROW"):
        ENGINE.plan(reduction_graph(OPS.ADD, (4, 4), (0,)), SM_90A, {KnobType.THREADS_PER_ROW: 3})
