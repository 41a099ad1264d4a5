from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from lowdnn.cases import parse_case
from lowdnn.cases.builder import CaseBuilder
from lowdnn.enums import DataType, PointwiseMode, ReduceTensorOp, TensorReordering
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.base import Operation, inputs_of, outputs_of
from lowdnn.ops.pointwise import Pointwise, PointwiseOperation
from lowdnn.ops.tensor import Tensor, packed_strides
from lowdnn.status import (
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    NotSupportedError,
    SerializationVersionMismatchError,
    ShapeMismatchError,
)
from tests.support.builders import convolution_graph, matmul_graph, reduction_graph
from tests.support.errors import raises
from tests.support.watching import Watch

LINE = "conv n=2 c=8 hw=16x16 k=16 rs=3x3 pad=1 dtype=fp16 epilogue=scale+bias+relu"


def tensor(uid: int, *, is_virtual: bool = False, **changes: Any) -> Tensor:
    values: dict[str, Any] = {"dims": (2, 3), "strides": (3, 1), "alignment_bytes": 16}
    return Tensor(uid, DataType.FLOAT, is_virtual=is_virtual, **(values | changes))


def relu(x: Tensor, y: Tensor) -> PointwiseOperation:
    return PointwiseOperation(Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT), x=x, y=y)


A, B, C = tensor(1), tensor(2, is_virtual=True), tensor(3)
CHAIN = (relu(A, B), relu(B, C))


def test_operations_are_sorted() -> None:
    graph = OperationGraph(reversed(CHAIN))
    assert graph.operations == CHAIN
    assert [t.uid for t in graph.inputs] == [1]
    assert [t.uid for t in graph.outputs] == [3]


def test_tiles_are_for_the_ports_that_take_them() -> None:
    facts = {"dims": (128, 4), "strides": (4, 1)}
    tiled = replace(tensor(1, **facts), data_type=DataType.FP8_E8M0, reordering=TensorReordering.F8_128x4)
    with raises(NotSupportedError, "operation_graph: tensor uid 1.reordering", expected="NONE", got="F8_128x4"):
        OperationGraph([relu(tiled, tensor(2, **facts))])


def test_neighbours() -> None:
    graph = OperationGraph(CHAIN)
    assert graph.producer(A) is None
    assert graph.producer(B) is CHAIN[0]
    assert graph.consumers(B) == (CHAIN[1],)
    assert graph.consumers(C) == ()
    assert "PointwiseOperation" in repr(graph)


@pytest.mark.parametrize(
    ("operations", "error", "where", "expected", "got"),
    [
        ((), BadParamError, "operation_graph.operations", "at least one operation", "none"),
        ((relu(B, C),), BadParamError, "operation_graph: tensor uid 2", "an operation that writes", "none"),
        (
            (relu(A, C), relu(A, C)),
            DuplicatedEntriesError,
            "operation_graph.tensor uid 3",
            "one operation",
            "Pointwise",
        ),
        (
            (relu(A, B), relu(replace(B, name="other"), C)),
            DuplicatedEntriesError,
            "operation_graph.tensor 'other' (uid 2)",
            "one tensor for each uid",
            "Tensor(",
        ),
        ((relu(A, A),), BadParamError, "operation_graph.operations", "no cycle", "a cycle through PointwiseOperation"),
        ((relu(A, C), relu(C, A)), BadParamError, "operation_graph.operations", "no cycle", "a cycle"),
        (
            (relu(tensor(7), tensor(8)), relu(A, C), relu(C, A)),
            BadParamError,
            "operation_graph.operations",
            "no cycle",
            "a cycle through PointwiseOperation, PointwiseOperation",
        ),
        (
            (relu(A, tensor(3, strides=(0, 1))),),
            BadParamError,
            "operation_graph: tensor uid 3.strides",
            "do not overlap",
            "[0, 1] for dims [2, 3]",
        ),
        (
            (relu(A, tensor(3, strides=(2, 1))),),
            BadParamError,
            "operation_graph: tensor uid 3.strides",
            "do not overlap",
            "[2, 1]",
        ),
    ],
)
def test_graphs_are_checked(
    operations: tuple[Operation, ...], error: type[LowdnnError], where: str, expected: str, got: str
) -> None:
    with raises(error, where, expected=expected, got=got):
        OperationGraph(operations)


