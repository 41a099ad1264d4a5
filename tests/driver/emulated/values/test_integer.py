"""Integer value functions against Python's unbounded integers."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.values import integer

DTYPES = [np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64]


def operands(rng: np.random.Generator, dtype: type, count: int = 300) -> np.ndarray:
    """Random bits, mixed with the corners of the range and small values."""
    limits = np.iinfo(dtype)
    corners = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1], dtype)
    small = rng.integers(0, 20, count).astype(dtype)
    bits = rng.integers(0, 256, (count, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[:, 0]
    values = np.concatenate([bits, np.resize(corners, 60), small])
    rng.shuffle(values)
    return values


def wrapped(values: list[int], dtype: type) -> np.ndarray:
    bits = np.dtype(dtype).itemsize * 8
    unsigned = np.array([value % (1 << bits) for value in values], np.uint64)
    return unsigned.astype(f"u{bits // 8}").view(dtype)


def signed_division(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mul_hi_is_upper_half_of_whole_product(rng: np.random.Generator, dtype: type) -> None:
    a, b = operands(rng, dtype), operands(rng, dtype)
    bits = np.dtype(dtype).itemsize * 8
    expected = wrapped([x * y >> bits for x, y in zip(a.tolist(), b.tolist(), strict=True)], dtype)
    np.testing.assert_array_equal(integer.mul_hi(a, b), expected)
    assert integer.mul_hi(a[0], b[0]) == expected[0]


@pytest.mark.parametrize(
    ("dtype", "wide"), [(np.uint16, np.uint32), (np.int16, np.int32), (np.uint32, np.uint64), (np.int32, np.int64)]
)
def test_mul_wide(rng: np.random.Generator, dtype: type, wide: type) -> None:
    a, b = operands(rng, dtype), operands(rng, dtype)
    products = [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(integer.mul_wide(a, b), wrapped(products, wide))


@pytest.mark.parametrize("dtype", DTYPES)
def test_division_truncates(rng: np.random.Generator, dtype: type) -> None:
    a, b = operands(rng, dtype), operands(rng, dtype)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    quotient = wrapped([signed_division(x, y) if y else -1 for x, y in pairs], dtype)
    remainder = wrapped([x - signed_division(x, y) * y if y else x for x, y in pairs], dtype)
    np.testing.assert_array_equal(integer.div(a, b), quotient)
    np.testing.assert_array_equal(integer.rem(a, b), remainder)


def test_saturating_sums(rng: np.random.Generator) -> None:
    a, b, c = (operands(rng, np.int32) for _ in range(3))

    def clamp(value: int) -> int:
        return min(max(value, -(2**31)), 2**31 - 1)

    triples = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    np.testing.assert_array_equal(integer.add_sat(a, b), [clamp(x + y) for x, y, _ in triples])
    np.testing.assert_array_equal(integer.sub_sat(a, b), [clamp(x - y) for x, y, _ in triples])
    np.testing.assert_array_equal(integer.mad_hi_sat(a, b, c), [clamp((x * y >> 32) + z) for x, y, z in triples])


@pytest.mark.parametrize("dtype", [np.uint32, np.int32])
def test_mul24(rng: np.random.Generator, dtype: type) -> None:
    a, b = operands(rng, dtype), operands(rng, dtype)

    def low_24(value: int) -> int:
        value &= 0xFFFFFF
        return value - (1 << 24) if dtype is np.int32 and value >> 23 else value

    products = [low_24(x) * low_24(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(integer.mul24_lo(a, b), wrapped(products, dtype))
    np.testing.assert_array_equal(integer.mul24_hi(a, b), wrapped([p >> 16 for p in products], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_shifts_clamp_at_the_width(rng: np.random.Generator, dtype: type) -> None:
    a = operands(rng, dtype)
    bits = np.dtype(dtype).itemsize * 8
    amount = rng.choice(np.array([0, 1, bits - 1, bits, bits + 1, 64, 255, 256, 65536, 2**32 - 1], np.uint32), a.size)
    pairs = list(zip(a.tolist(), amount.tolist(), strict=True))
    left = wrapped([x << n if n < bits else 0 for x, n in pairs], dtype)
    np.testing.assert_array_equal(integer.shl(a, amount), left)
    np.testing.assert_array_equal(integer.shr(a, amount), wrapped([x >> min(n, 64) for x, n in pairs], dtype))
    assert integer.shl(a[0], amount[0]).dtype == dtype
    assert integer.shr(a[0], amount[0]).dtype == dtype


@pytest.mark.parametrize("wrap", [False, True])
def test_funnel_shifts(rng: np.random.Generator, wrap: bool) -> None:
    low, high = operands(rng, np.uint32), operands(rng, np.uint32)
    amount = rng.integers(0, 70, low.size).astype(np.uint32)
    shifts = [n % 32 if wrap else min(n, 32) for n in amount.tolist()]
    cases = list(zip(low.tolist(), high.tolist(), shifts, strict=True))
    left = [((hi << 32 | lo) << n >> 32) & 0xFFFFFFFF for lo, hi, n in cases]
    right = [((hi << 32 | lo) >> n) & 0xFFFFFFFF for lo, hi, n in cases]
    np.testing.assert_array_equal(integer.funnel_shift_left(low, high, amount, wrap), np.array(left, np.uint32))
    np.testing.assert_array_equal(integer.funnel_shift_right(low, high, amount, wrap), np.array(right, np.uint32))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_carry_chain(rng: np.random.Generator, dtype: type) -> None:
    a, b = operands(rng, dtype), operands(rng, dtype)
    carry = rng.integers(0, 2, a.size).astype(bool)
    bits = np.dtype(dtype).itemsize * 8
    cases = list(zip(a.tolist(), b.tolist(), carry.tolist(), strict=True))
    total, carry_out = integer.add_carry(a, b, carry)
    np.testing.assert_array_equal(total, wrapped([x + y + k for x, y, k in cases], dtype))
    np.testing.assert_array_equal(carry_out, [(x + y + k) >> bits for x, y, k in cases])
    difference, borrow_out = integer.sub_borrow(a, b, carry)
    np.testing.assert_array_equal(difference, wrapped([x - y - k for x, y, k in cases], dtype))
    np.testing.assert_array_equal(borrow_out, [x - y - k < 0 for x, y, k in cases])


@pytest.mark.parametrize("a_signed", [False, True])
@pytest.mark.parametrize("b_signed", [False, True])
def test_dot_products(rng: np.random.Generator, a_signed: bool, b_signed: bool) -> None:
    a, b, c = operands(rng, np.uint32), operands(rng, np.uint32), operands(rng, np.int32)
    a_bytes = a.view(np.int8 if a_signed else np.uint8).reshape(-1, 4).astype(np.int64)
    b_bytes = b.view(np.int8 if b_signed else np.uint8).reshape(-1, 4).astype(np.int64)
    a_halves = a.view(np.int16 if a_signed else np.uint16).reshape(-1, 2).astype(np.int64)
    expected = (c + (a_bytes * b_bytes).sum(1)).astype(np.int32)
    np.testing.assert_array_equal(integer.dp4a(a, b, c, a_signed, b_signed), expected)
    for high in (False, True):
        expected = (c + (a_halves * b_bytes[:, 2 * high : 2 * high + 2]).sum(1)).astype(np.int32)
        np.testing.assert_array_equal(integer.dp2a(a, b, c, a_signed, b_signed, high), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_of_absolute_difference(rng: np.random.Generator, dtype: type) -> None:
    a, b, c = (operands(rng, dtype) for _ in range(3))
    cases = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    np.testing.assert_array_equal(integer.sad(a, b, c), wrapped([z + abs(x - y) for x, y, z in cases], dtype))


def test_packed_16_bit_operations_accept_uniform_operands(rng: np.random.Generator) -> None:
    a, b = operands(rng, np.uint32), operands(rng, np.uint32)[0]
    a_halves, b_halves = a.view(np.int16).reshape(-1, 2), np.array([b]).view(np.int16)
    expected = np.maximum(np.minimum(a_halves, b_halves), 0).view(np.uint32)[:, 0]
    np.testing.assert_array_equal(integer.minimum_x2(a, b, signed=True, relu=True), expected)
    unsigned = np.maximum(a_halves.view(np.uint16), b_halves.view(np.uint16)).view(np.uint32)[:, 0]
    np.testing.assert_array_equal(integer.maximum_x2(a, b, signed=False), unsigned)
    assert integer.add_x2(np.uint32(0xFFFF0001), np.uint32(0x0001FFFF)) == 0
