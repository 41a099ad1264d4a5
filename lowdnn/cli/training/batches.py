"""The batches of a whole training, made before it and kept on the device."""

from __future__ import annotations

from math import prod

import numpy as np

from lowdnn.cli.digits import Digits
from lowdnn.cli.training.network import CLASSES, Network
from lowdnn.cli.training.session import Session, dims_of, view


class Batches:
    """``steps`` batches of images in random order: no image comes again before every other one has come."""

    def __init__(self, session: Session, digits: Digits, batch: int, steps: int, rng: np.random.Generator) -> None:
        epochs = -(-batch * steps // digits.count)
        order = np.concatenate([rng.permutation(digits.count) for _ in range(epochs)])[: batch * steps]
        self._session = session
        self._images = session.on_device(digits.images[order, None], session.activation_type)
        self._targets = session.on_device(np.eye(CLASSES)[None, digits.labels[order]])

    def load(self, step: int, network: Network) -> None:
        """Copies the batch of a step into the network's input tensors."""
        for source, target in ((self._images, network.images), (self._targets, network.targets)):
            dims = dims_of(target)
            self._session.copy(view(source, dims, offset=step * prod(dims)), target)
