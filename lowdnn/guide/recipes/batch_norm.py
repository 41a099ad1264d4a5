"""Batch norm in training with running statistics, and its gradients.

    python -m lowdnn.guide.recipes.batch_norm

The forward graph also gives mean and 1 / sqrt(variance + epsilon) of each channel. The backward graph takes them, and
sums nothing again. Running statistics become (1 - momentum) * old + momentum * new, as in PyTorch, with the
variance over count - 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn
import lowdnn.frontend as cudnn

Array = NDArray[np.floating]

#: (N, C, H, W).
X_SHAPE = (4, 16, 6, 6)
#: Everything that there is one of for each channel.
CHANNEL_SHAPE = (1, 16, 1, 1)
EPSILON = 1e-5
MOMENTUM = 0.1


def compute(handle: lowdnn.Handle) -> dict[str, Array]:
    """The outputs of both graphs for a random batch."""
    batch = inputs()
    dy = batch.pop("dy")
    results = forward(handle).run(batch)
    # Results stay on the device, and go into the next graph as they are.
    results |= backward(handle).run(
        dy=dy, x=batch["x"], scale=batch["scale"], mean=results["mean"], inv_variance=results["inv_variance"]
    )
    return {name: result.numpy() for name, result in results.items()}


def inputs() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(1.0, 2.0, X_SHAPE).astype(np.float16),
        "dy": rng.standard_normal(X_SHAPE).astype(np.float16),
        "scale": rng.uniform(0.5, 2.0, CHANNEL_SHAPE).astype(np.float32),
        "bias": rng.standard_normal(CHANNEL_SHAPE).astype(np.float32),
        "running_mean": np.zeros(CHANNEL_SHAPE, np.float32),
        "running_var": np.ones(CHANNEL_SHAPE, np.float32),
    }


def forward(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    outputs = graph.batchnorm(
        activations(graph, "x"),
        per_channel(graph, "scale"),
        per_channel(graph, "bias"),
        per_channel(graph, "running_mean"),
        per_channel(graph, "running_var"),
        epsilon=EPSILON,
        momentum=MOMENTUM,
    )
    name_outputs(outputs, ("y", "mean", "inv_variance", "next_running_mean", "next_running_var"))
    return graph


def backward(handle: lowdnn.Handle) -> cudnn.pygraph:
    graph = new_graph(handle)
    outputs = graph.batchnorm_backward(
        activations(graph, "dy"),
        activations(graph, "x"),
        per_channel(graph, "scale"),
        per_channel(graph, "mean"),
        per_channel(graph, "inv_variance"),
    )
    name_outputs(outputs, ("dx", "dscale", "dbias"))
    return graph


def new_graph(handle: lowdnn.Handle) -> cudnn.pygraph:
    half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
    return cudnn.pygraph(io_data_type=half, intermediate_data_type=single, compute_data_type=single, handle=handle)


def activations(graph: cudnn.pygraph, name: str) -> cudnn.Tensor:
    return graph.tensor(X_SHAPE, lowdnn.channels_last_strides(X_SHAPE), name=name)


def per_channel(graph: cudnn.pygraph, name: str) -> cudnn.Tensor:
    return graph.tensor(CHANNEL_SHAPE, data_type=cudnn.data_type.FLOAT, name=name)


def name_outputs(outputs: tuple[cudnn.Tensor | None, ...], names: tuple[str, ...]) -> None:
    for output, name in zip(outputs, names, strict=True):
        if output is not None:
            kind = cudnn.data_type.HALF if name in ("y", "dx") else cudnn.data_type.FLOAT
            output.set_output(True).set_name(name).set_data_type(kind)


if __name__ == "__main__":
    with lowdnn.create_handle() as handle:
        for name, array in compute(handle).items():
            print(f"{name}: {array.shape}, {array.dtype}, mean {array.mean():.4f}")
