"""The float formats narrower than f32: their bits, decoded exactly and encoded with one rounding.

==== ========= ============ ========= ===========================
name precision min exponent largest   bits
==== ========= ============ ========= ===========================
f16  11        -14          65504     uint16
bf16 8         -126         3.39e38   uint16
tf32 11        -126         3.40e38   uint32, f32 with 13 zeros
e4m3 4         -6           448       uint8, no infinity
e5m2 3         -14          57344     uint8
==== ========= ============ ========= ===========================

Source: PTX ISA, "Alternate Floating-Point Data Formats" and "Fixed-point Data format"; cvt for NaN and overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes
from lowdnn.driver.emulated.values.rounding import NEAREST, TOWARD_ZERO, to_odd

_WHOLE: dict[str, Callable[[Lanes], Lanes]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda value: np.copysign(np.floor(np.abs(value) + 0.5), value),
}


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format and the coding of the values on its grid.

    ``precision``: significand bits with the hidden one. ``min_exponent``: of the smallest normal. ``nan``: canonical
    bits. ``encode_exact``: float64 values of the format, infinities included, to bits.
    """

    precision: int
    min_exponent: int
    largest: float
    nan: Lanes
    encode_exact: Callable[[Lanes], Lanes]


def decode(bits: Lanes, name: str) -> Lanes:
    """The exact float32 value of ``bits`` in format f16, bf16, e4m3 or e5m2."""
    if name == "bf16":
        return _decode_bf16(bits)
    return _VALUES[name].take(bits, mode="wrap")


def encode(value: Lanes, name: str, rounding: str = NEAREST, satfinite: bool = False) -> Lanes:
    """float32 or float64 ``value`` rounded once into format ``name``, as bits; NaN becomes the canonical NaN.

    Overflow goes to infinity or to the largest value as the rounding asks; with ``satfinite`` everything beyond the
    largest value, infinity included, becomes that value.
    """
    if (name, rounding) == ("tf32", "rna"):
        return _nearest_away_tf32(value, satfinite)
    fast = None if satfinite else _FAST_ENCODERS.get((name, rounding, value.dtype.char))
    if fast:
        bits = fast(value)
    else:
        bits = FORMATS[name].encode_exact(_on_grid(value.astype(np.float64), FORMATS[name], rounding, satfinite))
    undefined = np.isnan(value)
    return np.where(undefined, FORMATS[name].nan, bits) if np.count_nonzero(undefined) else bits


def f32_to_odd(value: Lanes) -> Lanes:
    """float64 to float32 rounded to odd: ready for one more rounding to a narrower format."""
    nearest = value.astype(np.float32)
    return to_odd(nearest, value - nearest)


def _on_grid(value: Lanes, target: FloatFormat, rounding: str, satfinite: bool) -> Lanes:
    _, exponent = np.frexp(value)
    step = np.maximum(exponent - np.int32(1), np.int32(target.min_exponent)) - np.int32(target.precision - 1)
    rounded = np.ldexp(_WHOLE[rounding](np.ldexp(value, -step)), step)
    largest = np.float64(target.largest)
    limit = largest if satfinite else _overflow_value(rounding, value, largest)
    overflow = np.abs(rounded) > largest
    if not satfinite:
        overflow &= np.isfinite(value)
    return np.where(overflow, np.copysign(limit, value), rounded)


def _overflow_value(rounding: str, value: Lanes, largest: Lanes) -> Lanes:
    infinity = np.float64(np.inf)
    if rounding == TOWARD_ZERO:
        return largest
    if rounding in ("rm", "rp"):
        return np.where(np.signbit(value) == (rounding == "rm"), infinity, largest)
    return infinity


def _decode_bf16(bits: Lanes) -> Lanes:
    return np.left_shift(bits, np.uint32(16), dtype=np.uint32).view(np.float32)


def _values_of_f16() -> Lanes:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _values_of_e4m3() -> Lanes:
    """Shift exponent and fraction to their places in f32, and scale by the difference of the biases, 2**120."""
    magnitude = (np.arange(128, dtype=np.uint32) << np.uint32(20)).view(np.float32) * np.float32(2.0**120)
    magnitude[127] = np.nan
    return np.concatenate([magnitude, -magnitude])


def _values_of_e5m2() -> Lanes:
    """The upper byte of an f16."""
    return (np.arange(256, dtype=np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


def _exact_f16(value: Lanes) -> Lanes:
    return value.astype(np.float16).view(np.uint16)


def _exact_bf16(value: Lanes) -> Lanes:
    return _truncate_to_bf16(value.astype(np.float32))


def _exact_tf32(value: Lanes) -> Lanes:
    return value.astype(np.float32).view(np.uint32)


def _exact_e4m3(value: Lanes) -> Lanes:
    magnitude = (np.abs(value) * np.float64(2.0**-120)).astype(np.float32).view(np.uint32) >> np.uint32(20)
    return magnitude.astype(np.uint8) | (np.signbit(value).astype(np.uint8) << np.uint8(7))


def _exact_e5m2(value: Lanes) -> Lanes:
    return (_exact_f16(value) >> np.uint16(8)).astype(np.uint8)


def _truncate_to_bf16(value: Lanes) -> Lanes:
    return (value.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _nearest_bf16(value: Lanes) -> Lanes:
    """Add half a unit, less one where the kept part is even, and cut: carries run into the exponent as they should."""
    bits = value.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += bits
    rounded += np.uint32(0x7FFF)
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


def _nearest_away_tf32(value: Lanes, satfinite: bool) -> Lanes:
    """Integer arithmetic on the bits of float32, as an H200 does it: NaN is cut, not rounded, and can become infinity.

    Saturation takes one unit off everything with the exponent of infinity, so that of NaN too.
    """
    bits = value.view(np.uint32)
    exponent = np.uint32(0x7F800000)
    rounded = np.where(bits & exponent == exponent, bits, bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    if not satfinite:
        return rounded
    return np.where(rounded & exponent == exponent, rounded - np.uint32(0x2000), rounded)


FORMATS: dict[str, FloatFormat] = {
    "f16": FloatFormat(11, -14, 65504.0, np.uint16(0x7FFF), _exact_f16),
    "bf16": FloatFormat(8, -126, 255.0 * 2.0**120, np.uint16(0x7FFF), _exact_bf16),
    "tf32": FloatFormat(11, -126, 2047.0 * 2.0**117, np.uint32(0x7FFFE000), _exact_tf32),
    "e4m3": FloatFormat(4, -6, 448.0, np.uint8(0x7F), _exact_e4m3),
    "e5m2": FloatFormat(3, -14, 57344.0, np.uint8(0x7F), _exact_e5m2),
}

_VALUES: dict[str, Lanes] = {"f16": _values_of_f16(), "e4m3": _values_of_e4m3(), "e5m2": _values_of_e5m2()}

_FAST_ENCODERS: dict[tuple[str, str, str], Callable[[Lanes], Lanes]] = {
    ("f16", "rn", "f"): _exact_f16,
    ("f16", "rn", "d"): _exact_f16,
    ("bf16", "rn", "f"): _nearest_bf16,
    ("bf16", "rz", "f"): _truncate_to_bf16,
}
