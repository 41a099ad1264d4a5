"""Integer arithmetic (PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic").

Additions, subtractions and low products wrap and are NumPy's own operators; this module holds the rest. All operands of
one function have the instruction's type unless a docstring says otherwise.
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes, elements, joined

_WIDER = {
    np.dtype(np.uint8): np.dtype(np.uint16),
    np.dtype(np.int8): np.dtype(np.int16),
    np.dtype(np.uint16): np.dtype(np.uint32),
    np.dtype(np.int16): np.dtype(np.int32),
    np.dtype(np.uint32): np.dtype(np.uint64),
    np.dtype(np.int32): np.dtype(np.int64),
}
_UNSIGNED_OF_WIDTH = {8: np.dtype(np.uint8), 16: np.dtype(np.uint16), 32: np.dtype(np.uint32), 64: np.dtype(np.uint64)}


def width(value: Lanes) -> int:
    """Bits in one lane of ``value``."""
    return int(value.dtype.itemsize) * 8


def unsigned(value: Lanes) -> Lanes:
    """The bits as an unsigned integer of the same width."""
    return value.view(_UNSIGNED_OF_WIDTH[width(value)])


def add_sat(a: Lanes, b: Lanes) -> Lanes:
    """``add.sat.s32``: a + b clamped to the range of int32."""
    return _clamped(a.astype(np.int64) + b.astype(np.int64), np.int32)


def sub_sat(a: Lanes, b: Lanes) -> Lanes:
    """``sub.sat.s32``: a - b clamped to the range of int32."""
    return _clamped(a.astype(np.int64) - b.astype(np.int64), np.int32)


def mul_hi(a: Lanes, b: Lanes) -> Lanes:
    """``mul.hi``: the upper half of the double-width product, 16, 32 or 64 bits, signed by dtype."""
    if width(a) == 64:
        return _mul_hi_64(a, b)
    return (mul_wide(a, b) >> width(a)).astype(a.dtype)


def mul_wide(a: Lanes, b: Lanes) -> Lanes:
    """``mul.wide``: the whole product in twice the width (16 and 32 bits)."""
    wider = _WIDER[a.dtype]
    return a.astype(wider) * b.astype(wider)


def mad_hi_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """``mad.hi.sat.s32``: upper half of a * b, plus c, clamped to the range of int32."""
    return add_sat(mul_hi(a, b), c)


def mul24_lo(a: Lanes, b: Lanes) -> Lanes:
    """``mul24.lo``: bits 0 to 31 of the 48-bit product of the low 24 bits of a and b."""
    return _product_24(a, b).astype(a.dtype)


def mul24_hi(a: Lanes, b: Lanes) -> Lanes:
    """``mul24.hi``: bits 16 to 47 of the 48-bit product of the low 24 bits of a and b."""
    return (_product_24(a, b) >> 16).astype(a.dtype)


def mad24_hi_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """``mad24.hi.sat.s32``: ``mul24.hi`` plus c, clamped to the range of int32."""
    return add_sat(mul24_hi(a, b), c)


def div(a: Lanes, b: Lanes) -> Lanes:
    """``div``: quotient truncated toward zero.

    Division by zero yields all ones (the manual leaves the value open; hardware's is all ones). The quotient of the
    most negative value and -1 wraps to the most negative value.
    """
    zero = b == 0
    divisor = np.where(zero, np.ones_like(b), b)
    if a.dtype.kind == "u":
        return np.where(zero, ~np.zeros_like(a), a // divisor)
    return np.where(zero, ~np.zeros_like(a), _truncated_quotient(a, divisor))


def rem(a: Lanes, b: Lanes) -> Lanes:
    """``rem``: a - div(a, b) * b, with the sign of a. The remainder by zero is a (the manual leaves it open)."""
    return np.where(b == 0, a, a - div(a, b) * b)


def sad(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """``sad``: c + abs(a - b), wrapping; the difference is taken without overflow."""
    return c + (unsigned(np.maximum(a, b)) - unsigned(np.minimum(a, b))).view(c.dtype)


def shl(a: Lanes, amount: Lanes) -> Lanes:
    """``shl``: a << amount (uint32); amounts beyond the width clamp to the width, so the result is 0."""
    if np.ndim(amount) == 0:
        return a << a.dtype.type(amount) if amount < width(a) else np.zeros_like(a)
    return np.where(amount < width(a), a << (amount & np.uint32(width(a) - 1)).astype(a.dtype), np.zeros_like(a))


def shr(a: Lanes, amount: Lanes) -> Lanes:
    """``shr``: a >> amount (uint32), filled with the sign for signed dtypes; amounts clamp to the width."""
    last = np.uint32(width(a) - 1)
    if np.ndim(amount) == 0 and amount <= last:
        return a >> a.dtype.type(amount)
    if a.dtype.kind == "i":
        return a >> np.minimum(amount, last).astype(a.dtype)
    return np.where(amount <= last, a >> (amount & last).astype(a.dtype), np.zeros_like(a))


def funnel_shift_left(low: Lanes, high: Lanes, amount: Lanes, wrap: bool) -> Lanes:
    """``shf.l``: bits 32 to 63 of (high:low) << n; n is amount mod 32 (``.wrap``) or min(amount, 32) (``.clamp``)."""
    return ((_concatenated(low, high) << _funnel_amount(amount, wrap)) >> np.uint64(32)).astype(np.uint32)


def funnel_shift_right(low: Lanes, high: Lanes, amount: Lanes, wrap: bool) -> Lanes:
    """``shf.r``: bits 0 to 31 of (high:low) >> n; n as in `funnel_shift_left`."""
    return (_concatenated(low, high) >> _funnel_amount(amount, wrap)).astype(np.uint32)


def add_carry(a: Lanes, b: Lanes, carry: Lanes) -> tuple[Lanes, Lanes]:
    """``add.cc`` (carry False) and ``addc.cc``: (a + b + carry, carry out as bool) on unsigned operands."""
    partial = a + b
    total = partial + carry.astype(a.dtype)
    return total, (partial < a) | (total < partial)


def sub_borrow(a: Lanes, b: Lanes, borrow: Lanes) -> tuple[Lanes, Lanes]:
    """``sub.cc`` (borrow False) and ``subc.cc``: (a - b - borrow, borrow out as bool) on unsigned operands."""
    partial = a - b
    total = partial - borrow.astype(a.dtype)
    return total, (a < b) | (partial < total)


def dp4a(a: Lanes, b: Lanes, c: Lanes, a_signed: bool, b_signed: bool) -> Lanes:
    """``dp4a``: c + sum over the 4 bytes of a[i] * b[i]; a and b are uint32, c is int32 or uint32."""
    products = _bytes_as_int32(a, a_signed) * _bytes_as_int32(b, b_signed)
    return c + products.sum(axis=-1, dtype=np.int32).astype(c.dtype)


def dp2a(a: Lanes, b: Lanes, c: Lanes, a_signed: bool, b_signed: bool, high: bool) -> Lanes:
    """``dp2a``: c + a.half[0] * b.byte[k] + a.half[1] * b.byte[k + 1] with k = 2 for ``.hi`` and 0 for ``.lo``."""
    halves = elements(a, np.int16 if a_signed else np.uint16).astype(np.int32)
    first = 2 if high else 0
    products = halves * _bytes_as_int32(b, b_signed)[..., first : first + 2]
    return c + products.sum(axis=-1, dtype=np.int32).astype(c.dtype)


def minimum_x2(a: Lanes, b: Lanes, signed: bool, relu: bool = False) -> Lanes:
    """``min.s16x2`` / ``min.u16x2`` on uint32 operands; ``.relu`` clamps negative results to 0."""
    return _packed_16(np.minimum, a, b, signed, relu)


def maximum_x2(a: Lanes, b: Lanes, signed: bool, relu: bool = False) -> Lanes:
    """``max.s16x2`` / ``max.u16x2`` on uint32 operands; ``.relu`` clamps negative results to 0."""
    return _packed_16(np.maximum, a, b, signed, relu)


def add_x2(a: Lanes, b: Lanes) -> Lanes:
    """``add.u16x2`` / ``add.s16x2``: two wrapping 16-bit sums on uint32 operands."""
    return _packed_16(np.add, a, b, signed=False, relu=False)


def _clamped(value: Lanes, dtype: type[np.signedinteger]) -> Lanes:
    limits = np.iinfo(dtype)
    return np.clip(value, limits.min, limits.max).astype(dtype)


def _mul_hi_64(a: Lanes, b: Lanes) -> Lanes:
    high = _unsigned_mul_hi_64(unsigned(a), unsigned(b))
    if a.dtype.kind == "u":
        return high
    zero = np.int64(0)
    return high.view(np.int64) - np.where(a < 0, b, zero) - np.where(b < 0, a, zero)


def _unsigned_mul_hi_64(a: Lanes, b: Lanes) -> Lanes:
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & low, a >> half, b & low, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> half) + (other >> half)


def _product_24(a: Lanes, b: Lanes) -> Lanes:
    wide = np.int64 if a.dtype.kind == "i" else np.uint64
    drop = a.dtype.type(8)
    return ((a << drop) >> drop).astype(wide) * ((b << drop) >> drop).astype(wide)


def _truncated_quotient(a: Lanes, divisor: Lanes) -> Lanes:
    """Quotient toward zero by magnitudes: NumPy's own division rounds toward minus infinity."""
    magnitude = unsigned(np.abs(a)) // unsigned(np.abs(divisor))
    quotient = magnitude.view(a.dtype)
    return np.where((a < 0) == (divisor < 0), quotient, -quotient)


def _concatenated(low: Lanes, high: Lanes) -> Lanes:
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _funnel_amount(amount: Lanes, wrap: bool) -> Lanes:
    return (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(np.uint64)


def _bytes_as_int32(packed: Lanes, signed: bool) -> Lanes:
    return elements(packed, np.int8 if signed else np.uint8).astype(np.int32)


def _packed_16(operation: np.ufunc, a: Lanes, b: Lanes, signed: bool, relu: bool) -> Lanes:
    dtype = np.int16 if signed else np.uint16
    result = operation(elements(a, dtype), elements(b, dtype))
    return joined(np.maximum(result, dtype(0)) if relu else result)
