"""Distances of results from a reference in higher precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Results = Mapping[str, Array]

#: One rounding of an operand, by precision: a smaller error is no worse than another one.
ROUNDING: Mapping[str, float] = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
}


def distances(found: Results, reference: Results) -> dict[str, float]:
    """The 2-norm of each result's difference, relative to that of the reference; infinity for NaN.

    The reference of a very small result counts as at least a ten-thousandth of the norm of all results.
    """
    least = 1e-4 * float(np.sqrt(sum(np.vdot(part, part) for part in reference.values())))
    return {name: _relative(found[name], part, least) for name, part in reference.items()}


def overall(found: Results, reference: Results) -> float:
    """The relative 2-norm of the difference of all results together."""
    return _relative(*(np.concatenate([part[name].ravel() for name in reference]) for part in (found, reference)))


def _relative(found: Array, reference: Array, least: float = 0.0) -> float:
    with np.errstate(invalid="ignore"):
        distance = float(np.linalg.norm((found - reference).ravel()))
    size = max(float(np.linalg.norm(reference.ravel())), least)
    return distance / (size or 1.0) if np.isfinite(distance) else float("inf")


def group(name: str) -> str:
    """The kind of a result: loss, output or gradient."""
    return name.split(":")[0]


def ratio(own: float, *others: float) -> float:
    """lowdnn's error as a multiple of the largest of some errors."""
    return own / max(others)
