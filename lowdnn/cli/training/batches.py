"""The batches of a whole training, made before it and kept on the device."""

from __future__ import annotations

from math import prod

import numpy as np

from lowdnn.cli.digits import Digits
from lowdnn.cli.training.network import CLASSES, Network
from lowdnn.cli.training.session import Session, dims_of, view


class Batches:
    """``steps`` batches of images in random order: no image comes again before every other one has come.

    The order is that of the whole batch, and the same on all ranks; each keeps its own parts.
    """

    def __init__(self, session: Session, digits: Digits, batch: int, steps: int, rng: np.random.Generator) -> None:
        epochs = -(-batch * steps // digits.count)
        whole = np.concatenate([rng.permutation(digits.count) for _ in range(epochs)])[: batch * steps]
        split = session.split
        order = whole.reshape(steps, split.parts, split.part_of(batch))[:, split.own_parts].reshape(-1)
        self._session = session
        self._images = session.on_device(digits.images[order, None], session.activation_type)
        self._targets = session.on_device(np.eye(CLASSES)[None, digits.labels[order]])

    def load(self, step: int, network: Network) -> None:
        """Copies the batch of a step into the network's input tensors."""
        for source, target in ((self._images, network.images), (self._targets, network.targets)):
            dims = dims_of(target)
            for place, array in enumerate(target.arrays, step * len(target.arrays)):
                self._session.copy(view(source, dims, offset=place * prod(dims)), array)
