"""Exact sums and directed rounding, the ground under every float instruction that rounds once.

Round to odd: an inexact result takes the neighbour whose last bit is 1. A value rounded to odd with two or more spare
bits can be rounded again, in any direction, as the exact value would (Boldo and Melquiond, "Emulation of a FMA and
correctly rounded sums", IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes

NEAREST = "rn"
TOWARD_ZERO = "rz"
DOWN = "rm"
UP = "rp"

_INTEGER_ROUNDING = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """(s, e) with s = a + b rounded and s + e = a + b exactly (Knuth); e is NaN where s overflows."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """(p, e) with p = a * b rounded and p + e = a * b exactly, for float64 well inside the range (Dekker)."""
    product = a * b
    a_high, a_low = _split(a)
    b_high, b_low = _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def to_odd(nearest: Lanes, error: Lanes) -> Lanes:
    """The sum ``nearest + error`` rounded to odd, where ``nearest`` (float32 or float64) is its nearest value."""
    kind = nearest.dtype.type
    bits = np.uint32 if kind is np.float32 else np.uint64
    inexact = (error > 0) | (error < 0)
    even = (nearest.view(bits) & bits(1)) == bits(0)
    toward = np.copysign(kind(np.inf), error).astype(kind)
    return np.where(inexact & even, np.nextafter(nearest, toward), nearest)


def add_to_odd(a: Lanes, b: Lanes) -> Lanes:
    """float64 a + b rounded to odd."""
    return to_odd(*two_sum(a, b))


def adjusted(nearest: Lanes, error: Lanes, rounding: str) -> Lanes:
    """Move ``nearest`` one step where ``rounding`` asks for the other neighbour of ``nearest + error``."""
    zero, infinity = nearest.dtype.type(0), nearest.dtype.type(np.inf)
    if rounding == TOWARD_ZERO:
        return np.where((error < 0) & (nearest > 0) | (error > 0) & (nearest < 0), np.nextafter(nearest, zero), nearest)
    if rounding == DOWN:
        return np.where(error < 0, np.nextafter(nearest, -infinity), nearest)
    if rounding == UP:
        return np.where(error > 0, np.nextafter(nearest, infinity), nearest)
    return nearest


def narrow(value: Lanes, rounding: str) -> Lanes:
    """float64 (exact or rounded to odd) to float32 by ``rn``, ``rz``, ``rm`` or ``rp``."""
    nearest = value.astype(np.float32)
    if rounding == NEAREST:
        return nearest
    return adjusted(nearest, value - nearest.astype(np.float64), rounding)


def exact_zero(a: Lanes, b: Lanes, rounding: str) -> Lanes:
    """The zero that a + b yields where it is exactly zero: -0 if both addends are negative, under ``rm`` if any is."""
    negative = np.signbit(a) | np.signbit(b) if rounding == DOWN else np.signbit(a) & np.signbit(b)
    zero = np.zeros_like(a + b)
    return np.where(negative, -zero, zero)


def integral(value: Lanes, rounding: str) -> Lanes:
    """Round a float to an integral float: ``rni`` to nearest even, ``rzi``, ``rmi``, ``rpi``."""
    return _INTEGER_ROUNDING[rounding](value)


def _split(value: Lanes) -> tuple[Lanes, Lanes]:
    """Veltkamp's split of a float64 into two halves of at most 26 bits."""
    scaled = value * np.float64(134217729.0)
    high = scaled - (scaled - value)
    return high, value - high
