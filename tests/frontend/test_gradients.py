"""The gradients of convolutions through pygraph, end to end."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.backend import Handle
from lowdnn.enums import DataType
from lowdnn.frontend.python_graph import pygraph
from lowdnn.ops.convolution import Convolution
from lowdnn.ops.convolution_backward_data import ConvolutionBackwardData
from lowdnn.ops.convolution_backward_filter import ConvolutionBackwardFilter
from lowdnn.ops.tensor import Tensor, channels_last_strides
from tests.support.data import fresh_seed

FLOAT = cudnn.data_type.FLOAT
HALF = cudnn.data_type.HALF

X, W, DY = (2, 8, 9, 7), (16, 4, 3, 3), (2, 16, 5, 7)
GEOMETRY = Convolution(DataType.FLOAT, 2, (1, 1), (1, 1), (2, 1), (1, 1))


def tensor(uid: int, dims: tuple[int, ...]) -> Tensor:
    return Tensor(uid, DataType.FLOAT, dims, channels_last_strides(dims), 16)


def small_integers(rng: np.random.Generator, dims: tuple[int, ...]) -> NDArray[np.float32]:
    return rng.integers(-2, 3, dims).astype(np.float32)


def execute(
    graph: pygraph, handle: Handle, inputs: dict[cudnn.Tensor, NDArray[np.float32]], output: cudnn.Tensor
) -> NDArray[np.float32]:
    graph.build([cudnn.heur_mode.A])
    dims = tuple(output.get_dim())
    values = {
        t: cudnn.from_numpy(array, handle, t.get_data_type(), t.get_stride())
        for t, array in (inputs | {output: np.zeros(dims, np.float32)}).items()
    }
    workspace = np.zeros(max(graph.get_workspace_size(), 1), np.uint8)
    graph.execute(values, cudnn.from_numpy(workspace, handle))
    return values[output].numpy().astype(np.float32)


@pytest.mark.parametrize("io_type", [FLOAT, HALF])
def test_data_gradient_with_the_gradient_of_the_activation_before_it(handle: Handle, io_type: cudnn.data_type) -> None:
    """dx = relu_backward(conv_dgrad(dy, w), x)."""
    rng = np.random.default_rng(fresh_seed())
    x, w, dy = (small_integers(rng, dims) for dims in (X, W, DY))
    graph = pygraph("dgrad", io_type, FLOAT, FLOAT, handle)
    tx, tw, tdy = (graph.tensor(dims, channels_last_strides(dims)) for dims in (X, W, DY))
    gradient = graph.conv_dgrad(tdy, tw, padding=[1, 1], stride=[2, 1]).set_dim(X)
    dx = graph.relu_backward(gradient, tx).set_output(True)
    got = execute(graph, handle, {tx: x, tw: w, tdy: dy}, dx)
    operation = ConvolutionBackwardData(GEOMETRY, w=tensor(1, W), dy=tensor(2, DY), dx=tensor(3, X))
    expected = operation.reference({"w": w.astype(float), "dy": dy.astype(float)})["dx"] * (x > 0)
    np.testing.assert_array_equal(got, expected)


def test_filter_gradient(handle: Handle) -> None:
    rng = np.random.default_rng(fresh_seed())
    x, dy = small_integers(rng, X), small_integers(rng, DY)
    graph = pygraph("wgrad", HALF, FLOAT, FLOAT, handle)
    tx, tdy = graph.tensor(X), graph.tensor(DY, channels_last_strides(DY))
    dw = graph.conv_wgrad(tx, tdy, [1, 1], [2, 1]).set_dim(W).set_output(True).set_data_type(FLOAT)
    got = execute(graph, handle, {tx: x, tdy: dy}, dw)
    operation = ConvolutionBackwardFilter(GEOMETRY, x=tensor(1, X), dy=tensor(2, DY), dw=tensor(3, W))
    expected = operation.reference({"x": x.astype(float), "dy": dy.astype(float)})["dw"]
    np.testing.assert_array_equal(got, expected)
