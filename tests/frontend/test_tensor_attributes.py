"""Attributes of tensors: their values, who set them, and values that no graph takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError
from tests.support import calls

FLOAT, HALF, INT64 = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.INT64
OFFSETS = cudnn.Tensor("offsets", INT64, [3, 1, 1, 1], [1, 1, 1, 1])
#: Values that differ from the defaults, by attribute.
VALUES: dict[str, Any] = {
    "name": "x",
    "data_type": HALF,
    "dim": [2, 3],
    "stride": [3, 1],
    "is_virtual": True,
    "is_pass_by_value": True,
    "pass_by_value": 2.5,
    "uid": 7,
    "reordering_type": cudnn.tensor_reordering.F8_128x4,
    "ragged_offset": OFFSETS,
    "ragged_offset_multiplier": 4,
    "alignment_value": 8,
    "scalar_type": cudnn.scalar_type.RUNTIME_PARAM,
}


@pytest.mark.parametrize("name", VALUES)
def test_an_attribute_is_what_getter_and_setter_have(name: str) -> None:
    value = VALUES[name]
    given, written, called = cudnn.Tensor(**{name: value}), cudnn.Tensor(), cudnn.Tensor()
    assert getattr(written, name) != value
    setattr(written, name, value)
    assert getattr(called, f"set_{name}")(value) is called
    for tensor in (given, written, called):
        assert getattr(tensor, name) == getattr(tensor, f"get_{name}")() == value
        assert tensor.state == given.state


@pytest.mark.parametrize(("name", "value"), [("dim", 3), ("is_virtual", "yes"), ("data_type", 4), ("scalar_type", 0)])
def test_an_attribute_is_checked(name: str, value: object) -> None:
    with pytest.raises((AttributeTypeError, lowdnn.status.UnsupportedDataTypeError), match=rf"\.{name}: expected"):
        setattr(cudnn.Tensor(), name, value)
    with pytest.raises(OutOfBoundError, match=r"alignment_value: expected 1 to"):
        cudnn.Tensor(alignment_value=0)


def test_who_has_set_what() -> None:
    graph = calls.new_graph()
    x = graph.tensor([4, 8], name="x")
    y = graph.exp(x)
    assert (x.dim_assigned, x.stride_assigned, x.uid_assigned) == (True, False, False)
    assert (x.owner(), y.owner(), cudnn.Tensor().owner) == (graph, graph, None)
    y.set_output(True)
    graph.validate()
    assert (y.dim, y.stride, y.dim_assigned, y.stride_assigned) == ([4, 8], [8, 1], False, False)
    assert y.set_uid(9).set_dim([4, 8]).uid_assigned
    assert (y.dim_assigned, y.set_uid(-1).uid_assigned) == (True, False)


def test_a_promise_about_values_asks_nothing_of_addresses(handle: Handle) -> None:
    graph = cudnn.pygraph("g", FLOAT, FLOAT, FLOAT, handle)
    x = graph.tensor([4], alignment_value=128)
    y = graph.neg(x).set_output(True)
    graph.build()
    data = lowdnn.from_numpy(np.arange(8, dtype=np.float32), handle)
    result = lowdnn.from_numpy(np.zeros(4, np.float32), handle)
    graph.execute({x: data.ptr + 16, y: result})
    np.testing.assert_array_equal(result.numpy(), [-4, -5, -6, -7])
    assert x.get_alignment() == 16


def test_tensors_are_validated_by_themselves() -> None:
    cudnn.Tensor("x", dim=[2, 3], stride=[3, 1]).validate()
    for tensor, message in (
        (cudnn.Tensor("x", stride=[1]), r"tensor 'x'\.dim: expected one entry for each dimension, got none"),
        (cudnn.Tensor("x", dim=[1]), r"tensor 'x'\.stride: expected one entry for each dimension, got none"),
        (cudnn.Tensor("x", dim=[1, 2], stride=[1]), "strides: expected 2 strides"),
        (cudnn.Tensor("x", dim=[1], stride=[1], is_virtual=True, is_pass_by_value=True), "virtual"),
        (cudnn.Tensor("x", dim=[1], stride=[1], pass_by_value=1.0), r"is_pass_by_value: expected True of a number"),
        (cudnn.Tensor("x", dim=[1], stride=[1], ragged_offset=cudnn.Tensor(ragged_offset=OFFSETS)), "ragged itself"),
    ):
        with pytest.raises(BadParamError, match=message):
            tensor.validate()


def test_a_tensor_like_another() -> None:
    graph = calls.new_graph()
    x = graph.tensor([2, 3], [1, 2], HALF, name="x")
    edge = graph.exp(x).set_dim([2, 3]).set_stride([3, 1])
    assert not graph.tensor_like(edge).is_virtual
    assert graph.tensor_like(edge, "like", is_virtual=True).is_virtual
    assert graph.tensor_like(input=x).stride == [1, 2]
    with pytest.raises(BadParamError, match=r"tensor_like\.template: expected one template, got none"):
        graph.tensor_like()
    with pytest.raises(BadParamError, match=r"tensor_like\.template: expected one template, got two"):
        graph.tensor_like(x, input=x)
