"""Writing graphs: what is inferred, what is named, what is refused; no device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import lowdnn.frontend as cudnn
from lowdnn.enums import ConvolutionMode, DataType, PointwiseMode
from lowdnn.frontend.python_graph import pygraph
from lowdnn.graph.graph import OperationGraph
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.convolution_forward import ConvolutionForward
from lowdnn.ops.gen_stats import GenStats
from lowdnn.ops.matmul import MatmulOperation
from lowdnn.ops.pointwise import PointwiseOperation, input_ports
from lowdnn.status import (
    BadParamError,
    DuplicatedEntriesError,
    LowdnnError,
    NotSupportedError,
    ShapeMismatchError,
    UnsupportedDataTypeError,
)

#: Modes of the backend for which cudnn-frontend has no method.
WITHOUT_METHOD = (PointwiseMode.ATAN2, PointwiseMode.FLOOR_MOD)
FLOAT, HALF, NOT_SET = cudnn.data_type.FLOAT, cudnn.data_type.HALF, cudnn.data_type.NOT_SET


def new_graph(io: cudnn.data_type = FLOAT, intermediate: cudnn.data_type = FLOAT) -> pygraph:
    return pygraph("test", io, intermediate, FLOAT, sm_version=90)


def lowered(graph: pygraph) -> OperationGraph:
    graph.validate()
    graph.build_operation_graph()
    return graph._planned().graph


def test_a_convolution_gets_dims_and_channels_last_strides() -> None:
    graph = new_graph(HALF)
    x = graph.tensor([2, 8, 9, 7])
    w = graph.tensor([16, 8, 3, 3])
    y = graph.conv_fprop(x, w, padding=[1, 1], stride=[2, 1], dilation=[1, 1]).set_output(True)
    graph.validate()
    assert y.get_dim() == [2, 16, 5, 7]
    assert y.get_stride() == [16 * 35, 1, 16 * 7, 16]
    assert y.get_data_type() is HALF


def test_strides_left_out_are_row_major() -> None:
    assert new_graph().tensor([2, 3, 4]).get_stride() == [12, 4, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda g, x, w: g.conv_fprop(x, w, [0, 1], [2, 3], [1, 1], [1, 2]),
        lambda g, x, w: g.conv_fprop(
            x, w, [0, 1], [2, 3], [1, 1], [1, 2], cudnn.convolution_mode.CROSS_CORRELATION, FLOAT, "c"
        ),
        lambda g, x, w: g.conv_fprop(
            image=x, weight=w, pre_padding=[0, 1], post_padding=[2, 3], stride=[1, 1], dilation=[1, 2]
        ),
        lambda g, x, w: g.conv_fprop(x, w, [0, 1], post_padding=[2, 3], dilation=[1, 2]),
    ],
)
def test_separate_paddings_by_position_and_by_name(
    call: Callable[[pygraph, cudnn.Tensor, cudnn.Tensor], cudnn.Tensor],
) -> None:
    graph = new_graph()
    call(graph, graph.tensor([1, 4, 8, 8]), graph.tensor([4, 4, 3, 3])).set_output(True)
    (operation,) = lowered(graph).operations
    assert isinstance(operation, ConvolutionForward)
    geometry = operation.convolution
    assert (geometry.pre_paddings, geometry.post_paddings) == ((0, 1), (2, 3))
    assert (geometry.strides, geometry.dilations) == ((1, 1), (1, 2))


def test_one_padding_by_position() -> None:
    graph = new_graph()
    x, w = graph.tensor([1, 4, 8, 8]), graph.tensor([4, 4, 3, 3])
    graph.conv_fprop(x, w, [1, 2], [2, 2], [1, 1], cudnn.convolution_mode.CONVOLUTION).set_output(True)
    (operation,) = lowered(graph).operations
    assert isinstance(operation, ConvolutionForward)
    assert operation.convolution.pre_paddings == operation.convolution.post_paddings == (1, 2)
    assert operation.convolution.strides == (2, 2)
    assert operation.convolution.mode is ConvolutionMode.CONVOLUTION


@pytest.mark.parametrize(
    ("arguments", "named", "text"),
    [
        ((), {"padding": [1], "pre_padding": [1]}, "expected either padding or pre_padding and post_padding"),
        (([1],), {"padding": [1]}, "one by position and one by name"),
        (([1],) * 9, {}, "at most 9 arguments, got 11"),
    ],
)
def test_wrong_convolution_arguments(arguments: tuple[object, ...], named: dict[str, object], text: str) -> None:
    graph = new_graph()
    x, w = graph.tensor([1, 4, 8]), graph.tensor([4, 4, 3])
    with pytest.raises(BadParamError, match=text):
        graph.conv_fprop(x, w, *arguments, **named)  # type: ignore[call-overload]


def test_gradients_take_the_dims_that_are_set() -> None:
    graph = new_graph(HALF)
    x, w, dy = graph.tensor([2, 8, 9, 7]), graph.tensor([16, 4, 3, 3]), graph.tensor([2, 16, 5, 7])
    dx = graph.conv_dgrad(dy, w, [1, 1], [2, 1], name="data").set_output(True).set_dim(x.get_dim())
    dw = graph.conv_wgrad(x, dy, padding=[1, 1], stride=[2, 1], name="filter").set_output(True).set_dim(w.get_dim())
    data, weights = lowered(graph).operations
    assert isinstance(data, ConvolutionBackwardData)
    assert isinstance(weights, ConvolutionBackwardFilter)
    assert data.convolution == weights.convolution
    assert (data.convolution.strides, data.groups, weights.groups) == ((2, 1), 2, 2)
    assert [t.name for t in (data.dy, data.w, data.dx)] == ["data::DY", "data::W", "data::DX"]
    assert [t.name for t in (weights.x, weights.dy, weights.dw)] == ["filter::X", "data::DY", "filter::DW"]
    assert (dx.get_stride(), dw.get_stride()) == ([8 * 63, 1, 8 * 7, 8], [36, 1, 12, 4])
    assert dx.get_data_type() is HALF


@pytest.mark.parametrize("method", ["conv_dgrad", "conv_wgrad"])
def test_gradients_need_dims(method: str) -> None:
    graph = new_graph()
    getattr(graph, method)(graph.tensor([1, 4, 8, 8]), graph.tensor([4, 4, 3, 3]), name="g").set_output(True)
    with pytest.raises(BadParamError, match=r"'g::D[XW]'.*\.dim: expected dims, which .*; set them with set_dim"):
        graph.validate()


def test_statistics_are_those_of_channels() -> None:
    graph = new_graph(HALF)
    total, squares = graph.genstats(graph.tensor([2, 8, 3, 3]), name="s")
    for output in (total, squares):
        output.set_output(True).set_data_type(FLOAT)
    (operation,) = lowered(graph).operations
    assert isinstance(operation, GenStats)
    assert (operation.sum.name, operation.sum_of_squares.name) == ("s_sum_output", "s_sq_sum_output")
    assert (total.get_dim(), squares.get_stride()) == ([1, 8, 1, 1], [8, 1, 8, 8])


def test_a_matmul_repeats_batches_and_shares_matrices_and_is_row_major() -> None:
    graph = new_graph()
    c = graph.matmul(graph.tensor([1, 6, 4, 5]), graph.tensor([2, 2, 5, 6])).set_output(True)
    graph.validate()
    assert c.get_dim() == [2, 6, 4, 6]
    assert c.get_stride() == [144, 24, 6, 1]


def test_a_pointwise_output_takes_the_strides_of_the_first_full_input() -> None:
    graph = new_graph()
    bias = graph.tensor([1, 8, 1, 1])
    x = graph.tensor([2, 8, 3, 3], [72, 1, 24, 8])
    y = graph.add(bias, x).set_output(True)
    graph.validate()
    assert y.get_dim() == [2, 8, 3, 3]
    assert y.get_stride() == [72, 1, 24, 8]


def test_a_pointwise_output_without_a_full_input_keeps_the_order_of_dimensions() -> None:
    graph = new_graph()
    rows, columns = graph.tensor([4, 1], [1, 4]), graph.tensor([1, 5])
    y = graph.mul(rows, columns).set_output(True)
    graph.validate()
    assert y.get_dim() == [4, 5]
    assert y.get_stride() == [1, 4]


def test_a_reduction_takes_the_dims_that_are_set() -> None:
    graph = new_graph()
    y = graph.reduction(graph.tensor([2, 8, 3, 3]), cudnn.reduction_mode.ADD).set_output(True).set_dim([1, 8, 1, 1])
    graph.validate()
    assert y.get_dim() == [1, 8, 1, 1]
    assert y.get_stride() == [8, 1, 8, 8]


def test_what_is_set_is_kept() -> None:
    graph = new_graph()
    y = graph.matmul(graph.tensor([4, 5]), graph.tensor([5, 6])).set_output(True)
    y.set_stride([1, 4]).set_data_type(HALF).set_uid(77).set_name("result")
    graph.validate()
    assert (y.get_stride(), y.get_data_type(), y.get_uid(), y.get_name()) == ([1, 4], HALF, 77, "result")


def test_types_come_from_the_graph() -> None:
    graph = new_graph(HALF, FLOAT)
    x = graph.tensor([4])
    inside = graph.exp(x)
    y = graph.neg(inside).set_output(True)
    graph.validate()
    assert [t.get_data_type() for t in (x, inside, y)] == [HALF, FLOAT, HALF]


def test_a_missing_type_names_tensor_and_default() -> None:
    graph = new_graph(NOT_SET)
    graph.exp(graph.tensor([4], name="image")).set_output(True)
    with pytest.raises(NotSupportedError, match=r"tensor 'image'.data_type: expected a data type, or the graph's io_"):
        graph.validate()
    graph = new_graph(NOT_SET, intermediate=NOT_SET)
    graph.neg(graph.exp(graph.tensor([4], data_type=FLOAT), name="e")).set_output(True).set_data_type(FLOAT)
    with pytest.raises(NotSupportedError, match=r"tensor 'e::OUT_0'.*the graph's intermediate_data_type"):
        graph.validate()
    graph = pygraph("test", NOT_SET, FLOAT, sm_version=90)
    graph.exp(graph.tensor([4], data_type=FLOAT), name="e").set_output(True).set_data_type(FLOAT)
    with pytest.raises(UnsupportedDataTypeError, match="operation 'e': compute_data_type"):
        graph.validate()


def test_types_that_are_left_out_are_those_of_inputs_and_outputs() -> None:
    graph = pygraph("test", HALF, sm_version=90)
    middle = graph.exp(graph.tensor([4]))
    last = graph.neg(middle).set_output(True)
    graph.validate()
    assert middle.get_data_type() is last.get_data_type() is HALF
    assert graph.context == cudnn.GraphContext(HALF, HALF, HALF)


def test_uids_are_given_around_those_that_are_set() -> None:
    graph = new_graph()
    x = graph.tensor([4])
    w = graph.tensor([4], uid=1)
    y = graph.add(x, w).set_output(True)
    graph.validate()
    assert [t.get_uid() for t in (x, w, y)] == [3, 1, 2]
    assert [t.uid_assigned for t in (x, w, y)] == [False, True, False]
    assert graph.query_tensor_attributes_of_uid(2) is y
    with pytest.raises(BadParamError, match="uid: expected the uid of a tensor"):
        graph.query_tensor_attributes_of_uid(4)
    second = graph.add(y, w).set_uid(2)
    third = graph.relu(second).set_output(True)
    x.set_uid(-1)
    graph.validate()
    assert [t.get_uid() for t in (x, w, y, second, third)] == [6, 1, 7, 2, 5]
    graph = new_graph()
    x, given = graph.tensor([4]), [graph.tensor([4], uid=uid) for uid in (1, 5, 6)]
    for tensor in given:
        graph.add(x, tensor).set_output(True)
    graph.validate()
    assert x.get_uid() == 7


def test_duplicate_uids_are_refused() -> None:
    graph = new_graph()
    graph.add(graph.tensor([4], uid=5, name="a"), graph.tensor([4], uid=5, name="b")).set_output(True)
    with pytest.raises(
        DuplicatedEntriesError, match=r"tensor 'b'.uid: expected a uid of its own, got 5, which tensor 'a'"
    ):
        graph.validate()


def test_names_follow_the_operation() -> None:
    graph = new_graph()
    a, b = graph.tensor([4, 4]), graph.tensor([4, 4], name="weights")
    c = graph.matmul(a, b, name="product")
    d = graph.relu(c)
    assert [t.get_name() for t in (a, b, c, d)] == ["product::A", "weights", "product::C", "relu.0::OUT_0"]
    again = [graph.relu(d), graph.relu(d, name="own"), graph.relu(d), graph.sdpa(*[graph.tensor([1, 2, 8, 8])] * 3)[0]]
    assert [t.get_name() for t in again] == ["relu.1::OUT_0", "own::OUT_0", "relu.2::OUT_0", "sdpa.0::O"]


def test_numbers_become_constants_of_the_computing_type() -> None:
    graph = new_graph()
    y = graph.mul(graph.add(graph.tensor([4]), 2), 0.5).set_output(True)
    found = lowered(graph)
    constants = [t for t in found.tensors.values() if t.constant_value is not None]
    assert [(t.constant_value, t.data_type) for t in constants] == [(2, DataType.FLOAT), (0.5, DataType.FLOAT)]
    assert y.get_dim() == [4]
    with pytest.raises(BadParamError, match=r"add\.a: expected a tensor of a graph, got 2"):
        graph.add(2, y)  # type: ignore[arg-type]
    with pytest.raises(BadParamError, match=r"add\.b: expected a tensor of a graph or a number, got '2'"):
        graph.add(y, "2")  # type: ignore[arg-type]


def test_tensor_like() -> None:
    graph = new_graph()
    x = graph.tensor([2, 3], [1, 2], HALF, name="x", uid=9)
    like = graph.tensor_like(x, name="other")
    assert (like.get_dim(), like.get_stride(), like.get_data_type()) == ([2, 3], [1, 2], HALF)
    assert (like.get_name(), like.get_uid()) == ("other", 1)
    array = graph.tensor_like(np.zeros((2, 3), np.int8))
    assert (array.get_dim(), array.get_stride()) == ([2, 3], [3, 1])
    assert array.get_data_type() is cudnn.data_type.INT8


def test_tensor_scalar() -> None:
    graph = new_graph()
    number = graph.tensor_scalar(0.5, cudnn.scalar_type.RUNTIME_PARAM)
    assert number.get_is_pass_by_value()
    assert number.get_data_type() is FLOAT
    assert not number.get_has_compile_time_constant()
    constant = graph.tensor_scalar(2**40, cudnn.scalar_type.COMPILE_TIME_CONST)
    assert constant.get_has_compile_time_constant()
    assert constant.get_data_type() is cudnn.data_type.INT64
    assert graph.tensor_scalar(3).get_data_type() is cudnn.data_type.INT32
    for number, data_type in ((2**31 - 1, "INT32"), (2**31, "INT64"), (-(2**31), "INT32"), (-(2**31) - 1, "INT64")):
        assert graph.tensor_scalar(number).get_data_type() is cudnn.data_type[data_type]


@pytest.mark.parametrize(
    ("write", "error", "text"),
    [
        (lambda g: None, BadParamError, "expected at least one operation"),
        (lambda g: g.matmul(g.tensor([4, 5]), g.tensor([6, 4])), ShapeMismatchError, "K = 5"),
        (lambda g: g.add(g.tensor([4]), g.tensor([5])), ShapeMismatchError, "expected 1 or 4"),
        (lambda g: g.conv_fprop(g.tensor([1, 4, 8, 8]), g.tensor([4, 3, 3, 3])), ShapeMismatchError, "a divisor of"),
        (
            lambda g: g.conv_fprop(g.tensor([1, 4, 8, 8]), g.tensor([4, 4, 3, 3]), [1]),
            BadParamError,
            "conv_fprop.pre_padding",
        ),
        (lambda g: g.exp(g.tensor([4], [1, 1])), BadParamError, "strides"),
        (lambda g: g.exp(g.tensor([4], [-1])), BadParamError, "strides >= 0"),
        (lambda g: g.exp(g.tensor([4]).set_alignment(3)), BadParamError, "a power of two"),
        (lambda g: g.exp(g.tensor([])), BadParamError, "dim"),
        (lambda g: g.exp(g.tensor_scalar(1.0).set_is_pass_by_value(False)), BadParamError, "True of a number"),
        (lambda g: g.gen_index(g.tensor([4]), 1), BadParamError, "axis"),
        (lambda g: g.exp(g.tensor([4], is_virtual=True)), BadParamError, "an operation that writes a virtual tensor"),
        (lambda g: g.matmul(g.tensor([4, 4]), g.tensor([4, 4]), FLOAT, 1.0), NotSupportedError, "matmul.padding:"),
    ],
)
def test_bad_graphs_are_named(write: Callable[[pygraph], object], error: type[LowdnnError], text: str) -> None:
    graph = new_graph()
    written = write(graph)
    if isinstance(written, cudnn.Tensor):
        written.set_output(True)
    with pytest.raises(error, match=text):
        graph.validate()


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda g: g.tensor([4]).set_vector_count_and_dimension(4, 1), "vector_count"),
        (lambda g: g.reduction(g.tensor([4]), cudnn.reduction_mode.ADD, group_offset=g.tensor([1])), "group_offset"),
    ],
)
def test_what_does_not_exist_here_is_refused(write: Callable[[pygraph], object], text: str) -> None:
    with pytest.raises(NotSupportedError, match=text):
        write(new_graph())


def test_wrong_tensor_attributes() -> None:
    graph = new_graph()
    with pytest.raises(BadParamError, match=r"dim: expected integers, got \[4.0\]"):
        graph.tensor([4.0], [1])  # type: ignore[list-item]
    with pytest.raises(BadParamError, match="uid: expected -1 to 9223372036854775807, got -5"):
        graph.tensor([4], uid=-5)
    with pytest.raises(UnsupportedDataTypeError, match=r"tensor 'x'.data_type"):
        graph.tensor([4], name="x", data_type="half-ish")


@pytest.mark.parametrize("mode", [mode for mode in PointwiseMode if mode not in WITHOUT_METHOD])
def test_every_mode_of_cudnn_frontend_has_its_method(mode: PointwiseMode) -> None:
    """Each method adds the operation that its name promises."""
    name = {PointwiseMode.CMP_NEQ: "cmp_neq"}.get(mode, mode.name.lower().removesuffix("_fwd"))
    if name.endswith("_bwd"):
        name = name.removesuffix("bwd") + "backward"
    graph = new_graph()
    x, b = graph.tensor([4]), graph.tensor([4])
    mask = graph.tensor([4], data_type=cudnn.data_type.BOOLEAN)
    method = getattr(graph, name)
    operands = {"gen_index": (x, 0), "binary_select": (x, b, mask)}
    given = operands.get(name, (x, b) if len(input_ports(mode)) == 2 else (x,))
    method(*given).set_output(True)
    (operation,) = lowered(graph).operations
    assert isinstance(operation, PointwiseOperation)
    assert operation.mode is mode
    if len(input_ports(mode)) == 2:
        assert [t.uid for t in operation.operands.values()] == [x.get_uid(), b.get_uid()]


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda g, x: g.relu(x, 0.1, -1.0, 6.0), (0.1, -1.0, 6.0)),
        (lambda g, x: g.leaky_relu(x, 0.2), (0.2, 0.0, float("inf"))),
        (lambda g, x: g.relu_backward(x, x, 0.1, -1.0, 6.0), (0.1, -1.0, 6.0)),
        (lambda g, x: g.leaky_relu_backward(x, x, 0.3), (0.3, 0.0, float("inf"))),
    ],
)
def test_relu_parameters(
    write: Callable[[pygraph, cudnn.Tensor], cudnn.Tensor], expected: tuple[float, float, float]
) -> None:
    graph = new_graph()
    write(graph, graph.tensor([4])).set_output(True)
    (operation,) = lowered(graph).operations
    assert isinstance(operation, PointwiseOperation)
    found = operation.pointwise
    assert (found.relu_lower_clip_slope, found.relu_lower_clip, found.relu_upper_clip) == expected


def test_swish_takes_its_parameter_where_cudnn_frontend_does() -> None:
    graph = new_graph()
    x = graph.tensor([4])
    graph.swish_backward(graph.swish(x, 0.5, FLOAT, "s"), x, FLOAT, 0.25, "b").set_output(True)
    forward, backward = lowered(graph).operations
    assert isinstance(forward, PointwiseOperation)
    assert isinstance(backward, PointwiseOperation)
    assert (forward.pointwise.swish_beta, backward.pointwise.swish_beta) == (0.5, 0.25)


def test_fast_sums_of_fp8_are_an_arithmetic_and_no_data_type() -> None:
    fast = cudnn.data_type.FAST_FLOAT_FOR_FP8
    graph = new_graph(cudnn.data_type.FP8_E4M3)
    c = graph.matmul(graph.tensor([1, 16, 32]), graph.tensor([1, 32, 8]), compute_data_type=fast)
    c.set_output(True).set_data_type(HALF)
    (product,) = lowered(graph).operations
    assert isinstance(product, MatmulOperation)
    assert product.matmul.compute_type is DataType.FAST_FLOAT_FOR_FP8
    graph = new_graph(fast)
    graph.exp(graph.tensor([4])).set_output(True)
    with pytest.raises(UnsupportedDataTypeError, match=r"data_type: expected one of .*, got FAST_FLOAT_FOR_FP8"):
        graph.validate()
