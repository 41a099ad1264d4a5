"""The batches of a whole training, made before it and kept on the device."""

from __future__ import annotations

from math import prod

import numpy as np

from lowdnn.cli.digits import Digits, distorted
from lowdnn.cli.training.network import CLASSES, Network
from lowdnn.cli.training.session import Session, dims_of, view

#: How far copies of the images may differ from them: see ``digits.distorted``.
_STRETCH, _SHIFT = 0.15, 0.8
#: Share of a target that is spread over all classes.
#: Source: C. Szegedy et al., 2016, "Rethinking the Inception Architecture for Computer Vision", section 7.
_SMOOTHING = 0.1


class Batches:
    """``steps`` batches of distorted copies: of every digit as many as of any other."""

    def __init__(self, session: Session, digits: Digits, batch: int, steps: int, rng: np.random.Generator) -> None:
        epochs = -(-batch * steps // digits.count)
        order = np.concatenate([rng.permutation(digits.count) for _ in range(epochs)])[: batch * steps]
        targets = np.eye(CLASSES)[digits.labels[order]] * (1 - _SMOOTHING) + _SMOOTHING / CLASSES
        copies = distorted(digits.images[order], rng, _STRETCH, _SHIFT)
        self._session = session
        self._images = session.on_device(copies[:, None], session.activation_type)
        self._targets = session.on_device(targets[None])

    def load(self, step: int, network: Network) -> None:
        """Copies the batch of a step to where the network reads it."""
        for source, target in ((self._images, network.images), (self._targets, network.targets)):
            dims = dims_of(target)
            self._session.copy(view(source, dims, offset=step * prod(dims)), target)
