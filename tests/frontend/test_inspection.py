"""A graph's view of its operations and tensors, while it is written, planned, and read from a document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import BadParamError
from tests.frontend.test_python_graph import MatmulBias
from tests.support import calls

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF


def names(tensors: list[cudnn.Tensor]) -> list[str]:
    return [tensor.get_name() for tensor in tensors]


def test_operations_and_their_tensors() -> None:
    case = MatmulBias(None, sm_version=90)
    graph = case.graph
    assert [(node.name, node.node_type.name) for node in graph.nodes] == [
        ("matmul.0", "MATMUL"),
        ("bias.0", "POINTWISE"),
        ("relu.0", "POINTWISE"),
    ]
    product = graph.get_node("matmul.0")
    assert product is not None
    assert product.inputs == {"A": case.tensor_a, "B": case.tensor_b}
    assert graph.get_node("relu.0").outputs == {"OUT_0": case.y}  # type: ignore[union-attr]
    assert graph.get_node("relu.1") is None
    assert graph.nodes[1].inputs == {"IN_0": product.outputs["C"], "IN_1": case.tensor_bias}
    assert graph.nodes[1].params == {"mode": "bias"}
    assert repr(graph.nodes[2]) == "Node('relu.0', POINTWISE)"


def test_a_call_is_one_node() -> None:
    """Whatever operations it writes; what it writes to tensors among its arguments are outputs."""
    graph = pygraph("g", HALF, FLOAT, FLOAT, sm_version=90)
    q, k, v = (graph.tensor([1, 2, 8, 16], name=name) for name in "qkv")
    seed, offset = (graph.tensor([1, 1, 1, 1], data_type=cudnn.data_type.INT64) for _ in range(2))
    largest = graph.tensor([1, 2, 8, 1], data_type=FLOAT)
    o, stats = graph.sdpa(
        q, k, v, generate_stats=True, attn_scale=0.5, dropout=(0.1, seed, offset), score_max=largest, name="attn"
    )
    graph.relu(o, lower_clip=0.5, compute_data_type=cudnn.data_type.HALF)
    attention, clip = graph.nodes
    assert attention.inputs == {"q": q, "k": k, "v": v, "dropout_1": seed, "dropout_2": offset}
    assert attention.outputs == {"O": o, "Stats": stats, "score_max": largest}
    assert attention.params == {"generate_stats": True, "attn_scale": 0.5, "dropout_0": 0.1}
    assert (attention.name, attention.node_type, attention.compute_data_type) == ("attn", cudnn.NodeType.SDPA, FLOAT)
    assert clip.params == {"lower_clip": 0.5, "mode": "relu"}
    assert clip.compute_data_type is cudnn.data_type.HALF
    graph.sdpa(q, k, v, score_mod=lambda graph, scores: graph.mul(graph.neg(scores), 0.5))
    assert [node.name for node in graph.nodes] == ["attn", "relu.0", "sdpa.0"]
    attention.validate()
    q.set_stride([1, 1, 1])
    with pytest.raises(BadParamError, match=r"tensor 'q' .*strides: expected 4 strides"):
        attention.validate()


@pytest.mark.parametrize("method", calls.METHODS)
def test_every_method_makes_a_node(method: str) -> None:
    graph = calls.new_graph()
    outputs = calls.outputs_of(calls.call(graph, method))
    (node,) = graph.nodes
    assert node.method == method
    assert [id(tensor) for tensor in node.outputs.values()][: len(outputs)] == list(map(id, outputs))
    assert {id(tensor) for tensor in node.inputs.values()} <= {id(tensor) for tensor in graph._used()}
    assert json.loads(repr(graph))["nodes"][0]["type"] == node.node_type.name


def test_every_node_type_that_a_method_has_is_met() -> None:
    found = set()
    for method in calls.METHODS:
        graph = calls.new_graph()
        calls.call(graph, method)
        found.add(graph.nodes[0].node_type.name)
    linear = ("GDN", "KDA", "GDP", "MAMBA2")
    others = {"MATMUL_FP8", "SDPA_MXFP8", "SDPA_MXFP8_BWD"}
    assert found == {name for name in cudnn.NodeType.__members__ if not name.startswith(linear)} - others


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
    assert set(graph.tensors) == {"a", "b", "bias", "y", "matmul.0::C", "bias.0::OUT_0"}
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
        "name": "matmul.0",
        "type": "MATMUL",
        "inputs": {"A": "a", "B": "b"},
        "outputs": {"C": "matmul.0::C"},
        "params": {},
    }
    assert found["tensors"]["y"] == {
        "dim": [1, 8, 24],
        "stride": [192, 24, 1],
        "dtype": "data_type.FLOAT",
        "is_virtual": False,
        "uid": case.y.get_uid(),
    }


def test_the_representation_of_a_graph_is_json(handle: Handle) -> None:
    case = MatmulBias(handle)
    for step in (lambda: None, case.graph.validate, case.graph.build):
        step()
        assert json.loads(repr(case.graph)) == {"name": "mlp", **case.graph.inspect()}
    assert repr(pygraph("a\u2028\x1b")).isprintable()


def test_nodes_are_those_of_cudnn_frontend() -> None:
    """Types, inputs by name and outputs in their order; methods that the table lacks are lowdnn's own."""
    text = (Path(__file__).parent / "inventory" / "nodes.txt").read_text()
    rows = [line.split(": ") for line in text.splitlines() if line and not line.startswith("#")]
    for (method, node_type), ports in [(head.split(), ports) for head, ports in rows]:
        graph = calls.new_graph()
        calls.call(graph, method)
        (node,) = graph.nodes
        found = f"{' '.join(sorted(node.inputs))} -> {' '.join(node.outputs)}"
        assert (node.node_type.name, found) == (node_type, ports), method
    assert {head.split()[0] for head, _ in rows} <= set(calls.METHODS)


