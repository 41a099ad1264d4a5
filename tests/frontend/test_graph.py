"""cudnn.Graph: written in a block, called with arrays by position or by name."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.frontend.output_arrays import output_array, torch_among
from lowdnn.status import (
    AttributeTypeError,
    BadParamError,
    DuplicatedEntriesError,
    NotInitializedError,
    UnsupportedDataTypeError,
)
from tests.support.data import fresh_seed

FLOAT = cudnn.data_type.FLOAT
NHWC = (6 * 6 * 4, 1, 6 * 4, 4)


class Convolution:
    """y = conv(x, w) in fp32 on small integers, in the layouts of the arrays that it is written with."""

    def __init__(self, handle: Handle) -> None:
        rng = np.random.default_rng(fresh_seed())
        self.x, self.w = (rng.integers(-3, 4, dims).astype(np.float32) for dims in ((2, 4, 6, 6), (8, 4, 3, 3)))
        self.x_device = lowdnn.from_numpy(self.x, handle, strides=NHWC)
        self.w_device = lowdnn.from_numpy(self.w, handle)

    @property
    def expected(self) -> NDArray[np.float64]:
        padded = np.pad(self.x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        found: NDArray[np.float64] = np.einsum("nchwrs,kcrs->nkhw", windows, self.w)
        return found

    def graph(self, *, name: str | None = "conv", **options: Any) -> cudnn.Graph:
        options = {"io_data_type": FLOAT, "compute_data_type": FLOAT} | options
        with cudnn.Graph(**options) as graph:
            named = {} if name is None else {"name": name}
            y = graph.conv_fprop(self.x_device, weight=self.w_device, padding=[1, 1], **named)
            y.set_output(True).set_name("conv_out")
        return graph


def test_inputs_by_position_and_by_name(handle: Handle) -> None:
    case = Convolution(handle)
    for inputs, outputs in (
        (["conv::image", "conv::weight"], ["conv_out"]),
        (["conv::0", "conv::1"], ["conv::Y"]),
        ([case.x_device, case.w_device], ["conv::Y"]),
    ):
        graph = case.graph(handle=handle, inputs=inputs, outputs=outputs)
        y = graph(case.x_device, case.w_device)
        np.testing.assert_array_equal(y.numpy(), case.expected)
        assert y.strides == (6 * 6 * 8, 1, 6 * 8, 8)


def test_the_order_is_the_one_that_was_asked_for(handle: Handle) -> None:
    case = Convolution(handle)
    graph = case.graph(name=None, handle=handle)
    graph.set_io_tuples(["conv_fprop.0::weight", "conv_fprop.0::image"], ["conv_fprop.0::Y"])
    np.testing.assert_array_equal(graph(case.w_device, case.x_device).numpy(), case.expected)


def test_a_dict_of_values(handle: Handle) -> None:
    case = Convolution(handle)
    graph = case.graph(handle=handle)
    y = lowdnn.from_numpy(np.full((2, 8, 6, 6), np.nan, np.float32), handle, strides=(288, 1, 48, 8))
    given = {"conv::image": case.x_device, "conv::weight": case.w_device, "conv_out": y}
    assert graph(given) is given
    np.testing.assert_array_equal(y.numpy(), case.expected)
    made = graph({"conv::0": case.x_device, "conv::weight": case.w_device})
    assert list(made) == ["conv::0", "conv::weight", "conv::Y"]
    np.testing.assert_array_equal(made["conv::Y"].numpy(), case.expected)


def test_a_handle_for_each_call(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph without a handle is built on one of its own, and executed where the arrays are."""
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated" if handle.cuda_device is None else "cuda")
    case = Convolution(handle)
    graph = case.graph(inputs=["conv::image", "conv::weight"], outputs=["conv_out"])
    np.testing.assert_array_equal(graph(case.x_device, case.w_device, handle=handle).numpy(), case.expected)


