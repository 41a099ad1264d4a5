"""The suite of recurrent networks: a fixed list, drawn once and for all by a seed.

A network has a cell, H elements of input and state, B sequences of T steps, layers and a data type. In a corner each of
H, B, T and the layers is its least or its greatest. The list has every corner of every cell; the other networks and the
data types are drawn. Each network is a case in three classes: inference, forward training, and backward (both
gradients).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

COUNT = 120

_SEED = 1997
_CELLS = ("tanh", "lstm", "gru")
_HIDDEN = (256, 512, 1024, 1536, 2048)
_BATCHES = (1, 16, 64, 128)
_STEPS = (25, 128, 512)
_LAYERS = (1, 4)
_SIZES = (_HIDDEN, _BATCHES, _STEPS, _LAYERS)
_TYPES = ("fp16", "bf16")

#: By class the direction of its cases.
CLASSES = {
    "recurrent networks, inference": "fwd",
    "recurrent networks, forward training": "train",
    "recurrent networks, backward": "bwd",
}


def lines() -> Iterator[str]:
    """The suite as the lines of a file: a section for each class."""
    found = networks()
    for class_, direction in CLASSES.items():
        yield f"[{class_}]"
        yield from (f"{network} dir={direction}" for network in found)


def networks() -> tuple[str, ...]:
    """The ``COUNT`` networks as text, in the order of their sizes."""
    rng = Random(_SEED)
    corners = set(product(_CELLS, *((sizes[0], sizes[-1]) for sizes in _SIZES)))
    every = list(product(_CELLS, *_SIZES))
    # ``random()`` alone gives the same numbers in every version of Python.
    by_chance = sorted((sizes for sizes in every if sizes not in corners), key=lambda _: rng.random())
    chosen = corners.union(by_chance[: COUNT - len(corners)])
    return tuple(_text(*sizes, _TYPES[int(2 * rng.random())]) for sizes in every if sizes in chosen)


def _text(cell: str, hidden: int, batch: int, steps: int, layers: int, data_type: str) -> str:
    return f"rnn cell={cell} t={steps} b={batch} i={hidden} h={hidden} layers={layers} dtype={data_type}"
