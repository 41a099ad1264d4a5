"""A convolution with both of its gradients, channels last, fp16 with fp32 accumulation.

    python -m lowdnn.guide.recipes.convolution_gradients

y = conv(x, w), and for a loss with the gradient dy of y: dx = dgrad(dy, w), dw = wgrad(dy, x). Each is a graph of one
operation. The extents of a gradient cannot be inferred from its inputs, so that they are set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

#: (N, C, H, W).
X_SHAPE = (2, 16, 8, 8)
#: (K, C, R, S).
W_SHAPE = (32, 16, 3, 3)
#: (N, K, H, W): padding by 1 keeps the extents of a 3x3 filter's input.
Y_SHAPE = (2, 32, 8, 8)


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """y, dx and dw for random integers."""
    rng = np.random.default_rng(0)
    x, w, dy = (rng.integers(-2, 3, shape).astype(np.float32) for shape in (X_SHAPE, W_SHAPE, Y_SHAPE))
    results = forward(handle).run(x=x, w=w)
    results |= data_gradient(handle).run(dy=dy, w=w)
    results |= filter_gradient(handle).run(dy=dy, x=x)
    return {name: result.numpy() for name, result in results.items()}


def forward(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    y = graph.conv_fprop(
        tensor(graph, "x", X_SHAPE), tensor(graph, "w", W_SHAPE), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )
    y.set_output(True).set_name("y")
    return graph


def data_gradient(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    dx = graph.conv_dgrad(
        tensor(graph, "dy", Y_SHAPE), tensor(graph, "w", W_SHAPE), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )
    dx.set_output(True).set_name("dx").set_dim(X_SHAPE)
    return graph


def filter_gradient(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    dw = graph.conv_wgrad(
        tensor(graph, "x", X_SHAPE), tensor(graph, "dy", Y_SHAPE), padding=[1, 1], stride=[1, 1], dilation=[1, 1]
    )
    dw.set_output(True).set_name("dw").set_dim(W_SHAPE)
    return graph


def new_graph(handle: lowdnn.Handle) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    return cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)


def tensor(graph: cudnn.pygraph, name: str, shape: tuple[int, ...]) -> cudnn.Tensor:
    """An input in channels-last layout, which tensor cores read without a copy."""
    return graph.tensor(shape, lowdnn.channels_last_strides(shape), name=name)


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for name, array in compute(handle).items():
            print(f"{name}: {array.shape}, {array.dtype}, mean {array.mean():.4f}")
