"""The keyword ``out_dims``, which every method that adds operations has."""

from __future__ import annotations

import re

import numpy as np
import pytest

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.status import AttributeTypeError, BadParamError
from tests.support import calls


@pytest.mark.parametrize("method", calls.METHODS)
def test_every_method_takes_the_dims_of_its_outputs(method: str) -> None:
    plain, graph = calls.new_graph(), calls.new_graph()
    outputs = calls.outputs_of(calls.call(plain, method))
    ends = [re.sub(r".*::|^genstats\.0_", "", tensor.get_name()) for tensor in outputs]
    wanted = {end: [2, 3, 5 + place] for place, end in enumerate(ends)}
    found = calls.outputs_of(calls.call(graph, method, out_dims=wanted))
    assert [tensor.get_dim() for tensor in found] == list(wanted.values())


def test_dims_that_cannot_be_inferred(handle: Handle) -> None:
    graph = cudnn.pygraph("sums", *[cudnn.data_type.FLOAT] * 3, handle)
    x = graph.tensor([3, 4, 5], name="x")
    graph.reduction(x, cudnn.reduction_mode.ADD, out_dims=[3, 1, 5]).set_output(True).set_name("y")  # type: ignore[call-arg]
    data = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    values = {"x": lowdnn.from_numpy(data, handle), "y": lowdnn.from_numpy(np.zeros((3, 1, 5), np.float32), handle)}
    graph.build()
    workspace = lowdnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    graph.execute(values, workspace)
    np.testing.assert_array_equal(values["y"].numpy(), data.sum(1, keepdims=True))


def test_wrong_dims() -> None:
    with pytest.raises(AttributeTypeError, match=r"exp\.out_dims: expected a sequence of integers, got 5"):
        calls.call(calls.new_graph(), "exp", out_dims=5)
    with pytest.raises(
        AttributeTypeError, match="out_dims: expected a dict of dims for sum_output, sq_sum_output, got"
    ):
        calls.call(calls.new_graph(), "genstats", out_dims=[1])
    with pytest.raises(BadParamError, match=r"exp\.out_dims: expected keys among out_0, got 'Y'"):
        calls.call(calls.new_graph(), "exp", out_dims={"Y": [1]})
