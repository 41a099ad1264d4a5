"""f64 arithmetic with one exact rounding, in every rounding mode (PTX ISA, "Floating Point Instructions").

A finite result is found as (nearest + error) * 2**exponent from operands scaled near 1, so that neither overflow nor
underflow disturbs the error term, and is then placed into the range of float64 with a single rounding.
"""

from __future__ import annotations

import numpy as np

from lowdnn.driver.emulated.values.packed import Lanes
from lowdnn.driver.emulated.values.rounding import (
    NEAREST,
    TOWARD_ZERO,
    add_to_odd,
    adjusted,
    exact_zero,
    two_product,
    two_sum,
)

_SMALLEST_NORMAL_EXPONENT = -1021
_SMALLEST_SUBNORMAL_EXPONENT = -1074
_FAR_APART = 300
#: From this magnitude to ``_HUGE``, products and sums of three numbers lose nothing to the range of float64.
_TINY = np.float64(2.0**-250)
_HUGE = np.float64(2.0**250)


def add(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``add.f64``: a + b."""
    return a + b if rounding == NEAREST else fma(a, np.ones_like(a), b, rounding)


def sub(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``sub.f64``: a - b."""
    return add(a, -b, rounding)


def mul(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``mul.f64``: a * b."""
    if rounding == NEAREST:
        return a * b
    product = a * b
    return fma(a, b, np.copysign(np.zeros_like(product), product), rounding)


def fma(a: Lanes, b: Lanes, c: Lanes, rounding: str = NEAREST) -> Lanes:
    """``fma.f64``: a * b + c with one rounding."""
    simple = a * b + c
    if rounding == NEAREST and all(map(_is_far_from_the_limits, (a, b, c))):
        total, _ = _exact_fma(a, b, c)
        return np.where(total == 0, simple, total)
    (a_part, a_exponent), (b_part, b_exponent), (c_part, c_exponent) = np.frexp(a), np.frexp(b), np.frexp(c)
    product_exponent = a_exponent + b_exponent
    # Beyond the clip one addend only decides the direction of rounding, so its exact distance does not matter.
    distance = np.clip(c_exponent - product_exponent, -_FAR_APART, _FAR_APART)
    no_product = (a_part == 0) | (b_part == 0)
    distance = np.where(no_product | (c_part == 0), np.int32(0), distance)
    exponent = np.where(no_product | (distance == _FAR_APART), c_exponent - distance, product_exponent)
    nearest, error = _exact_fma(a_part, b_part, np.ldexp(c_part, distance))
    placed = _placed(nearest, error, exponent, rounding)
    total = np.where(nearest == 0, exact_zero(a * b, c, rounding), placed)
    return np.where(np.isfinite(a) & np.isfinite(b) & np.isfinite(c), total, simple)


def div(a: Lanes, b: Lanes, rounding: str = NEAREST) -> Lanes:
    """``div.f64``: a / b."""
    simple = a / b
    if rounding == NEAREST:
        return simple
    (a_part, a_exponent), (b_part, b_exponent) = np.frexp(a), np.frexp(b)
    quotient = a_part / b_part
    product, product_error = two_product(quotient, b_part)
    error = ((a_part - product) - product_error) * b_part
    placed = _placed(quotient, error, a_exponent - b_exponent, rounding)
    return np.where(np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0), placed, simple)


def rcp(a: Lanes, rounding: str = NEAREST) -> Lanes:
    """``rcp.f64``: 1 / a."""
    return div(np.ones_like(a), a, rounding)


def sqrt(a: Lanes, rounding: str = NEAREST) -> Lanes:
    """``sqrt.f64``: the square root; NaN below zero, -0 for -0."""
    simple = np.sqrt(a)
    if rounding == NEAREST:
        return simple
    part, exponent = np.frexp(a)
    odd = exponent & np.int32(1)
    part = np.ldexp(part, odd)
    root = np.sqrt(part)
    square, square_error = two_product(root, root)
    error = (part - square) - square_error
    placed = _placed(root, error, (exponent - odd) >> np.int32(1), rounding)
    return np.where(np.isfinite(a) & (a > 0), placed, simple)


def _is_far_from_the_limits(value: Lanes) -> bool:
    magnitude = np.abs(value)
    fine = (magnitude < _HUGE) & ((magnitude > _TINY) | (magnitude == 0))
    return bool(np.count_nonzero(fine) == fine.size)


def _exact_fma(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """(v, e): v is a * b + c rounded to nearest, e has the sign of what is missing (Boldo and Melquiond, figure 5)."""
    product, product_error = two_product(a, b)
    partial, partial_error = two_sum(c, product_error)
    high, high_error = two_sum(product, partial)
    return two_sum(high, add_to_odd(partial_error, high_error))


def _placed(nearest: Lanes, error: Lanes, exponent: Lanes, rounding: str) -> Lanes:
    """(nearest + error) * 2**exponent rounded once into float64."""
    result = np.ldexp(adjusted(nearest, error, rounding), exponent)
    largest = np.copysign(np.float64(np.inf), nearest)
    result = np.where(np.isinf(result) & np.isfinite(nearest), adjusted(largest, -nearest, rounding), result)
    _, magnitude = np.frexp(adjusted(nearest, error, TOWARD_ZERO))
    subnormal = (magnitude + exponent < _SMALLEST_NORMAL_EXPONENT) & (nearest != 0)
    if not subnormal.any():
        return result
    return np.where(subnormal, _placed_subnormal(nearest, error, exponent, rounding), result)


def _placed_subnormal(nearest: Lanes, error: Lanes, exponent: Lanes, rounding: str) -> Lanes:
    """The rounded value where bits of ``nearest`` are lost: its error decides where the lost bits are 0 or just a
    half."""
    rounded = np.ldexp(nearest, exponent)
    lost = nearest - np.ldexp(rounded, -exponent)
    if rounding != NEAREST:
        return adjusted(rounded, np.where(lost == 0, error, lost), rounding)
    half = np.ldexp(np.float64(1), _SMALLEST_SUBNORMAL_EXPONENT - 1 - exponent)
    farther = (np.abs(lost) == half) & (np.sign(error) == np.sign(lost))
    return np.where(farther, np.nextafter(rounded, np.copysign(np.inf, lost)), rounded)
