"""The network: two blocks of convolution, batch norm, ReLU and pooling, a linear layer, softmax cross-entropy."""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from lowdnn.cli.training import layers
from lowdnn.cli.training.layers import Layer, Statistics
from lowdnn.cli.training.loss_scale import LossScale
from lowdnn.cli.training.parameters import Parameters
from lowdnn.cli.training.session import Parts, Session
from lowdnn.cli.training.sgd import Sgd
from lowdnn.cli.training.split_norm import split_batch_norm_relu
from lowdnn.distributed.buckets import BUCKET_BYTES

CLASSES = 10
#: Width and height of the images.
WIDTH = 8
#: Filters of the two convolutions.
_FILTERS = (16, 32)
#: Inputs of the linear layer: the filters' outputs after two poolings.
_FEATURES = _FILTERS[-1] * (WIDTH // 4) ** 2

Initial = dict[str, NDArray[np.float64]]


def initial_parameters(rng: np.random.Generator) -> Initial:
    """Normal weights of variance 2 / (terms of a sum) before a ReLU; zeros before the softmax.

    Source: K. He et al., 2015, "Delving Deep into Rectifiers", section 2.2.
    """
    made: Initial = {}
    channels = 1
    for number, filters in enumerate(_FILTERS, 1):
        made[f"conv{number}.weight"] = rng.normal(0, sqrt(2 / (9 * channels)), (filters, channels, 3, 3))
        made[f"norm{number}.scale"] = np.ones((1, filters, 1, 1))
        made[f"norm{number}.bias"] = np.zeros((1, filters, 1, 1))
        channels = filters
    made["linear.weight"] = np.zeros((1, _FEATURES, CLASSES))
    made["linear.bias"] = np.zeros((1, 1, CLASSES))
    return made


class Network:
    """Trains on batches of ``batch`` images, which the caller puts into ``images`` and ``targets``.

    Both have an array for each part of the batch that this rank computes (``session.split``), of n images.
    images: (n, 1, 8, 8).  targets: (1, n, 10) in fp32, the shares of the classes in each image.
    """

    def __init__(self, session: Session, batch: int, initial: Initial, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._session = session
        count = session.split.part_of(batch)
        self.images = session.part_zeros((count, 1, WIDTH, WIDTH), session.activation_type)
        self.targets = session.part_zeros((1, count, CLASSES))
        self.parameters = Parameters(session, initial, bucket_bytes)
        self.running = [
            Statistics(session.zeros((1, filters, 1, 1)), session.on_device(np.ones((1, filters, 1, 1))))
            for filters in _FILTERS
        ]
        self.loss_scale = LossScale(session, self.parameters) if session.is_mixed else None
        self._sgd = Sgd(session, self.parameters, self.loss_scale)
        self._scale = session.on_device(np.ones((1, 1, 1))) if self.loss_scale is None else self.loss_scale.value
        self._loss, self._part_losses, self._add_up_losses = session.sum_of_parts((1, 1, 1))
        self._layers = self._build_layers()

    def train_step(self) -> None:
        """One step of gradient descent on the batch, at the rate of ``set_rate``.

        Neither the step nor its parts wait for anything, and they may be captured into a CUDA graph.
        """
        self.forward()
        self.backward()
        self.update()

    def forward(self) -> None:
        for layer in self._layers:
            for step in layer.forward:
                step()
        self._add_up_losses()

    def backward(self) -> None:
        buckets = self.parameters.buckets
        for layer in reversed(self._layers):
            for step in layer.backward:
                step()
            for parameter in layer.parameters:
                buckets.ready(parameter.name)
        buckets.finish()

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps from now on."""
        self._sgd.set_rate(rate)

    def update(self) -> None:
        self._sgd.update()

    def loss(self) -> float:
        """The loss of the last ``forward`` over the whole batch, the same on all ranks; waits for it."""
        self._session.synchronize()
        return float(self._session.read_back(self._loss).item())

    def _build_layers(self) -> list[Layer]:
        session, given = self._session, self.parameters
        made: list[Layer] = []
        norm = layers.batch_norm_relu if session.split.is_whole else split_batch_norm_relu
        x: Parts = self.images
        dx: Parts | None = None
        for number, running in enumerate(self.running, 1):
            made.append(layers.convolution(session, f"conv{number}", x, given[f"conv{number}.weight"], dx))
            scale, bias = given[f"norm{number}.scale"], given[f"norm{number}.bias"]
            made.append(norm(session, f"norm{number}", made[-1].output, scale, bias, running))
            made.append(layers.max_pool(session, f"pool{number}", made[-1].output))
            x, dx = made[-1].output.data, made[-1].output.grad
        made.append(layers.linear(session, "linear", made[-1].output, given["linear.weight"], given["linear.bias"]))
        losses = layers.softmax_cross_entropy(session, made[-1].output, self.targets, self._part_losses, self._scale)
        made.append(losses)
        return made
