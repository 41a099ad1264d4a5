"""Random recurrent networks, as case lines: any cell, biases, layout, lengths, dropout, type and operation."""

from __future__ import annotations

import numpy as np

_CELLS = ("lstm", "lstm", "gru", "gru", "tanh", "relu")
_BIASES = ("", "", "bias=none", "bias=input", "bias=recurrent")
_TYPES = ("dtype=fp16", "dtype=bf16", "dtype=fp32", "dtype=fp32 tf32=yes", "dtype=fp64", "dtype=fp16 align=2")
_LAYOUTS = ("time", "batch", "packed")
_WAYS = ("fwd", "train", "train", "dgrad", "dgrad", "wgrad", "wgrad add=yes", "bwd", "bwd add=yes")


def draw_rnn(rng: np.random.Generator, most_units: int, most_steps: int, most_sequences: int) -> str:
    """The line of a network with at most so many units in a layer, on at most so many sequences and steps."""
    cell, hidden, way = _pick(rng, _CELLS), _size(rng, most_units), _pick(rng, _WAYS)
    steps, batch = int(rng.integers(1, most_steps + 1)), _size(rng, most_sequences)
    skips = rng.random() < 0.15
    words = [
        f"rnn cell={cell} t={steps} b={batch} i={hidden if skips else _size(rng, most_units)} h={hidden}",
        f"dir={way}",
        _pick(rng, _TYPES),
        _pick(rng, _BIASES),
        "input=skip" if skips else "",
        _some(rng, 0.4, f"layers={int(rng.integers(2, 4))}"),
        _some(rng, 0.4, "bi=yes"),
        _some(rng, 0.3, f"dropout={_pick(rng, ('0.25', '0.5', '0.9'))}"),
        _some(rng, 0.2, "states=no"),
        _sequences(rng, steps, batch),
        _some(rng, 0.3, "fill=-1.5") if way in ("fwd", "train") else "",
    ]
    if cell == "lstm":
        words += [_some(rng, 0.3, f"proj={int(rng.integers(1, max(hidden, 2)))}") if hidden > 1 else ""]
        words += [_some(rng, 0.3, f"clip={_pick(rng, ('0.25', '1'))}")]
    if cell == "gru":
        words += [_some(rng, 0.3, "reset=before")]
    return " ".join(word for word in words if word)


def _sequences(rng: np.random.Generator, steps: int, batch: int) -> str:
    """Layout and lengths, which packed sequences have always; sequences without a step now and then."""
    layout = _pick(rng, _LAYOUTS)
    if layout != "packed" and rng.random() < 0.4:
        return f"layout={layout}"
    least = 0 if rng.random() < 0.25 else 1
    lengths = rng.integers(least, steps + 1, batch).tolist()
    if layout == "packed":
        lengths = sorted([*lengths[1:], max(lengths[0], 1)], reverse=True)
    return f"layout={layout} lengths={'x'.join(map(str, lengths))}"


def _size(rng: np.random.Generator, most: int) -> int:
    """Small sizes as often as large ones; every other one that can be a multiple of 8 is."""
    size = int(2 ** rng.uniform(0, np.log2(most + 1)))
    return size // 8 * 8 if size >= 8 and rng.integers(2) else max(1, size)


def _some(rng: np.random.Generator, share: float, word: str) -> str:
    return word if rng.random() < share else ""


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]
