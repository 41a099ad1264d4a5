"""Inference with a trained network: one graph from the pixels to the logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lowdnn.frontend as cudnn
from lowdnn.cli.digits import Digits
from lowdnn.cli.training.layers import EPSILON, PADDING, WINDOW, Statistics
from lowdnn.cli.training.network import CLASSES, Network
from lowdnn.cli.training.session import BoundGraph, Session, dims_of


def accuracy(session: Session, network: Network, digits: Digits) -> float:
    """The share of ``digits`` whose largest logit is that of their label."""
    return float(np.mean(logits(session, network, digits.images).argmax(1) == digits.labels))


def logits(session: Session, network: Network, images: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N, 10) for images of (N, 8, 8)."""
    graph = session.graph("inference")
    x = graph.read(session.on_device(images[:, None], session.activation_type))
    for number, running in enumerate(network.running, 1):
        x = _block(graph, x, network, number, running).set_data_type(session.activation_type)
    weight, bias = network.parameters["linear.weight"], network.parameters["linear.bias"]
    rows = graph.reshape(x).set_dim((1, len(images), dims_of(weight.value)[1]))
    y = session.zeros((1, len(images), CLASSES))
    graph.write(graph.bias(graph.matmul(rows, graph.read(weight.value)), graph.read(bias.master)), y)
    graph.built().launch()
    result: NDArray[np.float32] = session.read_back(y)[0]
    return result


def _block(graph: BoundGraph, x: cudnn.Tensor, network: Network, number: int, running: Statistics) -> cudnn.Tensor:
    """Convolution, batch norm with the running statistics, ReLU, pooling."""
    weight, scale, bias = (
        network.parameters[name] for name in (f"conv{number}.weight", f"norm{number}.scale", f"norm{number}.bias")
    )
    convolved = graph.conv_fprop(x, graph.read(weight.value), padding=PADDING)
    inv_variance = graph.rsqrt(graph.add(graph.read(running.variance), EPSILON))
    normalised = graph.batchnorm_inference(
        convolved, graph.read(running.mean), inv_variance, graph.read(scale.master), graph.read(bias.master)
    )
    y, _ = graph.resample(graph.relu(normalised), cudnn.resample_mode.MAXPOOL, WINDOW, WINDOW)
    return y
