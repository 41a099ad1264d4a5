"""The ``.approx`` functions (PTX ISA, "Floating Point Instructions": rcp, rsqrt, sqrt, sin, cos, lg2, ex2, tanh, div).

Each is computed in float64 and rounded to float32 once, so it lies well within the documented error bound of the
hardware's own approximation, but need not share its last bits. Special values follow the manual's tables.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowdnn.driver.emulated.values.floating import flush
from lowdnn.driver.emulated.values.packed import Lanes

_F32_DIV_LIMIT = np.float32(2.0**126)
_HIGH_WORD = np.uint64(0xFFFFFFFF00000000)
_F64_MIN_NORMAL = np.float64(2.0**-1022)


def function(name: str, ftz: bool = False) -> Callable[..., Lanes]:
    """The f32 function of ``name.approx{.ftz}.f32``: ex2 lg2 rcp rsqrt sqrt sin cos tanh, and div of two operands."""
    exact = _FUNCTIONS[name]
    return (lambda *operands: flush(exact(*map(flush, operands)))) if ftz else exact


def ex2(a: Lanes) -> Lanes:
    """2**a."""
    return np.exp2(a.astype(np.float64)).astype(np.float32)


def lg2(a: Lanes) -> Lanes:
    """log2(a): -inf at zeros of either sign, NaN below."""
    return np.log2(a.astype(np.float64)).astype(np.float32)


def rcp(a: Lanes) -> Lanes:
    """1 / a."""
    return np.float32(1) / a


def rsqrt(a: Lanes) -> Lanes:
    """1 / sqrt(a): infinity with the sign of a zero."""
    return (np.float64(1) / np.sqrt(a.astype(np.float64))).astype(np.float32)


def sqrt(a: Lanes) -> Lanes:
    """sqrt(a)."""
    return np.sqrt(a)


def sin(a: Lanes) -> Lanes:
    """sin(a), a in radians; NaN at infinities."""
    return np.sin(a.astype(np.float64)).astype(np.float32)


def cos(a: Lanes) -> Lanes:
    """cos(a), a in radians; NaN at infinities."""
    return np.cos(a.astype(np.float64)).astype(np.float32)


def tanh(a: Lanes) -> Lanes:
    """tanh(a); subnormal operands are kept."""
    return np.tanh(a.astype(np.float64)).astype(np.float32)


def div_approx(a: Lanes, b: Lanes) -> Lanes:
    """``div.approx``: a / b; for 2**126 < abs(b) < 2**128 it is 0 (NaN if a is infinite), as a * (1 / b) gives."""
    overflowing = (np.abs(b) > _F32_DIV_LIMIT) & np.isfinite(b)
    return np.where(overflowing, a * np.copysign(np.float32(0), b), a / b)


def div_full(a: Lanes, b: Lanes) -> Lanes:
    """``div.full``: a / b over the whole range."""
    return a / b


def rcp_f64(a: Lanes) -> Lanes:
    """``rcp.approx.ftz.f64``: 1 / a for a without its low 32 bits; subnormals flush; the low 32 result bits are 0."""
    return _upper_word(np.float64(1) / _upper_word(a))


def rsqrt_f64(a: Lanes) -> Lanes:
    """``rsqrt.approx.ftz.f64``: 1 / sqrt(a) with the operand and result of `rcp_f64`."""
    return _upper_word(np.float64(1) / np.sqrt(_upper_word(a)))


def _upper_word(value: Lanes) -> Lanes:
    """Clear the low 32 bits and flush subnormals to zero of the same sign."""
    kept = (value.view(np.uint64) & _HIGH_WORD).view(np.float64)
    return np.where(np.abs(kept) < _F64_MIN_NORMAL, np.copysign(np.float64(0), kept), kept)


_FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    "ex2": ex2,
    "lg2": lg2,
    "rcp": rcp,
    "rsqrt": rsqrt,
    "sqrt": sqrt,
    "sin": sin,
    "cos": cos,
    "tanh": tanh,
    "div": div_approx,
}
