"""Arithmetic on f16, f16x2, bf16 and bf16x2 (PTX ISA, "Half Precision Floating Point Instructions").

Operands and results are bits: uint16 for one element, uint32 for a pair. Each result is the exact value rounded once to
nearest; NaN results are the canonical 0x7fff.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from lowdnn.driver.emulated.values import approximate, floating
from lowdnn.driver.emulated.values.formats import decode, encode, f32_to_odd
from lowdnn.driver.emulated.values.packed import Lanes, by_element, elements, selected
from lowdnn.driver.emulated.values.rounding import add_to_odd

_SIGN = 0x8000
_SCALE = np.float32(2.0**8)
_MIN_NORMALS = {"f16": np.float32(2.0**-14), "bf16": np.float32(2.0**-126)}
_EXPONENTS = {"f16": np.uint16(0x7C00), "bf16": np.uint16(0x7F80)}
_BF16_MIDPOINT = np.uint32(0x8000)
_F32_MIN_NORMAL = np.float32(2.0**-126)


def arithmetic(
    operation: str, dtype: str, ftz: bool = False, saturate: bool = False, relu: bool = False
) -> Callable[..., Lanes]:
    """The function for ``operation`` on ``dtype`` (f16, f16x2, bf16, bf16x2): add, sub, mul, fma, ex2, tanh.

    ``ftz`` flushes subnormal operands and results, ``saturate`` clamps to [0, 1] with NaN as 0, ``relu`` clamps
    negative results to +0 and keeps NaN.
    """
    name = dtype.removesuffix("x2")
    exact = _OPERATIONS[operation]

    def on_bits(*operands: Lanes) -> Lanes:
        bits = [flush(operand, name) for operand in operands] if ftz else operands
        result = exact(name, *(decode(operand, name) for operand in bits))
        if saturate:
            result = floating.saturated(result)
        if relu:
            result = np.where(result <= 0, result.dtype.type(0), result)
        encoded = encode(result, name)
        return _flushed(encoded, result, name) if ftz else encoded

    return by_element(on_bits) if dtype.endswith("x2") else on_bits


def extremum(
    operation: str, dtype: str, ftz: bool = False, propagate_nan: bool = False, xorsign: bool = False
) -> Callable[[Lanes, Lanes], Lanes]:
    """``min`` and ``max`` with ``.ftz``, ``.NaN`` and ``.xorsign.abs``; the rules of `floating.minimum`."""
    name = dtype.removesuffix("x2")
    select = _EXTREMA[operation, xorsign]

    def on_bits(a: Lanes, b: Lanes) -> Lanes:
        if ftz:
            a, b = flush(a, name), flush(b, name)
        return encode(select(decode(a, name), decode(b, name), propagate_nan), name)

    return by_element(on_bits) if dtype.endswith("x2") else on_bits


def comparison(operation: str, dtype: str, ftz: bool = False) -> Callable[[Lanes, Lanes], Lanes]:
    """``setp`` on single elements, as bool; on a pair the result is [..., 2], element 0 first."""
    name = dtype.removesuffix("x2")
    compare = floating.comparison(operation)

    def on_bits(a: Lanes, b: Lanes) -> Lanes:
        if ftz:
            a, b = flush(a, name), flush(b, name)
        return compare(decode(a, name), decode(b, name))

    if dtype.endswith("x2"):
        return lambda a, b: on_bits(elements(a, np.uint16), elements(b, np.uint16))
    return on_bits


def _flushed(encoded: Lanes, exact: Lanes, name: str) -> Lanes:
    """``.ftz`` of a result by the rule of `floating.arithmetic`: rounding does not know of the smallest exponent."""
    rounded = decode(encode(exact * exact.dtype.type(_SCALE), name), name)
    return np.where(np.abs(rounded) < _MIN_NORMALS[name] * _SCALE, encoded & np.uint16(_SIGN), encoded)


def flusher(dtype: str) -> Callable[[Lanes], Lanes]:
    """The function of ``.ftz`` on bits of ``dtype`` (f16, f16x2, bf16, bf16x2)."""
    on_bits = partial(flush, name=dtype.removesuffix("x2"))
    return by_element(on_bits) if dtype.endswith("x2") else on_bits


def flush(bits: Lanes, name: str) -> Lanes:
    """``.ftz`` of the bits of single f16 or bf16: a zero exponent field leaves only the sign."""
    return np.where(bits & _EXPONENTS[name] == 0, bits & np.uint16(_SIGN), bits)


def absolute(bits: Lanes) -> Lanes:
    """``abs`` of bits of one element or a pair: the sign bits are cleared."""
    return bits & ~_sign_mask(bits)


def negated(bits: Lanes) -> Lanes:
    """``neg`` of bits of one element or a pair: the sign bits are flipped."""
    return bits ^ _sign_mask(bits)


def _sign_mask(bits: Lanes) -> Lanes:
    return np.uint16(_SIGN) if bits.dtype == np.uint16 else np.uint32(_SIGN << 16 | _SIGN)


def _add(name: str, a: Lanes, b: Lanes) -> Lanes:
    """float32 has the 2p + 2 bits that make a second rounding of a sum harmless."""
    return a + b


def _subtract(name: str, a: Lanes, b: Lanes) -> Lanes:
    return a - b


def _multiply(name: str, a: Lanes, b: Lanes) -> Lanes:
    """f16 products are exact in float32, and so are bf16 products but for subnormal ones."""
    product = a * b
    if name == "bf16" and np.count_nonzero((np.abs(product) < _F32_MIN_NORMAL) & (product != 0)):
        return f32_to_odd(a.astype(np.float64) * b)
    return product


def _fused(name: str, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The product is exact in float64, and the sum is as good as exact for f16.

    For bf16, where c may lie beyond the last bit of a large product, float32 sums that look like a midpoint of bf16
    neighbours are redone with rounding to odd.
    """
    total = a.astype(np.float64) * b + c
    if name == "f16":
        return total
    nearest = np.asarray(total.astype(np.float32))
    doubtful = nearest.view(np.uint32) & np.uint32(0xFFFF) == _BF16_MIDPOINT
    if np.count_nonzero(doubtful):
        a, b, c = selected(doubtful, a, b, c)
        nearest[doubtful] = f32_to_odd(add_to_odd(a.astype(np.float64) * b, c.astype(np.float64)))
    return nearest


_OPERATIONS: dict[str, Callable[..., Lanes]] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "fma": _fused,
    "ex2": lambda name, a: approximate.ex2(a),
    "tanh": lambda name, a: approximate.tanh(a),
}

_EXTREMA: dict[tuple[str, bool], Callable[[Lanes, Lanes, bool], Lanes]] = {
    ("min", False): floating.minimum,
    ("max", False): floating.maximum,
    ("min", True): floating.minimum_xorsign_abs,
    ("max", True): floating.maximum_xorsign_abs,
}
