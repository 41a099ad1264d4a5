"""Arrays in the place of tensors: their layout, and their values at execute where none are given."""

from __future__ import annotations

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.status import AttributeTypeError
from tests.support.data import fresh_seed

FLOAT = cudnn.data_type.FLOAT


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(fresh_seed()).integers(-4, 5, shape).astype(np.float32)


def test_arrays_are_tensors_and_values(handle: Handle) -> None:
    a, b, c = floats(1, 8, 16), floats(1, 16, 4), floats(1, 16, 4)
    graph = cudnn.pygraph("g", FLOAT, FLOAT, FLOAT, handle)
    on_device = [lowdnn.from_numpy(x, handle) for x in (a, b, c)]
    product = graph.matmul(on_device[0], B=on_device[1], name="mm")
    y = graph.add(product, np.full((1, 1, 1), 3, np.float32)).set_output(True)
    assert [t.get_name() for t in graph.get_inputs()] == ["mm::A", "mm::B", "add.0::b"]
    result = lowdnn.from_numpy(np.zeros((1, 8, 4), np.float32), handle)
    graph.execute({y: result})
    np.testing.assert_array_equal(result.numpy(), a @ b + 3)
    for key in ("mm::B", graph.find_tensor("mm::B"), graph.find_tensor("mm::B").uid):  # type: ignore[union-attr]
        result.copy_from(np.zeros((1, 8, 4), np.float32))
        graph.execute({key: on_device[2], y: result})
        np.testing.assert_array_equal(result.numpy(), a @ c + 3)
    graph.execute_plan_at_index({y: result})
    np.testing.assert_array_equal(result.numpy(), a @ b + 3)
    graph.execute([on_device[2], result], tensor_uids=[graph.find_tensor("mm::B").uid, y.uid])  # type: ignore[union-attr]
    np.testing.assert_array_equal(result.numpy(), a @ c + 3)
    with pytest.raises(AttributeTypeError, match="expected a dict of tensors"):
        graph.execute([result])


def test_an_array_is_one_tensor(handle: Handle) -> None:
    x = lowdnn.from_numpy(floats(1, 8, 8), handle)
    graph = cudnn.pygraph("g", FLOAT, FLOAT, FLOAT, handle)
    y = graph.concatenate([graph.matmul(x, x), x], axis=1).set_output(True)
    assert len(graph.get_inputs()) == 1
    result = lowdnn.from_numpy(np.zeros((1, 16, 8), np.float32), handle)
    graph.build()
    graph.execute({y: result}, lowdnn.from_numpy(np.zeros(graph.get_workspace_size(), np.uint8), handle))
    np.testing.assert_array_equal(result.numpy(), np.concatenate([x.numpy() @ x.numpy(), x.numpy()], 1))


def test_what_is_no_array_is_refused() -> None:
    graph = cudnn.pygraph("g", FLOAT, FLOAT, FLOAT, sm_version=90)
    with pytest.raises(AttributeTypeError, match=r"matmul\.A: expected a tensor of a graph, got \[1, 2\]"):
        graph.matmul([1, 2], graph.tensor([2, 2]))
    with pytest.raises(AttributeTypeError, match=r"exp\.input: expected a tensor of a graph, got .*2\.0"):
        graph.exp(np.float32(2))
