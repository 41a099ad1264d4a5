"""Values of the wrong type or range, through pygraph's methods: the right error, and the graph stays usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.backend.handle import Handle
from lowdnn.status import AttributeTypeError, BadParamError, OutOfBoundError

NO_INTEGERS = [None, "abc", 1.5, float("nan"), [1], object(), np.float32(2), np.array([1, 2])]
NO_NUMBERS = ["abc", [1], object(), 1j, np.complex64(1), np.array([1.0, 2.0])]

Graph = cudnn.pygraph


def new_graph() -> Graph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    return cudnn.pygraph("g", half, single, single, sm_version=90)


def built() -> Graph:
    graph = new_graph()
    graph.matmul(graph.tensor([1, 8, 8]), graph.tensor([1, 8, 8])).set_output(True)
    graph.build_operation_graph()
    graph.create_execution_plans()
    return graph


@pytest.mark.parametrize("value", NO_INTEGERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "use",
    [
        lambda g, v: g.tensor([2, v]),
        lambda g, v: g.tensor([2, 3], [v, 1]),
        lambda g, v: g.tensor([2, 3]).set_uid(v),
        lambda g, v: g.tensor([2, 3]).set_alignment(v),
        lambda g, v: g.conv_fprop(g.tensor([1, 8, 8]), g.tensor([8, 8, 1]), padding=[v]),
        lambda g, v: g.conv_fprop(g.tensor([1, 8, 8]), g.tensor([8, 8, 1]), stride=[v]),
    ],
)
def test_what_is_no_integer(use: Callable[[Graph, Any], object], value: object) -> None:
    with pytest.raises(AttributeTypeError, match=r"expected (an integer|integers), got"):
        use(new_graph(), value)


@pytest.mark.parametrize("value", [None, "abc", 3, 1.5, np.int64(3)], ids=lambda value: type(value).__name__)
def test_dims_that_are_no_sequence(value: Any) -> None:
    with pytest.raises(AttributeTypeError, match="expected a sequence of integers"):
        new_graph().tensor(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits(value: int) -> None:
    with pytest.raises(OutOfBoundError, match="9223372036854775807"):
        new_graph().tensor([2, value])
    nearest = 2**63 - 1 if value > 0 else -(2**63)
    assert new_graph().tensor([2, nearest], [1, 1]).get_dim() == [2, nearest]


def test_extents_whose_product_leaves_64_bits_are_refused_by_validate() -> None:
    graph = new_graph()
    graph.relu(graph.tensor([2**62, 4])).set_output(True)
    with pytest.raises(BadParamError, match="9223372036854775807 bytes"):
        graph.validate()


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "use",
    [
        lambda g, v: g.relu(g.tensor([4]), lower_clip=v),
        lambda g, v: g.leaky_relu(g.tensor([4]), v),
        lambda g, v: g.swish(g.tensor([4]), swish_beta=v),
        lambda g, v: g.scale(g.tensor([4]), v) if not isinstance(v, np.ndarray) else g.tensor_scalar(v),
        lambda g, v: g.matmul(g.tensor([4, 4]), g.tensor([4, 4]), padding=v),
        lambda g, v: g.tensor_scalar(v),
    ],
)
def test_what_is_no_number(use: Callable[[Graph, Any], object], value: object) -> None:
    with pytest.raises(AttributeTypeError, match="number"):
        use(new_graph(), value)


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.tensor([2], name=3),
        lambda g: g.tensor([2]).set_name(None),
        lambda g: g.relu(g.tensor([2]), name=1.5),
        lambda g: g.tensor([2], is_virtual="no"),
        lambda g: g.tensor([2], is_pass_by_value=np.array([1, 0])),
        lambda g: g.tensor([2], reordering_type=1),
        lambda g: g.tensor([2]).set_output("false"),
        lambda g: g.reduction(g.tensor([2]), 1),
        lambda g: g.conv_fprop(g.tensor([1, 8, 8]), g.tensor([8, 8, 1]), convolution_mode=1),
        lambda g: g.conv_dgrad(g.tensor([1, 8, 8]), g.tensor([8, 8, 1]), dilation=[1.5]),
        lambda g: g.tensor_scalar(1.0, 1),
        lambda g: cudnn.pygraph(3),
        lambda g: cudnn.pygraph(handle="handle"),
        lambda g: cudnn.pygraph(sm_count="all"),
        lambda g: cudnn.pygraph(sm_version=9.0),
        lambda g: cudnn.pygraph(device_property="{}"),
        lambda g: built().create_execution_plans([0]),
        lambda g: built().create_execution_plans(cudnn.heur_mode.A),
        lambda g: built().build_plans(1),
        lambda g: built().create_execution_plan(1.0, {}),
        lambda g: built().create_execution_plan(0, [1]),
        lambda g: built().create_execution_plan(0, {cudnn.knob_type.TILE_M: "64"}),
        lambda g: built().deselect_engines("matmul"),
        lambda g: built().deselect_workspace_greater_than(None),
        lambda g: built().deselect_numeric_notes([1]),
        lambda g: built().select_behavior_notes(cudnn.behavior_note.RUNTIME_COMPILATION),
        lambda g: built().get_plan_name_at_index("0"),
        lambda g: g.find_tensor(None),
        lambda g: g.find_tensor(np.zeros(2)),
    ],
)
def test_what_has_the_wrong_type(use: Callable[[Graph], object]) -> None:
    with pytest.raises(AttributeTypeError, match="expected"):
        use(new_graph())


def test_ragged_offsets_are_tensors() -> None:
    with pytest.raises(BadParamError, match="ragged_offset: expected a tensor or None, got str"):
        new_graph().tensor([2], ragged_offset="x")  # type: ignore[arg-type]
    with pytest.raises(BadParamError, match=r"ragged_offset_multiplier: expected .*1.*, got 0"):
        new_graph().tensor([2], ragged_offset_multiplier=0)


def test_numpy_numbers_count_as_pythons(handle: Handle) -> None:
    graph = cudnn.pygraph("g", *[cudnn.data_type.FLOAT] * 3, handle=handle)
    dims = np.array([2, 3])
    x = graph.tensor(dims, (dims[1], np.int32(1)), uid=np.int64(7), is_virtual=np.False_)
    y = graph.leaky_relu(x, np.float32(0.5)).set_output(True)
    graph.build()
    assert (x.get_dim(), x.get_uid()) == ([2, 3], 7)
    values = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    with cudnn.from_numpy(values, handle) as xs, cudnn.from_numpy(np.zeros_like(values), handle) as ys:
        graph.execute({x: xs, y: ys})
        assert ys.numpy().tolist() == [[1, -1, 3], [-2, 5, -3]]
