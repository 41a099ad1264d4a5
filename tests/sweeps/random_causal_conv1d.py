"""Random causal convolutions along sequences, as case lines.

A form is what shapes a kernel: direction, layout, types, taps, what says where sequences are, states. ``forms`` goes
through both directions and layouts in turn and draws the rest; ``draw`` draws a shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_LAYOUTS = ("row", "nhwc", "row", "nhwc", "padded", "transposed")
_TYPES = ("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64", "dtype=bf16 params=fp32", "dtype=e4m3 out=bf16")
_TAPS = (1, 2, 3, 4, 4, 5, 7, 8, 9, 16, 31, 128)


@dataclass(frozen=True)
class CausalForm:
    """sequences: the key that says where sequences are, or empty.  words: the rest of the line."""

    taps: int
    sequences: str
    words: str


def forms(count: int, seed: int) -> list[CausalForm]:
    """``count`` forms: both directions and every layout in turn."""
    rng = np.random.default_rng(seed)
    return [_form(rng, ("fwd", "bwd")[n % 2], _LAYOUTS[n // 2 % len(_LAYOUTS)]) for n in range(count)]


def draw(form: CausalForm, rng: np.random.Generator, most: int) -> str:
    """The line of a case of this form, with up to ``most`` channels and 8 times as many elements."""
    batch = 1 if form.sequences == "sizes" else int(rng.integers(1, 4))
    channels, length = int(rng.integers(1, most + 1)), int(rng.integers(1, 8 * most + 1))
    if rng.integers(2):
        channels, length = -(-channels // 8) * 8, -(-length // 8) * 8
    words = [f"causal_conv1d b={batch} c={channels} l={length} k={form.taps}", form.words]
    if form.sequences == "lengths":
        words.append("lengths=" + "x".join(str(int(n)) for n in rng.integers(0, length + 1, batch)))
    if form.sequences == "sizes":
        inner = np.sort(rng.integers(0, length + 1, int(rng.integers(1, 6))))
        words.append("sizes=" + "x".join(str(int(n)) for n in np.diff([0, *inner])))
    if "dir=fwd" in form.words and form.taps > 1 and "states=none" not in form.words and rng.integers(3) == 0:
        count = words[-1].count("x") + 1 if form.sequences == "sizes" else batch
        pool = int(rng.integers(1, 2 * count + 1))
        words.append("slots=" + "x".join(str(int(n)) for n in rng.integers(0, pool + 2, count)) + f" pool={pool}")
    return " ".join(words)


def _form(rng: np.random.Generator, direction: str, layout: str) -> CausalForm:
    taps, sequences = int(rng.choice(_TAPS)), str(rng.choice(["", "", "lengths", "sizes"]))
    words = [f"dir={direction} layout={layout}", str(rng.choice(_TYPES)), f"act={rng.choice(['none', 'silu'])}"]
    words += [
        str(rng.choice(["", "bias=no"])),
        str(rng.choice(["", "", "align=4"])),
        str(rng.choice(["", "index=int64"])),
    ]
    if rng.integers(4) == 0:
        words.append(f"out_layout={rng.choice(_LAYOUTS)}")
    if taps > 1:
        states = ("none", "initial") if direction == "bwd" else ("none", "initial", "final", "both")
        words.append(f"states={rng.choice(states)}")
    return CausalForm(taps, sequences, " ".join(word for word in words if word))
