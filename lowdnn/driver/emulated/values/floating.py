"""f32 arithmetic, and what f32 and f64 share (PTX ISA, "Floating Point Instructions").

Plain ``rn`` sums, differences, products and quotients without ``.ftz`` are NumPy's own operators. `arithmetic` binds
operation, type and modifiers once, for the rest. NaN results carry some quiet NaN; only `minimum` and `maximum`, whose
manual pages ask for it, produce the canonical one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from lowdnn.driver.emulated.values import float64
from lowdnn.driver.emulated.values.packed import Lanes, selected
from lowdnn.driver.emulated.values.rounding import NEAREST, add_to_odd, adjusted, exact_zero, narrow, two_sum

CANONICAL_NAN: dict[np.dtype[Any], Lanes] = {
    np.dtype(np.float32): np.uint32(0x7FFFFFFF).view(np.float32),
    np.dtype(np.float64): np.uint64(0x7FFFFFFFFFFFFFFF).view(np.float64),
}

_BITS = {np.dtype(np.float32): np.dtype(np.uint32), np.dtype(np.float64): np.dtype(np.uint64)}
_F32_MIN_NORMAL = np.float32(2.0**-126)
_FTZ_SCALE = np.float32(2.0**32)
#: By how much each operand is scaled for a result that is scaled by _FTZ_SCALE.
_FTZ_SCALES: dict[str, tuple[Lanes, ...]] = {
    "mul": (_FTZ_SCALE, np.float32(1)),
    "div": (_FTZ_SCALE, np.float32(1)),
    "fma": (_FTZ_SCALE, np.float32(1), _FTZ_SCALE),
    "rcp": (1 / _FTZ_SCALE,),
}
_MIDPOINT_SHIFT = np.uint64(35)
_MIDPOINT = np.uint64(1 << 63)


def arithmetic(
    operation: str, dtype: str, rounding: str = NEAREST, ftz: bool = False, saturate: bool = False
) -> Callable[..., Lanes]:
    """The function for ``operation`` (add, sub, mul, fma, div, rcp, sqrt) on ``dtype`` (f32, f64), modifiers bound."""
    rounded = _OPERATIONS[dtype][operation]
    if ftz:
        return lambda *operands: _finished(_flushed(operation, rounded, rounding, *map(flush, operands)), saturate)
    if saturate:
        return lambda *operands: saturated(rounded(*operands, rounding))
    return rounded if rounding == NEAREST else partial(rounded, rounding=rounding)


def comparison(operation: str) -> Callable[[Lanes, Lanes], Lanes]:
    """``setp`` of floats: eq ne lt le gt ge are false on NaN, equ neu ltu leu gtu geu true; num and nan test for it.

    Integers use eq ne lt le gt ge and their unsigned spellings lo ls hi hs; signedness is the dtype's.
    """
    return _COMPARISONS[operation]


def flush(value: Lanes) -> Lanes:
    """``.ftz``: f32 subnormals become zeros of the same sign."""
    return value * (np.abs(value) >= _F32_MIN_NORMAL)


def saturated(value: Lanes) -> Lanes:
    """``.sat``: clamp to [0, 1]; NaN becomes +0."""
    zero, one = value.dtype.type(0), value.dtype.type(1)
    return np.where(value > zero, np.fmin(value, one), zero)


def add_f32(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``add.f32``: a + b."""
    if rounding == NEAREST:
        return a + b
    total = narrow(add_to_odd(a.astype(np.float64), b.astype(np.float64)), rounding)
    return np.where(total == 0, exact_zero(a, b, rounding), total)