@pytest.mark.parametrize("uid", [-1, 2**63])
def test_uids_are_signed_64_bit_and_not_negative(uid: int) -> None:
    with raises(BadParamError, f"operation_graph: tensor uid {uid}.uid", expected="0 to", got=str(uid)):
        OperationGraph([relu(tensor(uid), C)])


def test_the_greatest_uid_is_taken() -> None:
    assert OperationGraph([relu(tensor(2**63 - 1), C)]).inputs[0].uid == 2**63 - 1


def test_by_value_tensors_are_inputs_only() -> None:
    x = tensor(1, dims=(1,), strides=(1,))
    y = tensor(2, dims=(1,), strides=(1,), is_by_value=True)
    with raises(BadParamError, "operation_graph: tensor uid 2", expected="an input only", got="an output"):
        OperationGraph([relu(x, y)])


def test_repeating_inputs_are_taken() -> None:
    assert OperationGraph([relu(tensor(1, strides=(0, 1)), C)]).outputs == (C,)


def test_key_ignores_uids_and_names_only() -> None:
    same = (relu(tensor(10), tensor(20, is_virtual=True)), relu(tensor(20, is_virtual=True), tensor(5, name="y")))
    assert OperationGraph(same).key == OperationGraph(CHAIN).key
    others = [
        (relu(tensor(1, alignment_bytes=4), B), CHAIN[1]),
        (relu(tensor(1, strides=(4, 1)), B), CHAIN[1]),
        (relu(replace(A, data_type=DataType.HALF), B), CHAIN[1]),
        (relu(A, tensor(2)), relu(tensor(2), C)),
        (CHAIN[0], replace(CHAIN[1], alpha1=2.0)),
        (CHAIN[0], replace(CHAIN[1], pointwise=Pointwise(PointwiseMode.RELU_FWD, DataType.FLOAT, relu_upper_clip=6.0))),
        (CHAIN[0], replace(CHAIN[1], pointwise=Pointwise(PointwiseMode.ABS, DataType.FLOAT))),
        (relu(A, C),),
    ]
    keys = {OperationGraph(operations).key for operations in others}
    assert len(keys) == len(others)
    assert OperationGraph(CHAIN).key not in keys


def test_key_tells_which_tensor_goes_where() -> None:
    def product(first: Tensor, second: Tensor) -> str:
        builder = CaseBuilder()
        builder.pointwise(PointwiseMode.SUB, first, second, store=DataType.FLOAT)
        return builder.graph().key

    x, b = tensor(101), tensor(102)
    assert product(x, b) == product(b, x)
    assert product(x, x) != product(x, b)

    def chain(last: Tensor) -> str:
        builder = CaseBuilder()
        difference = builder.pointwise(PointwiseMode.SUB, x, b)
        builder.pointwise(PointwiseMode.SUB, difference, last, store=DataType.FLOAT)
        return builder.graph().key

    assert chain(x) != chain(b)


def test_key_is_stable_across_processes() -> None:
    code = f"from lowdnn.cases import parse_case; print(parse_case({LINE!r}).graph().key)"
    keys = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": s}
        )
        for s in ("1", "2")
    ]
    assert {run.stdout.strip() for run in keys} == {parse_case(LINE).graph().key}


def test_graph_and_key_take_microseconds() -> None:
    operations = parse_case(LINE).graph().operations
    assert len(operations) == 4
    best = min(_seconds(operations) for _ in range(50))
    assert best < 1e-3


def _seconds(operations: tuple[Operation, ...]) -> float:
    start = time.perf_counter()
    assert OperationGraph(operations).key
    return time.perf_counter() - start


def test_findings_are_derived_once_for_each_question() -> None:
    asked: list[tuple[OperationGraph, int]] = []

    def find(graph: OperationGraph, number: int) -> int:
        asked.append((graph, number))
        return len(graph.operations) + number

    graph = OperationGraph(CHAIN)
    assert [graph.derive(find, 1), graph.derive(find, 1), graph.derive(find, 2)] == [3, 3, 4]
    assert asked == [(graph, 1), (graph, 2)]
    assert OperationGraph(CHAIN).derive(find, 1) == 3
    assert len(asked) == 3


def test_subgraph_keeps_inner_tensors_virtual() -> None:
    middle, branch = tensor(2, is_virtual=True), tensor(4, is_virtual=True)
    graph = OperationGraph([relu(A, middle), relu(middle, branch), relu(middle, C), relu(branch, tensor(5))])
    inner = graph.subgraph(graph.operations[:3])
    assert {uid: t.is_virtual for uid, t in inner.tensors.items()} == {1: False, 2: True, 3: False, 4: False}


