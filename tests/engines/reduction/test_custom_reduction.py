"""``custom_reduction``: operators that are sub-graphs, in every layout, and with any number of threads and slices."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest

from lowdnn import dtypes
from lowdnn.arch.specs import SM_80, SM_90A
from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.cases.building.operators import OPERATORS, operator_of
from lowdnn.engines.reduction.custom_reduction import CustomReductionEngine
from lowdnn.engines.registry import engine_named
from lowdnn.enums import DataType, KnobType, PointwiseMode
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.custom_reduction import CustomReduction
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.subgraph import Subgraph
from lowdnn.ops.tensor import Tensor
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import BadParamError, NotSupportedError, ShapeMismatchError
from tests.support.data import fresh_seed
from tests.support.errors import raises
from tests.support.pairs import paired
from tests.support.running import check_case, check_exact, check_outputs, run_plan

ENGINE = CustomReductionEngine()
F32, INNER = DataType.FLOAT, 1000
AXES = ("0", "1", "3", "0,2", "1,3", "0,1,2,3")


@paired(
    ("op", tuple(OPERATORS)),
    ("axes", AXES),
    ("layout", ("row", "nhwc", "padded")),
    ("width", (1, 2, 8, 32, 256)),
    (("unroll", "slices"), ((1, 1), (4, 1), (2, 8))),
)
def test_threads_and_slices(
    device: Runtime, op: str, axes: str, layout: str, width: int, unroll: int, slices: int
) -> None:
    """Most of the operators do not commute, so that a wrong order of states shows."""
    line = f"custom_reduction dims=3x5x4x19 axes={axes} op={op} layout={layout} dtype=fp32"
    check_case(device, ENGINE, line, _knobs(width, unroll, slices))


@pytest.mark.parametrize(
    "line",
    [
        "custom_reduction dims=5x70 axes=1 op=argmax dtype=bf16 before=abs+store after=double",
        "custom_reduction dims=5x71 axes=0 op=logsumexp dtype=fp16 before=scale after=abs+store+neg",
        "custom_reduction dims=5x70 axes=1 op=add dtype=int8 out=int64 compute=int32",
        "custom_reduction dims=5x70 axes=1 op=affine dtype=fp64",
        "custom_reduction dims=4x0 axes=1 op=argmax",
        "custom_reduction dims=0x4 axes=1 op=add",
        "custom_reduction dims=3x4 axes=0,1 op=last align=4",
    ],
)
def test_lines(device: Runtime, line: str) -> None:
    check_case(device, ENGINE, line)


def test_states_in_half_precision(device: Runtime) -> None:
    """Each combined state is rounded to its compute type: 2048 + 1 is 2048."""
    graph = parse_case("custom_reduction dims=6x50 axes=1 op=add dtype=fp16 compute=fp16").graph()
    check_exact(device, ENGINE, graph, length=50)
    ones = np.ones((6, 50), np.float16)
    ones[:, 0] = 2048
    plan = ENGINE.plan(graph, SM_90A, _knobs(1, 1, 1))
    assert (run_plan(device, plan, graph, {graph.inputs[0].uid: ones})[graph.outputs[0].uid] == 2048).all()


SLICED = "custom_reduction dims=3x300 axes={} op=affine layout=row dtype=fp32 before=abs+store"


@pytest.mark.parametrize("axes", ["0", "1"])
def test_under_every_policy(scheduled: Runtime, axes: str) -> None:
    check_case(scheduled, ENGINE, SLICED.format(axes), _knobs(64, 2, 2))


@pytest.mark.parametrize("axes", ["0", "1"])
def test_under_the_race_detector(racing: Runtime, axes: str) -> None:
    check_case(racing, ENGINE, SLICED.format(axes), _knobs(64, 2, 2))


def test_one_thread_combines_from_the_left(device: Runtime) -> None:
    """A difference is not associative: only this order gives ((initial - x[0]) - x[1]) - ..."""
    builder = CaseBuilder()
    x = builder.tensor((6, 37), F32)
    operator = _operator(PointwiseMode.SUB)
    y = builder.tensor((6, 1), F32)
    builder.add(CustomReduction((x,), (y,), (1,), (100.0,), operator))
    graph, values = builder.graph(), np.random.default_rng(fresh_seed()).integers(-9, 9, (6, 37)).astype(np.float32)
    for axis_knobs in (_knobs(1, 1, 1), _knobs(1, 4, 1)):
        plan = ENGINE.plan(graph, SM_90A, axis_knobs)
        found = run_plan(device, plan, graph, {x.uid: values})[y.uid]
        assert (found == reduce(np.subtract, values.T, np.full(6, 100, np.float32))[:, None]).all()


@paired(("axes", ((0,), (1,))), ("width", (1, 8, 64, 256)), ("slices", (1, 4)))
def test_initial_values_count_once(device: Runtime, axes: tuple[int, ...], width: int, slices: int) -> None:
    """Initial values need not be neutral."""
    builder, dims = CaseBuilder(), (48, 48)
    x, y = builder.tensor(dims, F32), builder.tensor(tuple(1 if axis in axes else 48 for axis in range(2)), F32)
    builder.add(CustomReduction((x,), (y,), axes, (100.0,), _operator(PointwiseMode.ADD)))
    graph, values = builder.graph(), np.random.default_rng(fresh_seed()).integers(-9, 9, dims).astype(np.float32)
    found = run_plan(device, ENGINE.plan(graph, SM_90A, _knobs(width, 1, slices)), graph, {x.uid: values})[y.uid]
    assert (found == 100 + values.sum(axes, keepdims=True)).all()


def test_numbers_by_value_and_constants(device: Runtime) -> None:
    """left + (right * 3) * number is not associative, so one thread computes it."""
    builder = CaseBuilder()
    x, number = builder.tensor((4, 9), F32), builder.by_value(1, F32)
    three, y = builder.constant(1, F32, 3.0), builder.tensor((4, 1), F32)
    left, right, tripled, scaled, made = (_number(INNER + i) for i in range(5))
    product, total = Pointwise(PointwiseMode.MUL, F32), Pointwise(PointwiseMode.ADD, F32)
    inside = (
        PointwiseOperation(product, x=right, b=three, y=tripled),
        PointwiseOperation(product, x=tripled, b=number, y=scaled),
        PointwiseOperation(total, x=left, b=scaled, y=made),
    )
    builder.add(CustomReduction((x,), (y,), (1,), (0.5,), Subgraph((left, right), (made,), inside)))
    graph, values = builder.graph(), np.arange(36, dtype=np.float32).reshape(4, 9)
    inputs = {x.uid: values, number.uid: np.full((1,), 2, np.float32)}
    found = run_plan(device, ENGINE.plan(graph, SM_90A, _knobs(1, 1, 1)), graph, inputs)[y.uid]
    assert (found[:, 0] == 0.5 + 6 * values.sum(1)).all()


def test_a_reader_of_two_results_is_a_part_of_its_own(device: Runtime) -> None:
    """The engine refuses log(sum of exponentials) of m and s, which a chain of plans computes."""
    builder = CaseBuilder()
    x, ones = builder.tensor((5, 40), F32), builder.tensor((5, 40), F32)
    m, s = (builder.tensor((5, 1), F32, is_virtual=True) for _ in range(2))
    builder.add(CustomReduction((x, ones), (m, s), (1,), (-np.inf, 0.0), operator_of("logsumexp", (F32, F32), INNER)))
    builder.pointwise(PointwiseMode.ADD, m, builder.pointwise(PointwiseMode.LOG, s), store=F32)
    graph = builder.graph()
    assert "reads two results" in str(ENGINE.refuse(graph, SM_90A))
    values = np.random.default_rng(fresh_seed()).standard_normal((5, 40)).astype(np.float32)
    plan = engine_named("composite").plan(graph, SM_90A, {})
    check_outputs(device, plan, graph, {x.uid: values, ones.uid: np.ones_like(values)}, 40)


def test_a_shape_and_numbers_are_no_new_kernel() -> None:
    def kernels(line: str, initial: float) -> tuple[str, ...]:
        graph = parse_case(line).graph()
        *others, last = graph.operations
        assert isinstance(last, CustomReduction)
        changed = OperationGraph([*others, replace(last, initial=(initial,))])
        return tuple(kernel.name for kernel in ENGINE.plan(changed, SM_80, _knobs(32, 2, 4)).kernels)

    first = kernels("custom_reduction dims=8x1000 axes=1 op=add", 0.0)
    assert len(first) == 2
    assert kernels("custom_reduction dims=16x2000 axes=1 op=add", 3.0) == first


def test_graphs_are_written_and_read() -> None:
    graph = parse_case("custom_reduction dims=4x6x50 axes=0,2 op=argmax dtype=bf16 before=abs after=double").graph()
    again = OperationGraph.from_json(graph.to_json())
    assert (again.key, again.operations) == (graph.key, graph.operations)


def test_what_operators_are_refused() -> None:
    x, y = (Tensor(uid, F32, dims, (5, 1), 16) for uid, dims in ((1, (4, 5)), (2, (4, 1))))
    operator = _operator(PointwiseMode.ADD)
    valid = CustomReduction((x,), (y,), (1,), (0.0,), operator)
    where = "custom_reduction"
    with raises(BadParamError, f"{where}.initial", expected="1, since x has 1", got="2"):
        replace(valid, initial=(0.0, 1.0))
    for axes in ((1, 1), (1, 0), (0, 2), (-1,)):
        with raises(BadParamError, f"{where}.axes", expected="ascending axes", got=str([*axes])):
            replace(valid, axes=axes)
    with raises(ShapeMismatchError, f"{where}.y[0].dims", expected="[1, 5]"):
        replace(valid, axes=(0,))
    left, right = operator.given
    index = Pointwise(PointwiseMode.GEN_INDEX, F32, axis=0)
    indexed = Subgraph((left, right), operator.made, (PointwiseOperation(index, x=left, y=operator.made[0]),))
    with raises(NotSupportedError, f"{where}.operator", got="GEN_INDEX"):
        replace(valid, operator=indexed)
    half = replace(right, data_type=DataType.HALF)
    with raises(BadParamError, f"{where}.operator.{half.label}.data_type", expected="FLOAT", got="HALF"):
        replace(valid, operator=replace(operator, given=(left, half)))
    with raises(BadParamError, f"{where}.operator.given", expected="each tensor once"):
        replace(valid, operator=replace(operator, given=(left, left)))
    (op,) = operator.operations
    wide = replace(operator.made[0], dims=(2,))
    with raises(ShapeMismatchError, f"{where}.operator.{wide.label}.dims", expected="one element"):
        replace(valid, operator=Subgraph((left, right), (wide,), (replace(op, y=wide),)))
    stored = replace(right, uid=77, is_virtual=False)
    with raises(NotSupportedError, f"{where}.operator.{stored.label}", expected="constants"):
        replace(valid, operator=replace(operator, operations=(replace(op, b=stored),)))


def test_the_first_of_equal_elements_is_the_largest(device: Runtime) -> None:
    graph = parse_case("custom_reduction dims=7x260 axes=1 op=argmax dtype=fp16").graph()
    values = np.random.default_rng(fresh_seed()).integers(0, 3, (7, 260)).astype(np.float16)
    index = next(t for t in graph.outputs if t.data_type is DataType.INT32)
    for knobs in (_knobs(1, 1, 1), _knobs(32, 2, 1), _knobs(256, 1, 4)):
        plan = ENGINE.plan(graph, SM_90A, knobs)
        found = run_plan(device, plan, graph, {graph.inputs[0].uid: values})
        assert (found[index.uid][:, 0] == dtypes.to_values(values, DataType.HALF).argmax(1)).all()


def _knobs(width: int, unroll: int, slices: int) -> dict[KnobType, int]:
    return {KnobType.THREADS_PER_ROW: width, KnobType.MULTIPLY: unroll, KnobType.SPLIT_K_SLC: slices}


def _number(uid: int) -> Tensor:
    return Tensor(uid, F32, (1,), (1,), 16, is_virtual=True)


def _operator(mode: PointwiseMode) -> Subgraph:
    left, right, made = (_number(INNER + i) for i in range(3))
    return Subgraph((left, right), (made,), (PointwiseOperation(Pointwise(mode, F32), x=left, b=right, y=made),))