def test_tensors_of_the_graph_and_several_outputs(handle: Handle) -> None:
    x = np.random.default_rng(fresh_seed()).standard_normal((3, 5)).astype(np.float32)
    with cudnn.Graph(handle=handle, io_data_type=FLOAT, compute_data_type=FLOAT, name="two") as graph:
        a = graph.tensor([3, 5], name="a")
        half = graph.tensor_scalar(0.5)
        scaled = graph.mul(a, half).set_output(True)
        square = graph.mul(scaled, scaled, name="square").set_output(True)
    graph.set_io_tuples([a], [square, scaled])
    squared, halved = graph(lowdnn.from_numpy(x, handle))
    np.testing.assert_array_equal(halved.numpy(), x * np.float32(0.5))
    np.testing.assert_array_equal(squared.numpy(), (x * np.float32(0.5)) ** 2)
    assert graph.find_tensor("a") is a


def test_outputs_are_found_by_their_ports_too(handle: Handle) -> None:
    x = np.random.default_rng(fresh_seed()).integers(-4, 5, (3, 5)).astype(np.float32)
    for output in ("sum::Y", "sum::OUT_0", 2):
        with cudnn.Graph(handle=handle, io_data_type=FLOAT, inputs=["sum::input"], outputs=[output]) as graph:
            given = lowdnn.from_numpy(x, handle)
            graph.reduction(given, cudnn.reduction_mode.ADD, name="sum", out_dims=[3, 1]).set_output(True)
        np.testing.assert_array_equal(graph(given).numpy(), x.sum(1, keepdims=True))


def test_attention_with_dropout_names_the_tensors_of_the_tuple(handle: Handle) -> None:
    heads = [lowdnn.from_numpy(np.zeros((1, 2, 8, 16), np.float16), handle) for _ in range(3)]
    seed, offset = (lowdnn.from_numpy(np.ones((1, 1, 1, 1), np.int64), handle) for _ in range(2))
    with cudnn.Graph(handle=handle, io_data_type=cudnn.data_type.HALF, compute_data_type=FLOAT) as graph:
        o, _ = graph.sdpa(*heads, dropout=(0.5, seed, offset), generate_stats=False)
        o.set_output(True)
    names = ["sdpa.0::q", "sdpa.0::k", "sdpa.0::v", "sdpa.0::dropout::1", "sdpa.0::dropout::2"]
    graph.set_io_tuples(names, ["sdpa.0::O"])
    assert not graph(*heads, seed, offset).numpy().any()


def test_a_workspace_of_the_caller(handle: Handle) -> None:
    data = np.random.default_rng(fresh_seed()).integers(-3, 4, (2, 1, 8, 8)).astype(np.float32)
    x = lowdnn.from_numpy(data, handle)
    with cudnn.Graph(handle=handle, io_data_type=FLOAT, compute_data_type=FLOAT, workspace_alloc=False) as graph:
        graph.cmp_gt(graph.matmul(graph.matmul(x, x), x), 0.0, name="last").set_output(True).set_data_type(FLOAT)
    graph.set_io_tuples(["matmul.0::A"], ["last::OUT_0"])
    size_bytes = graph.get_workspace_size()
    assert size_bytes
    with pytest.raises(BadParamError, match=rf"Graph\.__call__\.workspace: expected {size_bytes} bytes, got None"):
        graph(x)
    workspace = lowdnn.from_numpy(np.zeros(size_bytes, np.uint8), handle)
    np.testing.assert_array_equal(graph(x, workspace=workspace).numpy(), (data @ data @ data > 0).astype(np.float32))