def test_subgraph_materialises_its_border() -> None:
    graph = parse_case(LINE).graph()
    first, rest = graph.subgraph(graph.operations[:2]), graph.subgraph(graph.operations[2:])
    assert [t.is_virtual for t in outputs_of(first.operations[0]).values()] == [True]
    (crossing,) = first.outputs
    assert not crossing.is_virtual
    assert inputs_of(rest.operations[0])["x"] == crossing
    assert rest.outputs == graph.outputs


def test_materialised_tensors_do_not_overlap() -> None:
    middle = tensor(2, is_virtual=True, strides=(0, 0))
    graph = OperationGraph([relu(A, middle), relu(middle, C)])
    (crossing,) = graph.subgraph(graph.operations[:1]).outputs
    assert crossing.strides == packed_strides(crossing.dims)


def test_materialised_tensors_have_no_gaps_and_keep_the_order_of_axes() -> None:
    middle = tensor(2, is_virtual=True, strides=(2, 10))
    graph = OperationGraph([relu(A, middle), relu(middle, C)])
    (crossing,) = graph.subgraph(graph.operations[:1]).outputs
    assert crossing.strides == (1, 2)


@pytest.mark.parametrize(
    "graph",
    [
        parse_case(LINE).graph(),
        matmul_graph(epilogue=(PointwiseMode.GELU_FWD,)),
        reduction_graph(ReduceTensorOp.AMAX, (2, 3), (1,)),
        parse_case("pointwise dims=4x5 ops=scalar+double+select+gen_index axis=1").graph(),
    ],
)
def test_json_round_trip(graph: OperationGraph) -> None:
    again = OperationGraph.from_json(graph.to_json())
    assert again.operations == graph.operations
    assert again.key == graph.key
    assert again.to_json() == graph.to_json()


def test_malformed_json_is_refused() -> None:
    text = convolution_graph().to_json()
    with raises(SerializationVersionMismatchError, "OperationGraph.json.lowdnn_graph", expected="1", got="9"):
        OperationGraph.from_json(text.replace('"lowdnn_graph":1', '"lowdnn_graph":9'))
    with raises(BadParamError, "OperationGraph.json", expected="a JSON document"):
        OperationGraph.from_json(text[:-1])
    document = json.loads(text)
    where = "OperationGraph.json.operations"
    for content, place, expected, got in (
        ({}, where, "list", "{}"),
        ([document["operations"][0]["x"]], f"{where}[0]", "an operation", "Tensor"),
        ([7], f"{where}[0]", "an operation", "int"),
        ([{"class": "OperationGraph"}], f"{where}[0]", "one of", "OperationGraph"),
    ):
        with raises(BadParamError, place, expected=expected, got=got):
            OperationGraph.from_json(json.dumps(document | {"operations": content}))


def test_json_cannot_break_an_operation_s_rules() -> None:
    document = json.loads(convolution_graph().to_json())
    document["operations"][0]["y"]["dims"][0] = 5
    with raises(ShapeMismatchError, "convolution_forward.y.dims", expected="[2, 16", got="[5, 16"):
        OperationGraph.from_json(json.dumps(document))


def test_a_graph_without_outputs_is_refused() -> None:
    x = Tensor(1, DataType.FLOAT, (4,), (1,), 16)
    y = Tensor(2, DataType.FLOAT, (4,), (1,), 16, is_virtual=True)
    with pytest.raises(BadParamError, match=r"expected at least one output, got virtual ones only; call set_output"):
        OperationGraph([PointwiseOperation(Pointwise(PointwiseMode.ABS, DataType.FLOAT), x=x, y=y)])


def test_a_long_graph_in_reverse_order_is_sorted_at_once() -> None:
    def tensor(uid: int, is_virtual: bool) -> Tensor:
        return Tensor(uid, DataType.FLOAT, (8,), (1,), 16, is_virtual=is_virtual)

    count, negation = 3000, Pointwise(PointwiseMode.NEG, DataType.FLOAT)
    chain = [
        PointwiseOperation(negation, x=tensor(uid, uid > 1), y=tensor(uid + 1, uid < count))
        for uid in range(1, count + 1)
    ]
    with Watch().step(20):
        graph = OperationGraph(reversed(chain))
    assert list(graph.operations) == chain
