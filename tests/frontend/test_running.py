"""``pygraph.run``: from arrays to results in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.python_graph import pygraph
from lowdnn.status import AttributeTypeError, BadParamError, DuplicatedEntriesError, ShapeMismatchError

FLOAT, HALF = cudnn.data_type.FLOAT, cudnn.data_type.HALF
A, B = np.arange(12.0).reshape(1, 3, 4), np.arange(8.0).reshape(1, 4, 2) - 3


def product(handle: Handle, *, slope: float | None = 0.5) -> pygraph:
    """c = (a b) * slope + shift, with a shift by value; slope None: by value too."""
    graph = pygraph("product", FLOAT, FLOAT, FLOAT, handle=handle)
    a, b = graph.tensor([1, 3, 4], name="a"), graph.tensor([1, 4, 2], [8, 1, 4], name="b")
    factor = graph.tensor([1, 1, 1], is_pass_by_value=True, name="slope") if slope is None else slope
    shift = graph.tensor([1, 1, 1], is_pass_by_value=True, name="shift")
    graph.add(graph.mul(graph.matmul(a, b), factor), shift).set_output(True).set_name("c")
    return graph


def test_outputs_come_by_name(handle: Handle) -> None:
    graph = product(handle)
    for shift in (1.0, np.float32(2), np.array([3], np.float32)):
        results = graph.run(a=A, b=B, shift=shift)
        assert list(results) == ["c"]
        assert isinstance(results["c"], lowdnn.DeviceTensor)
        np.testing.assert_array_equal(results["c"].numpy(), A @ B * 0.5 + float(np.ravel(shift)[0]))


def test_arrays_take_the_layout_and_the_type_of_their_tensors(handle: Handle) -> None:
    graph = product(handle)
    b = np.asfortranarray(B.astype(np.int64))
    np.testing.assert_array_equal(graph.run(a=A.astype(np.float16), b=b, shift=0)["c"].numpy(), A @ B * 0.5)


def test_keys_are_tensors_and_uids_too(handle: Handle) -> None:
    graph = product(handle)
    a, b = graph.find_tensor("a"), graph.find_tensor("b")
    assert a is not None
    assert b is not None
    results = graph.run({a: A, b.get_uid(): B}, shift=0)
    np.testing.assert_array_equal(results["c"].numpy(), A @ B * 0.5)


def test_memory_of_the_caller_is_used(handle: Handle) -> None:
    graph = product(handle)
    with lowdnn.from_numpy(A.astype(np.float32), handle) as a, lowdnn.empty((1, 3, 2), handle) as c:
        assert graph.run(a=a, b=B, shift=0, c=c)["c"] is c
        np.testing.assert_array_equal(c.numpy(), A @ B * 0.5)


def test_several_outputs_and_a_workspace(handle: Handle) -> None:
    """A graph in parts keeps what lies between them in a workspace."""
    graph = pygraph("parts", FLOAT, FLOAT, FLOAT, handle=handle)
    x = graph.tensor([1, 3, 4], name="x")
    w = graph.tensor([1, 4, 4], name="w")
    first = graph.matmul(x, w).set_output(True).set_name("first")
    graph.matmul(graph.relu(first), w).set_output(True).set_name("second")
    weights = np.eye(4)[None, :, ::-1]
    results = graph.run(x=A - 5, w=weights)
    assert graph.get_workspace_size() > 0
    assert set(results) == {"first", "second"}
    np.testing.assert_array_equal(results["first"].numpy(), (A - 5) @ weights)
    np.testing.assert_array_equal(results["second"].numpy(), np.maximum((A - 5) @ weights, 0) @ weights)


def test_a_graph_that_was_read(handle: Handle) -> None:
    graph = product(handle)
    graph.build()
    restored = pygraph(handle=handle)
    restored.deserialize(handle, graph.serialize())
    np.testing.assert_array_equal(restored.run(a=A, b=B, shift=1)["c"].numpy(), A @ B * 0.5 + 1)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"a": A, "b": B}, BadParamError, "expected a value for 'shift'"),
        ({"a": A, "shift": 0}, BadParamError, "expected a value for 'b'"),
        ({"a": A, "b": B, "shift": 0, "d": A}, BadParamError, "run: expected one of 'a', 'b', 'shift', 'c', got 'd'"),
        ({"a": A[0], "b": B, "shift": 0}, ShapeMismatchError, "run.a: expected [1, 3, 4], got [3, 4]"),
        ({"a": A, "b": B, "shift": np.zeros(2)}, AttributeTypeError, "a host array of one element"),
        ({"a": A.tolist(), "b": B, "shift": 0}, AttributeTypeError, "run.a: expected a NumPy array, or what execute"),
        ({"a": A, "b": B, "shift": 0, "handle": 3}, AttributeTypeError, "run.handle: expected a Handle or None, got 3"),
    ],
)
def test_bad_values(handle: Handle, values: dict[str, Any], error: type[Exception], message: str) -> None:
    graph = product(handle)
    with pytest.raises(error) as caught:
        graph.run(**values)
    assert message in str(caught.value)


def test_a_tensor_is_given_once(handle: Handle) -> None:
    graph = product(handle)
    a = graph.find_tensor("a")
    with pytest.raises(DuplicatedEntriesError, match="run: expected each tensor once"):
        graph.run({a: A}, a=A, b=B, shift=0)


def test_scalars_by_value(handle: Handle) -> None:
    graph = product(handle, slope=None)
    for slope in (2, 0.25):
        np.testing.assert_array_equal(graph.run(a=A, b=B, slope=slope, shift=1)["c"].numpy(), A @ B * slope + 1)
