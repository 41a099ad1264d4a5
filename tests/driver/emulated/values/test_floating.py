"""f32 and f64 value functions against rational arithmetic with one rounding."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from lowdnn.driver.emulated.values import floating
from tests.driver.emulated.values.exact_rounding import F32, F64, as_fraction, rounded

FORMATS = {"f32": (np.float32, np.uint32, F32), "f64": (np.float64, np.uint64, F64)}
EXACT: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
}
ROUNDINGS = ["rn", "rz", "rm", "rp"]


def finite_values(rng: np.random.Generator, dtype: str, count: int = 250) -> np.ndarray:
    """Finite numbers over the whole range, numbers near 1, small integers, subnormals, midpoint makers."""
    kind, bits, target = FORMATS[dtype]
    anywhere = rng.integers(0, 256, (count, np.dtype(kind).itemsize), dtype=np.uint8).view(kind)[:, 0]
    near_one = (1 + rng.integers(-8, 8, count) * 2.0 ** -(target.precision - 1)).astype(kind)
    integers = rng.integers(-9, 9, count).astype(kind)
    powers = np.ldexp(kind(1), rng.integers(-target.precision - 2, target.precision + 2, count).astype(np.int32))
    subnormal = rng.integers(0, 1 << 12, count).astype(bits).view(kind)
    values = np.concatenate([anywhere[np.isfinite(anywhere)], near_one, integers, powers, subnormal])
    rng.shuffle(values)
    return values


def same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[expected == 0]), np.signbit(expected[expected == 0]))


def test_fma_just_below_the_smallest_normal_number() -> None:
    """One bit is lost there: a tie of what was rounded before is not a tie of the exact sum."""
    rows = [
        ("-0x1.432f04e101c37p+40", "0x0.000000000083bp-1022", "0x0.00000000000bdp-1022", "-0x0.a63f3fd27e8c7p-1022"),
        ("0x1.0000000000001p+0", "0x0.e06b96a675b9fp-1022", "0x0.00000000009cdp-1022", "0x0.e06b96a67656dp-1022"),
    ]
    a, b, c, expected = (np.array([float.fromhex(text) for text in column]) for column in zip(*rows, strict=True))
    same_bits(floating.arithmetic("fma", "f64", "rn")(a, b, c), expected)


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("operation", list(EXACT))
def test_arithmetic_rounds_the_exact_result_once(
    rng: np.random.Generator, operation: str, rounding: str, dtype: str
) -> None:
    kind, _, target = FORMATS[dtype]
    arity = {"fma": 3, "rcp": 1}.get(operation, 2)
    operands = [finite_values(rng, dtype) for _ in range(arity)]
    size = min(map(len, operands))
    operands = [values[:size] for values in operands]
    if operation in ("div", "rcp"):
        operands[-1] = np.where(operands[-1] == 0, kind(3), operands[-1])
    actual = floating.arithmetic(operation, dtype, rounding)(*operands)
    exact = [EXACT[operation](*map(as_fraction, row)) for row in zip(*(v.tolist() for v in operands), strict=True)]
    expected = np.array([rounded(value, target, rounding) for value in exact], kind)
    assert actual.dtype == kind
    np.testing.assert_array_equal(actual, expected)
    first = floating.arithmetic(operation, dtype, rounding)(*(values[0] for values in operands))
    assert first.dtype == kind
    assert first == expected[0]


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_sqrt(rng: np.random.Generator, rounding: str, dtype: str) -> None:
    kind, _, target = FORMATS[dtype]
    values = np.abs(finite_values(rng, dtype))
    values = values[values > 0]
    expected = []
    for value in values.tolist():
        scaled = Fraction(value) * 4**1200
        root = math.isqrt(scaled.numerator // scaled.denominator)
        sticky = Fraction(1, 2) if root * root != scaled else Fraction(0)
        expected.append(rounded((root + sticky) / 2**1200, target, rounding))
    same_bits(floating.arithmetic("sqrt", dtype, rounding)(values), np.array(expected, kind))


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_exact_zeros_have_the_sign_of_the_mode(rounding: str, dtype: str) -> None:
    kind = FORMATS[dtype][0]
    a, b = np.array([1.5, 0.0, -0.0, -0.0], kind), np.array([-1.5, 0.0, 0.0, -0.0], kind)
    expected = np.array([-0.0, 0.0, -0.0, -0.0] if rounding == "rm" else [0.0, 0.0, 0.0, -0.0], kind)
    same_bits(floating.arithmetic("add", dtype, rounding)(a, b), expected)
    same_bits(floating.arithmetic("fma", dtype, rounding)(a, np.ones(4, kind), b), expected)
    product = floating.arithmetic("mul", dtype, rounding)(np.array([-0.0, 0.0], kind), np.array([3.0, 3.0], kind))
    same_bits(product, np.array([-0.0, 0.0], kind))


@pytest.mark.parametrize("dtype", list(FORMATS))
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_infinities_and_nan(rounding: str, dtype: str) -> None:
    kind = FORMATS[dtype][0]
    a = np.array([np.inf, np.inf, np.nan, 1.0, -np.inf], kind)
    b = np.array([1.0, -np.inf, 1.0, np.inf, 0.0], kind)
    for operation in ("add", "sub", "mul", "div"):
        expected = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[operation]
        np.testing.assert_array_equal(floating.arithmetic(operation, dtype, rounding)(a, b), expected)
    np.testing.assert_array_equal(floating.arithmetic("fma", dtype, rounding)(a, b, b), a * b + b)


def test_fma_f32_where_rounding_twice_fails() -> None:
    a = np.array([1 + 2.0**-12, 2.0**-75 * (1 + 2.0**-20), 1.0], np.float32)
    b = np.array([1 + 2.0**-12, 2.0**-75 * (1 + 2.0**-20), 1.0], np.float32)
    c = np.array([-(2.0**-80), 2.0**-127, 2.0**-24 + 2.0**-40], np.float32)
    exact = [as_fraction(x) * as_fraction(y) + as_fraction(z) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(floating.fma_f32(a, b, c), np.array([rounded(v, F32, "rn") for v in exact]))


def test_flush_to_zero_and_saturation() -> None:
    tiny = np.array([1e-40, -1e-40, 2.0**-126, np.nan, np.inf], np.float32)
    same_bits(floating.flush(tiny), np.array([0.0, -0.0, 2.0**-126, np.nan, np.inf], np.float32))
    product = floating.arithmetic("mul", "f32", "rn", ftz=True)(np.float32(2.0**-100), np.float32(2.0**-30))
    assert product == 0
    values = np.array([-1.0, -0.0, 0.25, 2.0, np.nan, -np.inf], np.float32)
    same_bits(floating.saturated(values), np.array([0.0, 0.0, 0.25, 1.0, 0.0, 0.0], np.float32))
    assert floating.arithmetic("add", "f32", saturate=True)(np.float32(0.75), np.float32(0.5)) == 1


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_minimum_and_maximum(dtype: str) -> None:
    kind, bits, _ = FORMATS[dtype]
    a = np.array([1.0, 0.0, -0.0, np.nan, np.nan, -np.inf, 2.0], kind)
    b = np.array([2.0, -0.0, 0.0, 1.0, np.nan, np.inf, 2.0], kind)
    nan = floating.CANONICAL_NAN[np.dtype(kind)]
    same_bits(floating.minimum(a, b), np.array([1.0, -0.0, -0.0, 1.0, nan, -np.inf, 2.0], kind))
    same_bits(floating.maximum(a, b), np.array([2.0, 0.0, 0.0, 1.0, nan, np.inf, 2.0], kind))
    propagated = floating.maximum(a, b, propagate_nan=True)
    np.testing.assert_array_equal(propagated.view(bits)[3:5], np.full(2, nan).view(bits))
    assert floating.minimum(b, a)[4].view(bits) == nan.view(bits)
    signed = floating.maximum_xorsign_abs(np.array([-3.0, 2.0], kind), np.array([1.0, 5.0], kind))
    same_bits(signed, np.array([-3.0, 5.0], kind))
    both_nan = floating.minimum_xorsign_abs(-kind(np.nan), kind(np.nan))
    assert both_nan.view(bits) == nan.view(bits)


def test_comparisons() -> None:
    a = np.array([1.0, 2.0, 2.0, np.nan, 1.0], np.float32)
    b = np.array([2.0, 2.0, 1.0, 1.0, np.nan], np.float32)
    ordered = {"eq": "01000", "ne": "10100", "lt": "10000", "le": "11000", "gt": "00100", "ge": "01100", "num": "11100"}
    unordered = {"equ": "01011", "neu": "10111", "ltu": "10011", "leu": "11011", "gtu": "00111", "geu": "01111"}
    for name, truth in (ordered | unordered | {"nan": "00011"}).items():
        np.testing.assert_array_equal(floating.comparison(name)(a, b), [bit == "1" for bit in truth], err_msg=name)


def test_properties() -> None:
    values = np.array([0.0, 1e-40, 1.0, np.inf, np.nan], np.float32)
    truths = {
        "finite": "11100",
        "infinite": "00010",
        "number": "11110",
        "notanumber": "00001",
        "normal": "10100",
        "subnormal": "01000",
    }
    for name, truth in truths.items():
        np.testing.assert_array_equal(floating.property_test(values, name), [bit == "1" for bit in truth], err_msg=name)