def sub_f32(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``sub.f32``: a - b."""
    return add_f32(a, -b, rounding)


def mul_f32(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``mul.f32``: a * b; the product is exact in float64."""
    return a * b if rounding == NEAREST else narrow(a.astype(np.float64) * b, rounding)


def fma_f32(a: Lanes, b: Lanes, c: Lanes, rounding: str = NEAREST) -> Lanes:
    """``fma.f32``: a * b + c with one rounding.

    To nearest, a float64 sum rounded again goes wrong only where it fell on a midpoint of float32 neighbours (low 29
    bits 1000...) or where the result is subnormal; those lanes take the exact way.
    """
    if rounding != NEAREST:
        return _directed_fma_f32(a, b, c, rounding)
    total = np.multiply(a, b, dtype=np.float64)
    total += c
    result = total.astype(np.float32)
    bits = total.view(np.uint64)
    bits <<= _MIDPOINT_SHIFT
    midpoint = bits == _MIDPOINT
    small = np.count_nonzero(np.abs(result) < _F32_MIN_NORMAL)
    # Zeros, of which there are many, are right as they are.
    if np.count_nonzero(midpoint) or (small and small > result.size - np.count_nonzero(result)):
        return _repaired_fma_f32(result, midpoint, a, b, c)
    return result


def div_f32(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``div.f32``: a / b; a float64 quotient of float32 values is a float32 value only where it is exact."""
    return a / b if rounding == NEAREST else narrow(a.astype(np.float64) / b, rounding)


def rcp_f32(a: Lanes, rounding: str = NEAREST) -> Lanes:
    """``rcp.f32``: 1 / a."""
    return div_f32(np.ones_like(a), a, rounding)


def sqrt_f32(a: Lanes, rounding: str = NEAREST) -> Lanes:
    """``sqrt.f32``: the square root; NaN below zero, -0 for -0."""
    return np.sqrt(a) if rounding == NEAREST else narrow(np.sqrt(a.astype(np.float64)), rounding)


def minimum(a: Lanes, b: Lanes, propagate_nan: bool = False) -> Lanes:
    """``min``: -0 is below +0; a NaN yields the other operand, with ``.NaN`` the canonical NaN."""
    return _extremum(np.fmin, np.bitwise_or, a, b, propagate_nan)


def maximum(a: Lanes, b: Lanes, propagate_nan: bool = False) -> Lanes:
    """``max``: +0 is above -0; a NaN yields the other operand, with ``.NaN`` the canonical NaN."""
    return _extremum(np.fmax, np.bitwise_and, a, b, propagate_nan)


def minimum_xorsign_abs(a: Lanes, b: Lanes, propagate_nan: bool = False) -> Lanes:
    """``min.xorsign.abs``: min(|a|, |b|) with the product of the signs."""
    return _with_xor_sign(minimum(np.abs(a), np.abs(b), propagate_nan), a, b)


def maximum_xorsign_abs(a: Lanes, b: Lanes, propagate_nan: bool = False) -> Lanes:
    """``max.xorsign.abs``: max(|a|, |b|) with the product of the signs."""
    return _with_xor_sign(maximum(np.abs(a), np.abs(b), propagate_nan), a, b)


def copy_sign(sign: Lanes, magnitude: Lanes) -> Lanes:
    """``copysign d, a, b``: the sign of the first operand on the magnitude of the second."""
    return np.copysign(magnitude, sign)


def property_test(value: Lanes, name: str) -> Lanes:
    """``testp``: finite, infinite, number, notanumber, normal or subnormal; zero counts as normal."""
    return _PROPERTIES[name](value)


def _flushed(operation: str, rounded: Callable[..., Lanes], rounding: str, *operands: Lanes) -> Lanes:
    """A result with ``.ftz``.

    An H200 rounds to 24 bits as if exponents had no end and flushes what is then too small, so it flushes some of what
    otherwise rounds up to the smallest normal number. Scaled operands show those; sums are exact so far down.
    """
    result = flush(rounded(*operands, rounding))
    smallest = np.abs(result) == _F32_MIN_NORMAL
    if operation in _FTZ_SCALES and np.count_nonzero(smallest):
        scaled = [operand * scale for operand, scale in zip(operands, _FTZ_SCALES[operation], strict=True)]
        below = np.abs(rounded(*scaled, rounding)) < _F32_MIN_NORMAL * _FTZ_SCALE
        result = np.where(smallest & below, np.copysign(np.float32(0), result), result)
    return result


def _finished(value: Lanes, saturate: bool) -> Lanes:
    return saturated(value) if saturate else value


def _repaired_fma_f32(result: Lanes, midpoint: Lanes, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """``result`` with its lanes at a ``midpoint`` and its subnormal ones rounded anew."""
    doubtful = midpoint | ((np.abs(result) < _F32_MIN_NORMAL) & (result != 0))
    repaired = np.asarray(result)
    a, b, c = (operand.astype(np.float64) for operand in selected(doubtful, a, b, c))
    repaired[doubtful] = narrow(add_to_odd(a * b, c), NEAREST)
    return repaired


def _directed_fma_f32(a: Lanes, b: Lanes, c: Lanes, rounding: str) -> Lanes:
    """The float64 sum tells the direction, but for sums that fell on a float32 value: there its own error does."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    nearest = total.astype(np.float32)
    error = total - nearest
    on_grid = error == 0
    if np.count_nonzero(on_grid):
        error = np.where(on_grid, two_sum(product, addend)[1], error)
    result = adjusted(nearest, error, rounding)
    zero = total == 0
    if np.count_nonzero(zero):
        result = np.where(zero, exact_zero(product, addend, rounding).astype(np.float32), result)
    return result


def _extremum(select: np.ufunc, merge_equal: np.ufunc, a: Lanes, b: Lanes, propagate_nan: bool) -> Lanes:
    result = select(a, b)
    equal = a == b
    if np.count_nonzero(equal):
        bits = _BITS[result.dtype]
        result = np.where(equal, merge_equal(a.view(bits), b.view(bits)).view(result.dtype), result)
    undefined = np.isnan(a) | np.isnan(b) if propagate_nan else np.isnan(result)
    if np.count_nonzero(undefined):
        result = np.where(undefined, CANONICAL_NAN[result.dtype], result)
    return result


def _with_xor_sign(magnitude: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """The sign is set on numbers only: a NaN stays canonical."""
    return np.where((np.signbit(a) != np.signbit(b)) & ~np.isnan(magnitude), -magnitude, magnitude)


def _min_normal(value: Lanes) -> Lanes:
    return np.finfo(value.dtype).smallest_normal


def _ordered_not_equal(a: Lanes, b: Lanes) -> Lanes:
    return (a < b) | (a > b)


def _unordered(a: Lanes, b: Lanes) -> Lanes:
    return np.isnan(a) | np.isnan(b)


_OPERATIONS: dict[str, dict[str, Callable[..., Lanes]]] = {
    "f32": {
        "add": add_f32,
        "sub": sub_f32,
        "mul": mul_f32,
        "fma": fma_f32,
        "div": div_f32,
        "rcp": rcp_f32,
        "sqrt": sqrt_f32,
    },
    "f64": {
        "add": float64.add,
        "sub": float64.sub,
        "mul": float64.mul,
        "fma": float64.fma,
        "div": float64.div,
        "rcp": float64.rcp,
        "sqrt": float64.sqrt,
    },
}

_COMPARISONS: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": _ordered_not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "equ": lambda a, b: ~_ordered_not_equal(a, b),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~np.greater_equal(a, b),
    "leu": lambda a, b: ~np.greater(a, b),
    "gtu": lambda a, b: ~np.less_equal(a, b),
    "geu": lambda a, b: ~np.less(a, b),
    "num": lambda a, b: ~_unordered(a, b),
    "nan": _unordered,
}

_PROPERTIES: dict[str, Callable[[Lanes], Lanes]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda value: ~np.isnan(value),
    "notanumber": np.isnan,
    "normal": lambda value: np.isfinite(value) & ((np.abs(value) >= _min_normal(value)) | (value == 0)),
    "subnormal": lambda value: (value != 0) & (np.abs(value) < _min_normal(value)),
}
