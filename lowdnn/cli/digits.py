"""The demo's data: handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

#: The rows of the file that no training sees: every fifth, so that each writer's images are in both parts.
_HELD_OUT = slice(4, None, 5)


@dataclass(frozen=True)
class Digits:
    """``images``, (count, 8, 8) with pixels from 0 to 1, and the digits that they show: ``labels``, (count,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.labels)


def load() -> tuple[Digits, Digits]:
    """(for training, held out): 1438 and 359 images."""
    with (files("lowdnn.cli") / "data" / "digits.csv").open(encoding="utf-8") as lines:
        rows = np.loadtxt(lines, np.float32, delimiter=",")
    return _digits(np.delete(rows, _HELD_OUT, axis=0)), _digits(rows[_HELD_OUT])


def _digits(rows: NDArray[np.float32]) -> Digits:
    return Digits(rows[:, :64].reshape(-1, 8, 8) / np.float32(16), rows[:, 64].astype(np.int64))