def test_each_handle_has_a_workspace_of_its_own(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWDNN_DEVICE", "emulated" if handle.cuda_device is None else "cuda")
    data = np.random.default_rng(fresh_seed()).integers(-3, 4, (2, 1, 8, 8)).astype(np.float32)
    with cudnn.create_handle() as other:
        x = lowdnn.from_numpy(data, handle)
        with cudnn.Graph(io_data_type=FLOAT, inputs=["matmul.0::A"], outputs=["last::C"]) as graph:
            graph.matmul(graph.matmul(x, x), x, name="last").set_output(True)
        assert graph.get_workspace_size()
        for one in (handle, other, handle):
            found = graph(lowdnn.from_numpy(data, one), handle=one)
            np.testing.assert_array_equal(found.numpy(), data @ data @ data)


def test_wrong_names(handle: Handle) -> None:
    case = Convolution(handle)
    graph = case.graph(handle=handle)
    names, x, w = ["conv::image", "conv::weight"], case.x_device, case.w_device
    with pytest.raises(BadParamError, match="expected set_io_tuples before arrays by position, got none"):
        graph(x, w)
    with pytest.raises(BadParamError, match=r"Graph\.inputs\[1\]: expected a tensor of the graph, such as conv::image"):
        graph.set_io_tuples(["conv::image", "conv::filter"], ["conv_out"])
    with pytest.raises(DuplicatedEntriesError, match="expected each tensor once, got tensor 'conv::image'"):
        graph.set_io_tuples([*names, "conv::0"], ["conv_out"])
    with pytest.raises(BadParamError, match="expected also tensor 'conv_out', got none"):
        graph.set_io_tuples(names, [])
    with pytest.raises(AttributeTypeError, match=r"Graph\.inputs: expected a list or tuple, got 'conv::image'"):
        graph.set_io_tuples("conv::image", ["conv_out"])
    with pytest.raises(BadParamError, match="expected also values of tensor 'conv::weight', got none"):
        graph({"conv::image": x})
    graph.set_io_tuples(names, ["conv_out"])
    for arrays in ((x,), (x, w, x)):
        with pytest.raises(BadParamError, match=rf"Graph\.__call__: expected 2 arrays, got {len(arrays)}"):
            graph(*arrays)
    with cudnn.Graph(handle=handle, io_data_type=FLOAT) as graph:
        graph.exp(graph.exp(x)).set_output(True)
    with pytest.raises(BadParamError, match=r"Graph\.inputs: expected tensors in memory, got .*exp\.0::OUT_0.*virtual"):
        graph.set_io_tuples(["exp.0::input", "exp.1::input"], ["exp.1::OUT_0"])


def test_the_order_of_steps(handle: Handle) -> None:
    case = Convolution(handle)
    graph = cudnn.Graph(handle=handle, io_data_type=FLOAT, compute_data_type=FLOAT)
    with pytest.raises(NotInitializedError, match="expected a use inside of the with block, got one before"):
        graph.tensor([4])
    with contextlib.suppress(ZeroDivisionError), graph:
        graph.exp(case.x_device).set_output(True).set_dim([1 // 0])
    with graph:
        with pytest.raises(NotInitializedError, match="expected a call behind the with block"):
            graph(case.x_device)
        with pytest.raises(BadParamError, match=r"Graph\.build: expected a method that writes the graph"):
            graph.build()
        graph.exp(case.x_device).set_output(True)
    with pytest.raises(BadParamError, match="expected one with block"):
        graph.__enter__()
    twice = cudnn.Graph(handle=handle, io_data_type=FLOAT, compute_data_type=FLOAT)
    twice.__enter__()
    for _ in range(2):
        twice.exp(case.x_device, name="one").set_output(True)
    with pytest.raises(DuplicatedEntriesError, match=r"expected a name of its own for each node, got \['one'\]"):
        twice.__exit__(None, None, None)
    with pytest.raises(AttributeTypeError, match=r'Graph\.handle: expected a Handle, "auto" or None, got 5'):
        cudnn.Graph(handle=5)  # type: ignore[arg-type]


def test_outputs_are_arrays_of_the_inputs_library(monkeypatch: pytest.MonkeyPatch, handle: Handle) -> None:
    """A module in the place of PyTorch is asked for its type of the same name, by the tensor's dims and strides."""
    made: list[Any] = []

    class Array:
        is_cuda = True

        def new_empty_strided(self, *args: Any, **kwargs: Any) -> None:
            made.append((args, kwargs))

    Array.__module__ = "somewhere.tensors"
    monkeypatch.setitem(sys.modules, "somewhere", SimpleNamespace(bfloat16="its bf16"))  # type: ignore[misc]
    tensor = cudnn.Tensor("y", cudnn.data_type.BFLOAT16, [2, 3], [1, 2])
    first = Array()
    assert torch_among([3, np.zeros(2), first, Array()]) is first
    output_array(tensor, first, handle)
    assert made == [(([2, 3], [1, 2]), {"dtype": "its bf16"})]
    assert torch_among([np.zeros(2), lowdnn.from_numpy(np.zeros(2), handle)]) is None
    with pytest.raises(UnsupportedDataTypeError, match=r"data_type: expected one of float64, .*, got INT4"):
        output_array(tensor.set_data_type(cudnn.data_type.INT4), first, handle)
