from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import lowdnn
from lowdnn import frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.runtime.runtime import Runtime
from lowdnn.status import ArchMismatchError, BadParamError, LowdnnError
from tests.support.errors import raises

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
A = cudnn.heur_mode.A


def scaled(handle: Handle | None, **options: Any) -> pygraph:
    """y = relu(x + 1) * scale, scale by value and 3 where execute is given none."""
    graph = pygraph("scaled", FLOAT, FLOAT, FLOAT, handle, **options)
    x = graph.tensor([4, 8], name="x", uid=7)
    scale = graph.tensor_scalar(3.0, name="scale")
    graph.mul(graph.relu(graph.add(x, 1.0)), scale).set_output(True).set_name("y").set_uid(9)
    graph.build_operation_graph()
    graph.create_execution_plans([A])
    return graph


def content_of(graph: pygraph) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(graph.serialize())
    return content


def run(graph: pygraph, handle: Handle, **values: object) -> np.ndarray[Any, Any]:
    x = lowdnn.from_numpy(np.arange(-16, 16, dtype=np.float32).reshape(4, 8), handle)
    y = lowdnn.from_numpy(np.full((4, 8), np.nan, np.float32), handle)
    workspace = lowdnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute({"x": x, "y": y, **values}, workspace)
    return y.numpy()


def expected(scale: float) -> np.ndarray[Any, Any]:
    return np.maximum(np.arange(-16, 16, dtype=np.float32).reshape(4, 8) + 1, 0) * scale


def test_names_uids_values_and_plans_are_kept(handle: Handle) -> None:
    graph = scaled(handle)
    restored = pygraph()
    restored.deserialize(handle, graph.serialize())
    assert restored.name == "scaled"
    assert restored.get_execution_plan_count() == 1
    assert restored.get_plan_name_at_index(0) == graph.get_plan_name_at_index(0)
    assert restored.get_workspace_size() == graph.get_workspace_size()
    assert restored.key() == graph.key()
    assert restored.serialize() == graph.serialize()
    found = restored.query_tensor_attributes_of_uid(7)
    assert (found.get_name(), found.get_dim(), found.get_stride()) == ("x", [4, 8], [8, 1])
    np.testing.assert_array_equal(run(restored, handle), expected(3))
    np.testing.assert_array_equal(run(restored, handle, scale=2.0), expected(2))


def test_a_graph_planned_without_a_device_runs_on_one(handle: Handle) -> None:
    major, minor = handle.arch.compute_capability
    data = scaled(None, sm_version=10 * major + minor, sm_count=1).serialize()
    restored = pygraph(handle=handle)
    restored.deserialize(data)
    np.testing.assert_array_equal(run(restored, handle), expected(3))


def test_filters_hold_after_reading(handle: Handle) -> None:
    restored = pygraph()
    restored.deserialize(handle, scaled(handle).serialize())
    restored.deselect_engines(["pointwise"])
    with pytest.raises(LowdnnError, match="deselected by name"):
        restored.build_plans()


def test_a_changed_plan_is_refused_and_what_was_there_stays(handle: Handle) -> None:
    graph = scaled(handle)
    content = content_of(graph)
    kernel = content["plan"]["plan"]["kernels"][0]
    kernel["generated"] = kernel["generated"].replace("value0 + ", "value0 - ")
    restored = pygraph()
    restored.deserialize(handle, graph.serialize())
    with raises(BadParamError, "serialized graph.plan.plan.kernels[0].generated", expected="value0 +", got="value0 -"):
        restored.deserialize(handle, json.dumps(content))
    np.testing.assert_array_equal(run(restored, handle), expected(3))
    restored.deserialize(handle, json.dumps(content), rebuild=True)
    np.testing.assert_array_equal(run(restored, handle), expected(3))


def test_a_plan_of_another_device(handle: Handle) -> None:
    other = 80 if handle.arch.compute_capability != (8, 0) else 90
    data = scaled(None, sm_version=other).serialize()
    restored = pygraph()
    with raises(ArchMismatchError, "serialized graph.plan.arch", expected=handle.arch.name):
        restored.deserialize(handle, data)
    restored.deserialize(handle, data, rebuild=True)
    np.testing.assert_array_equal(run(restored, handle), expected(3))


@pytest.mark.parametrize(
    ("field", "value", "where", "rule"),
    [
        ("value", "3", "serialized graph.tensors[0].value", "int | float | None"),
        ("value", 2**63, "serialized graph.tensors[0].value", "int | float | None"),
        ("value", 3, "serialized graph.tensors: tensor 'x' (uid 7).value", "None of a tensor in device memory"),
        ("tensor", None, "serialized graph.tensors[0].tensor", "Tensor"),
        ("tensor/name", "x\r", "serialized graph.tensors[0].tensor.name", "without control characters"),
        ("tensor/uid", 2**64, "serialized graph.tensors[0].tensor.uid", "int"),
        ("tensor/dims", [4, 9], "serialized graph.tensors: uid 7", "dims=(4, 8)"),
        ("tensor/vector_count", 4, "serialized graph.tensors", "tensors that keep their rules"),
        ("tensor/uid", 8, "serialized graph.tensors", "tensor 'x' (uid 7) of the graph"),
        ("tensor/uid", 9, "serialized graph.tensors", "each uid once"),
    ],
)
def test_tensors_are_those_of_the_graph(handle: Handle, field: str, value: object, where: str, rule: str) -> None:
    content = content_of(scaled(handle))
    place = content["tensors"][0]
    *outer, last = field.split("/")
    for step in outer:
        place = place[step]
    place[last] = value
    with pytest.raises(BadParamError) as caught:
        pygraph().deserialize(handle, json.dumps(content))
    assert f" {where}: expected " in str(caught.value)
    assert rule in str(caught.value)


@pytest.mark.parametrize("rebuild", [[1], "yes"])
def test_rebuild_is_a_boolean(handle: Handle, rebuild: Any) -> None:
    with pytest.raises(BadParamError, match="rebuild"):
        pygraph().deserialize(handle, scaled(handle).serialize(), rebuild=rebuild)


def test_ragged_tensors_are_kept(device: Runtime) -> None:
    graph = pygraph("ragged", HALF, FLOAT, FLOAT, sm_version=90)
    lengths = graph.tensor([2, 1, 1, 1], data_type=cudnn.data_type.INT32, name="lengths")
    offsets = graph.tensor([3, 1, 1, 1], data_type=cudnn.data_type.INT64, name="offsets")
    q, k, v = (graph.tensor([2, 2, 32, 16], [1024, 16, 32, 1], name=name, ragged_offset=offsets) for name in "qkv")
    o, _ = graph.sdpa(
        q, k, v, generate_stats=False, attn_scale=0.5, use_padding_mask=True, seq_len_q=lengths, seq_len_kv=lengths
    )
    o.set_output(True).set_dim([2, 2, 32, 16]).set_stride([1024, 16, 32, 1]).set_ragged_offset(offsets)
    graph.build_operation_graph()
    graph.create_execution_plans([A])
    with Handle(device) as handle:
        restored = pygraph()
        restored.deserialize(handle, graph.serialize(), rebuild=True)
        found = restored.query_tensor_attributes_of_uid(q.get_uid())
        assert found.get_stride() == [1024, 16, 32, 1]
        assert found.ragged_offset is not None
        assert found.ragged_offset.get_name() == "offsets"
