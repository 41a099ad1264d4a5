"""f16 and bf16 value functions against rational arithmetic with one rounding."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.values import half
from tests.driver.emulated.values.exact_rounding import BF16, F16, as_fraction, rounded

KINDS = {"f16": (np.float16, F16), "bf16": (ml_dtypes.bfloat16, BF16)}
EXACT: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "fma": lambda a, b, c: a * b + c,
}


def finite_bits(rng: np.random.Generator, name: str, count: int = 800) -> np.ndarray:
    """Random finite patterns, half of them near 1 so that sums cancel and midpoints occur."""
    bits = rng.integers(0, 1 << 16, count).astype(np.uint16)
    one = np.ones(1, KINDS[name][0]).view(np.uint16)[0]
    near = rng.integers(-40, 40, count).astype(np.int16).view(np.uint16) + one
    values = np.concatenate([bits, near, np.array([0, 0x8000, 1, 0x8001], np.uint16)])
    values = values[np.isfinite(values.view(KINDS[name][0]).astype(np.float32))]
    rng.shuffle(values)
    return values


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("operation", list(EXACT))
def test_single_rounding(rng: np.random.Generator, operation: str, name: str) -> None:
    kind, form = KINDS[name]
    operands = [finite_bits(rng, name) for _ in range(3 if operation == "fma" else 2)]
    size = min(map(len, operands)) & ~1
    operands = [bits[:size] for bits in operands]
    numbers = [bits.view(kind).astype(np.float64).tolist() for bits in operands]
    expected = [rounded(EXACT[operation](*map(as_fraction, row)), form, "rn") for row in zip(*numbers, strict=True)]
    actual = half.arithmetic(operation, name)(*operands)
    np.testing.assert_array_equal(actual.view(kind).astype(np.float64), expected)
    packed = half.arithmetic(operation, f"{name}x2")(*(bits.view(np.uint32) for bits in operands))
    np.testing.assert_array_equal(packed.view(np.uint16), actual)
    assert half.arithmetic(operation, name)(*(bits[0] for bits in operands)) == actual[0]
    mixed = half.arithmetic(operation, f"{name}x2")(
        operands[0].view(np.uint32)[0], *(b.view(np.uint32) for b in operands[1:])
    )
    assert mixed[0] == packed[0]


def test_bf16_fma_keeps_what_is_far_below_a_midpoint() -> None:
    midpoint = np.array([1 + 2.0**-4, 2.0**-60], np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    result = half.arithmetic("fma", "bf16")(midpoint[0], midpoint[0], midpoint[1])
    exact = Fraction(17, 16) ** 2 + Fraction(1, 2**60)
    assert float(np.array([result]).view(ml_dtypes.bfloat16)[0]) == rounded(exact, BF16, "rn")


def test_modifiers() -> None:
    one, two, minus, tiny, nan = (np.uint16(bits) for bits in (0x3C00, 0x4000, 0xBC00, 0x0001, 0x7E00))
    assert half.arithmetic("add", "f16", saturate=True)(one, two) == one
    assert half.arithmetic("mul", "f16", saturate=True)(nan, two) == 0
    assert half.arithmetic("fma", "f16", relu=True)(minus, two, tiny) == 0
    assert half.arithmetic("fma", "f16", relu=True)(nan, two, tiny) == 0x7FFF
    assert half.arithmetic("add", "f16", ftz=True)(tiny, tiny) == 0
    assert half.arithmetic("add", "f16")(tiny, tiny) == 2


@pytest.mark.parametrize("name", list(KINDS))
def test_extremum_comparison_and_signs(rng: np.random.Generator, name: str) -> None:
    kind = KINDS[name][0]
    a, b = (rng.integers(0, 1 << 16, 4000).astype(np.uint16) for _ in range(2))
    x, y = a.view(kind).astype(np.float32), b.view(kind).astype(np.float32)
    expected = np.fmax(x, y)
    actual = half.extremum("max", name)(a, b)
    np.testing.assert_array_equal(actual.view(kind).astype(np.float32), expected)
    np.testing.assert_array_equal(
        half.extremum("max", f"{name}x2")(a.view(np.uint32), b.view(np.uint32)).view(np.uint16), actual
    )
    propagated = half.extremum("min", name, propagate_nan=True)(a, b)
    np.testing.assert_array_equal(propagated == 0x7FFF, np.isnan(x) | np.isnan(y))
    assert half.extremum("min", name)(np.uint16(0), np.uint16(0x8000)) == 0x8000
    assert half.extremum("max", name, xorsign=True)(np.uint16(0x8000), np.uint16(0x3C00)) == 0xBC00
    np.testing.assert_array_equal(half.comparison("geu", name)(a, b), ~(x < y))
    pair = half.comparison("lt", f"{name}x2")(a.view(np.uint32), b.view(np.uint32))
    np.testing.assert_array_equal(pair.ravel(), x < y)
    np.testing.assert_array_equal(half.absolute(a.view(np.uint32)).view(np.uint16), a & np.uint16(0x7FFF))
    np.testing.assert_array_equal(half.negated(a), a ^ np.uint16(0x8000))


@pytest.mark.parametrize("name", list(KINDS))
def test_functions_round_the_f32_function(rng: np.random.Generator, name: str) -> None:
    bits = finite_bits(rng, name)
    numbers = bits.view(KINDS[name][0]).astype(np.float64)
    for operation, function in (("ex2", np.exp2), ("tanh", np.tanh)):
        actual = half.arithmetic(operation, name)(bits).view(KINDS[name][0])
        np.testing.assert_array_equal(actual, function(numbers).astype(np.float32).astype(KINDS[name][0]))
