"""Random cases of pooling and interpolation, as case lines.

A form is what shapes a kernel: mode, direction, types, windows, strides, paddings, layout, epilogue. ``forms`` goes
through every mode in both directions in turn and draws the rest; ``draw`` draws a shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_MODES = ("max", "avg", "max", "linear", "max", "avg_inside", "max", "nearest")
_TYPES = {
    "fwd": (
        *("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64 compute=fp64", "dtype=int8", "dtype=bf16 out=fp32"),
        *("dtype=int8 compute=int32", "dtype=e4m3 out=fp16"),
    ),
    "bwd": ("dtype=bf16", "dtype=fp16", "dtype=fp32", "dtype=fp64 compute=fp64", "dtype=bf16 out=fp32"),
}
_EPILOGUES = ("", "", "", "epilogue=relu", "epilogue=bias+relu", "epilogue=store+residual")
_INDICES = ("", "index=int8", "index=int32", "index=uint8", "index=int64")


@dataclass(frozen=True)
class ResampleForm:
    """Windows, strides and paddings of each axis as the line has them; no windows where outputs have a size.

    words: the rest of the line, as it stands.
    """

    windows: tuple[Fraction, ...]
    strides: tuple[Fraction, ...]
    paddings: tuple[tuple[Fraction, Fraction], ...]
    words: str


def forms(count: int, seed: int) -> list[ResampleForm]:
    """``count`` forms: every mode in turn, in one direction and then the other."""
    rng = np.random.default_rng(seed)
    return [_form(rng, _MODES[n // 2 % len(_MODES)], ("fwd", "bwd")[n % 2]) for n in range(count)]


def draw(form: ResampleForm, rng: np.random.Generator, most: int) -> str:
    """The line of a case of this form, with up to ``most`` channels and positions along an axis."""
    n, c = int(rng.integers(1, 4)), int(rng.choice([1, 3, 8, 16, most]))
    extents, words = [], []
    for window, (before, after) in zip(form.windows, form.paddings, strict=True):
        least = max(1, -int(-(window - before - after) // 1))
        extent = int(rng.integers(least, least + most))
        extents.append(extent if rng.integers(2) else -(-extent // 8) * 8)
    if form.strides:
        words = [
            f"window={_joined(form.windows)} stride={_joined(form.strides)}",
            "pad=" + _joined(f"{before}:{after}" for before, after in form.paddings),
        ]
    else:
        words = ["size=" + _joined(int(rng.integers(1, 2 * extent + 1)) for extent in extents)]
    return " ".join((f"resample n={n} c={c} hw={_joined(extents)}", *words, form.words))


def _form(rng: np.random.Generator, mode: str, direction: str) -> ResampleForm:
    spatial = int(rng.choice([1, 2, 2, 2, 3]))
    types = _pick(rng, tuple(t for t in _TYPES[direction] if mode != "linear" or "int32" not in t))
    rules = [f"mode={mode} dir={direction} {types}", _pick(rng, ("layout=nhwc", "layout=nchw"))]
    rules += [_pick(rng, _EPILOGUES), _pick(rng, ("", "", "align=4"))]
    if mode == "max":
        rules += [_pick(rng, _INDICES), _pick(rng, ("nan=wins", "nan=loses"))]
        rules += [_pick(rng, ("", "", "padding=zero", "padding=edge"))]
    elif mode == "avg":
        rules += [_pick(rng, ("", "", "padding=edge"))]
    words = " ".join(word for word in rules if word)
    if rng.integers(4) == 0:
        words = re.sub(r"index=u?int8", "index=int32", words)  # windows may have more places than a byte counts
        return ResampleForm((Fraction(1),) * spatial, (), ((Fraction(0), Fraction(0)),) * spatial, words)
    is_pooling = mode not in ("linear", "nearest")
    whole = is_pooling and rng.integers(4) > 0
    windows = tuple(Fraction(2) if mode == "linear" else _length(rng, whole) for _ in range(spatial))
    strides = tuple(_length(rng, whole) for _ in range(spatial))
    least = 0 if is_pooling else -1
    paddings = tuple((_padding(rng, whole, least), _padding(rng, whole, least)) for _ in range(spatial))
    return ResampleForm(windows, strides, paddings, words)


def _length(rng: np.random.Generator, whole: bool) -> Fraction:
    return Fraction(int(rng.choice([1, 2, 2, 3, 3, 4]))) if whole else Fraction(int(rng.integers(1, 14)), 4)


def _padding(rng: np.random.Generator, whole: bool, least: int) -> Fraction:
    return Fraction(int(rng.integers(0, 4))) if whole else Fraction(int(rng.integers(4 * least, 9)), 4)


def _pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _joined(values: object) -> str:
    return "x".join(map(str, values))  # type: ignore[call-overload]
