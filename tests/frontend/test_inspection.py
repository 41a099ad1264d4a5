"""What a graph tells of its operations and tensors, while it is written, planned, and read from a document."""

from __future__ import annotations

import json

import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import BadParamError
from tests.frontend.test_python_graph import MatmulBias


def names(tensors: list[cudnn.Tensor]) -> list[str]:
    return [tensor.get_name() for tensor in tensors]


def test_operations_and_their_tensors() -> None:
    case = MatmulBias(None, sm_version=90)
    graph = case.graph
    assert [(node.name, node.method) for node in graph.nodes] == [("0", "matmul"), ("1", "bias"), ("2", "relu")]
    product = graph.get_node("0")
    assert product is not None
    assert product.inputs == {"a": case.tensor_a, "b": case.tensor_b}
    assert graph.get_node("2").outputs == {"y": case.y}  # type: ignore[union-attr]
    assert graph.get_node("3") is None
    assert graph.nodes[1].inputs == {"x": product.outputs["c"], "b": case.tensor_bias}


def test_inputs_and_outputs() -> None:
    case = MatmulBias(None, sm_version=90)
    one = case.graph.tensor_scalar(1, cudnn.scalar_type.COMPILE_TIME_CONST, "one")
    case.graph.add(case.y, one, name="more").set_output(True)
    assert names(case.graph.get_inputs()) == ["a", "b", "bias"]
    assert names(case.graph.get_outputs()) == ["y", "more::OUT_0"]


def test_a_graph_that_was_read_tells_its_inputs_and_outputs(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build()
    restored = pygraph()
    restored.deserialize(handle, case.graph.serialize())
    assert names(restored.get_inputs()) == ["a", "b", "bias"]
    assert names(restored.get_outputs()) == ["y"]
    assert restored.nodes == []


def test_tensors_by_name_and_uid() -> None:
    case = MatmulBias(None, sm_version=90)
    graph = case.graph
    nameless = graph.tensor([4])
    assert set(graph.tensors) == {"a", "b", "bias", "y", "0::C", "1::OUT_0"}
    assert graph.find_tensor("bias") is case.tensor_bias
    assert graph.find_tensor("none") is None
    graph.validate()
    assert graph.find_tensor(case.y.get_uid()) is case.y
    assert graph.find_tensor(99) is None
    nameless.set_name("a")
    assert "a" not in graph.tensors
    with pytest.raises(BadParamError, match=r"find_tensor\.name_or_uid: expected what one tensor has, got 'a'"):
        graph.find_tensor("a")


def test_inspect_has_plain_values() -> None:
    case = MatmulBias(None, sm_version=90)
    case.graph.validate()
    found = case.graph.inspect()
    assert found["context"]["io_data_type"] == "data_type.FLOAT"
    assert found["nodes"][0] == {
        "name": "0",
        "type": "matmul",
        "inputs": {"a": "a", "b": "b"},
        "outputs": {"c": "0::C"},
    }
    assert found["tensors"]["y"] == {
        "dim": [1, 8, 24],
        "stride": [192, 24, 1],
        "dtype": "data_type.FLOAT",
        "is_virtual": False,
        "uid": case.y.get_uid(),
    }


def test_a_printed_graph_is_json(handle: Handle) -> None:
    case = MatmulBias(handle)
    for step in (lambda: None, case.graph.validate, case.graph.build):
        step()
        assert json.loads(str(case.graph)) == {"name": "mlp", **case.graph.inspect()}
    assert repr(pygraph("a\u2028\x1b")).isprintable()
