"""The demo's data: handwritten digits, and distorted copies of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

#: The last rows of the file, which no training sees.
_HELD_OUT = 40

Images = NDArray[np.float32]


@dataclass(frozen=True)
class Digits:
    """``images``, (count, 8, 8) with pixels from 0 to 1, and the digits that they show: ``labels``, (count,)."""

    images: Images
    labels: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.labels)


def load() -> tuple[Digits, Digits]:
    """(for training, held out): the first 88 and the last 40 rows of the file."""
    text = (files("lowdnn.cli") / "data" / "digits.csv").read_text(encoding="utf-8")
    rows = np.array([line.split(",") for line in text.splitlines()], np.float32)
    images, labels = rows[:, :64].reshape(-1, 8, 8) / np.float32(16), rows[:, 64].astype(np.int64)
    return Digits(images[:-_HELD_OUT], labels[:-_HELD_OUT]), Digits(images[-_HELD_OUT:], labels[-_HELD_OUT:])


def distorted(images: Images, rng: np.random.Generator, stretch: float, shift: float) -> Images:
    """Each of ``images``, (N, height, width), under an affine map of its own; bilinear, dark beyond the edges.

    The matrix differs from the identity by at most ``stretch`` in each entry, the origin is the image's middle; the
    translation is at most ``shift`` pixels along each axis.
    """
    count, height, width = images.shape
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    matrices = np.eye(2) + rng.uniform(-stretch, stretch, (count, 2, 2))
    offsets = middle + rng.uniform(-shift, shift, (count, 2))
    pixels = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1) - middle
    places = np.einsum("nij,hwj->nhwi", matrices, pixels) + offsets[:, None, None]
    # A dark frame, in which whatever lies outside is clamped.
    framed = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    places = np.clip(places + 1, 0, np.array([height, width]) + 1)
    corner = np.floor(places).astype(np.int64)
    (row, column), (down, right) = np.moveaxis(corner, -1, 0), np.moveaxis(places - corner, -1, 0)
    image = np.arange(count)[:, None, None]
    upper = framed[image, row, column] * (1 - right) + framed[image, row, column + 1] * right
    lower = framed[image, row + 1, column] * (1 - right) + framed[image, row + 1, column + 1] * right
    result: Images = (upper * (1 - down) + lower * down).astype(np.float32)
    return result
