"""The demo's graph through pygraph: a program for cudnn-frontend, with one import changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn
from lowdnn.ops.tensor import channels_last_strides


def run(
    handle: cudnn.Handle,
    images: NDArray[np.float16],
    filters: NDArray[np.float16],
    scale: NDArray[np.float32],
    bias: NDArray[np.float32],
) -> NDArray[np.float16]:
    """y = relu(conv(images, filters) * scale + bias), channels last, as an array of (images, filters, 8, 8)."""
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    x = graph.tensor(images.shape, channels_last_strides(images.shape), name="x")
    w = graph.tensor(filters.shape, channels_last_strides(filters.shape), name="w")
    s = graph.tensor(scale.shape, channels_last_strides(scale.shape), cudnn.data_type.FLOAT, name="scale")
    b = graph.tensor(bias.shape, channels_last_strides(bias.shape), cudnn.data_type.FLOAT, name="bias")
    convolved = graph.conv_fprop(x, w, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    y = graph.relu(graph.bias(graph.scale(convolved, s), b)).set_output(True).set_name("y")
    graph.build([cudnn.heur_mode.A])

    def on_device(array: NDArray[np.generic]) -> lowdnn.DeviceTensor:
        return lowdnn.from_numpy(array, handle, strides=channels_last_strides(array.shape))

    shape = (images.shape[0], filters.shape[0], *images.shape[2:])
    result = on_device(np.zeros(shape, np.float16))
    workspace = lowdnn.from_numpy(np.zeros(max(graph.get_workspace_size(), 1), np.uint8), handle)
    tensors = {x: on_device(images), w: on_device(filters), s: on_device(scale), b: on_device(bias), y: result}
    graph.execute(tensors, workspace, handle=handle)
    return np.asarray(result.numpy())