def test_a_graph_reads_as_a_list() -> None:
    graph = pygraph("block", HALF, FLOAT, FLOAT, sm_version=90)
    x = graph.tensor([2, 8, 4, 4], [128, 1, 32, 8], name="x")
    w = graph.tensor([8, 8, 1, 1], name="w")
    shift = graph.tensor([1, 1, 1, 1], is_pass_by_value=True, name="shift")
    y = graph.conv_fprop(x, w, padding=[0, 0], stride=[1, 1], dilation=[1, 1], name="conv")
    graph.add(graph.mul(y, 0.5), shift, name="add").set_output(True).set_name("y").set_stride([512, 1, 128, 16])
    written = str(graph).splitlines()
    assert written[2:4] == ["    x      HALF  [2, 8, 4, 4], channels last", "    w      HALF  [8, 8, 1, 1]"]
    assert written[-1] == "    y  not inferred yet  not inferred yet"
    graph.validate()
    assert (
        str(graph)
        == """\
pygraph 'block': io HALF, intermediate FLOAT, compute FLOAT
  inputs
    x      HALF  [2, 8, 4, 4], channels last
    w      HALF  [8, 8, 1, 1]
    shift  HALF  [1, 1, 1, 1], passed by value
  operations
    conv::Y       = conv_fprop(image=x, weight=w, padding=[0, 0], stride=[1, 1], dilation=[1, 1])
    mul.0::OUT_0  = mul(IN_0=conv::Y, IN_1=0.5)
    y             = add(IN_0=mul.0::OUT_0, IN_1=shift)
  outputs
    y  HALF  [2, 8, 4, 4], strides [512, 1, 128, 16]"""
    )


def test_a_graph_that_was_read_lists_its_operations(handle: Handle) -> None:
    case = MatmulBias(handle)
    case.graph.build()
    restored = pygraph(handle=handle)
    restored.deserialize(handle, case.graph.serialize())
    assert "  operations\n    MatmulOperation\n    PointwiseOperation\n    PointwiseOperation\n" in str(restored)
