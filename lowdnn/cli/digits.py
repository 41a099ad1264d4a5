"""The demo's data: handwritten digits and filters that find their edges."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

#: One cell of terminal text for each of five brightness levels.
_SHADES = " .:*#"


def images(count: int) -> NDArray[np.float16]:
    """The first ``count`` images (at most 128) as (count, 1, 8, 8), pixels 0 to 16."""
    text = (files("lowdnn.cli") / "data" / "digits.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.splitlines()[:count]]
    return np.array([row[:64] for row in rows], np.float16).reshape(count, 1, 8, 8)


def edge_filters() -> NDArray[np.float16]:
    """Sobel's filter turned into the eight compass directions, as (8, 1, 3, 3).

    Source: I. Sobel, G. Feldman, 1968, "A 3x3 isotropic gradient operator for image processing".
    """
    ring = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    weights = [1, 2, 1, 0, -1, -2, -1, 0]
    filters = np.zeros((8, 1, 3, 3), np.float16)
    for direction in range(8):
        for place, (row, column) in enumerate(ring):
            filters[direction, 0, row, column] = weights[(place - direction) % 8]
    return filters


def picture(image: NDArray[np.float16]) -> list[str]:
    """Lines of text that show a 2-D image, scaled to its brightest pixel."""
    brightest = max(float(image.max()), 1.0)
    level = np.rint(image.astype(np.float32) / brightest * (len(_SHADES) - 1)).astype(int)
    return ["".join(_SHADES[value] * 2 for value in row) for row in level]
