"""The reference of the float tests: rational arithmetic and one rounding into a binary format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary float format: significand bits with the hidden one, exponent of the smallest normal, largest value."""

    precision: int
    min_exponent: int
    largest: Fraction


F64 = Format(53, -1022, Fraction(float(np.finfo(np.float64).max)))
F32 = Format(24, -126, Fraction(float(np.finfo(np.float32).max)))
F16 = Format(11, -14, Fraction(65504))
BF16 = Format(8, -126, Fraction(255) * Fraction(2) ** 120)


def rounded(exact: Fraction, target: Format, rounding: str) -> float:
    """``exact`` rounded once (rn, rz, rm, rp, rna); overflow to infinity or the largest value as the mode demands."""
    if exact == 0:
        return 0.0
    magnitude, negative = abs(exact), exact < 0
    exponent = max(_floor_log2(magnitude), target.min_exponent)
    quantum = Fraction(2) ** (exponent - target.precision + 1)
    steps, rest = divmod(magnitude, quantum)
    if _away(rounding, negative, int(steps), rest / quantum):
        steps += 1
    result = steps * quantum
    value = _overflowed(rounding, negative, target) if result > target.largest else float(result)
    return -value if negative else value


def as_fraction(value: float) -> Fraction:
    return Fraction(float(value))


def _away(rounding: str, negative: bool, steps: int, rest: Fraction) -> bool:
    half = Fraction(1, 2)
    return {
        "rn": rest > half or (rest == half and steps % 2 == 1),
        "rna": rest >= half,
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[rounding]


def _overflowed(rounding: str, negative: bool, target: Format) -> float:
    stays = rounding == "rz" or (rounding == "rm" and not negative) or (rounding == "rp" and negative)
    return float(target.largest) if stays else math.inf


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1
