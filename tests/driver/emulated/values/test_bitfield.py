"""Bit-level value functions against bit-by-bit Python."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.values import bitfield

BITS = {np.uint32: 32, np.int32: 32, np.uint64: 64, np.int64: 64}


def random_words(rng: np.random.Generator, dtype: type, count: int = 300) -> np.ndarray:
    words = rng.integers(0, 256, (count, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[:, 0]
    shift = rng.integers(0, BITS[dtype], count).astype(dtype)
    return np.concatenate([words, words >> shift, np.array([0, 1], dtype), ~np.array([0, 1], dtype)])


@pytest.mark.parametrize("dtype", list(BITS))
def test_bit_field_extract(rng: np.random.Generator, dtype: type) -> None:
    a = random_words(rng, dtype)
    position = rng.integers(0, 80, a.size).astype(np.uint32) + np.uint32(256)
    length = rng.integers(0, 80, a.size).astype(np.uint32)

    def reference(value: int, start: int, count: int) -> int:
        top = BITS[dtype] - 1
        signed = np.dtype(dtype).kind == "i"
        fill = value >> min(start + count - 1, top) & 1 if signed and count else 0
        bits = [value >> start + i & 1 if i < count and start + i <= top else fill for i in range(top + 1)]
        return sum(bit << i for i, bit in enumerate(bits)) - ((bits[top] << top + 1) if signed else 0)

    cases = zip(a.tolist(), position.tolist(), length.tolist(), strict=True)
    expected = [reference(x, p - 256, n) for x, p, n in cases]
    np.testing.assert_array_equal(bitfield.bit_field_extract(a, position, length), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_bit_field_insert(rng: np.random.Generator, dtype: type) -> None:
    a, b = random_words(rng, dtype), random_words(rng, dtype)
    position = rng.integers(0, 80, a.size).astype(np.uint32)
    length = rng.integers(0, 80, a.size).astype(np.uint32)
    expected = []
    for value, base, start, count in zip(a.tolist(), b.tolist(), position.tolist(), length.tolist(), strict=True):
        for i in range(min(count, BITS[dtype] - start)):
            base = base & ~(1 << start + i) | (value >> i & 1) << start + i
        expected.append(base)
    np.testing.assert_array_equal(bitfield.bit_field_insert(a, b, position, length), np.array(expected, dtype))


@pytest.mark.parametrize("dtype", list(BITS))
def test_counting(rng: np.random.Generator, dtype: type) -> None:
    a, bits = random_words(rng, dtype), BITS[dtype]
    patterns = [value % (1 << bits) for value in a.tolist()]
    np.testing.assert_array_equal(bitfield.population_count(a), [value.bit_count() for value in patterns])
    np.testing.assert_array_equal(bitfield.count_leading_zeros(a), [bits - value.bit_length() for value in patterns])
    magnitudes = [~value if value < 0 else value for value in a.tolist()]
    top = np.array([value.bit_length() - 1 for value in magnitudes], np.int64)
    np.testing.assert_array_equal(bitfield.find_leading_bit(a), top.astype(np.uint32))
    shift = np.where(top < 0, -1, bits - 1 - top).astype(np.uint32)
    np.testing.assert_array_equal(bitfield.find_leading_bit(a, shift_amount=True), shift)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_reverse_bits(rng: np.random.Generator, dtype: type) -> None:
    a = random_words(rng, dtype)
    expected = [int(f"{value:0{BITS[dtype]}b}"[::-1], 2) for value in a.tolist()]
    np.testing.assert_array_equal(bitfield.reverse_bits(a), np.array(expected, dtype))


def test_find_nth_set(rng: np.random.Generator) -> None:
    mask = random_words(rng, np.uint32)
    base = rng.integers(0, 32, mask.size).astype(np.uint32)
    offset = rng.integers(-6, 7, mask.size).astype(np.int32)

    def reference(bits: int, start: int, count: int) -> int:
        if count == 0:
            return start if bits >> start & 1 else 0xFFFFFFFF
        positions = range(start, 32) if count > 0 else range(start, -1, -1)
        hits = [position for position in positions if bits >> position & 1]
        return hits[abs(count) - 1] if len(hits) >= abs(count) else 0xFFFFFFFF

    expected = [reference(*case) for case in zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)]
    np.testing.assert_array_equal(bitfield.find_nth_set(mask, base, offset), np.array(expected, np.uint32))
    assert bitfield.find_nth_set(mask[0], base[0], offset[0]) == expected[0]


@pytest.mark.parametrize("wrap", [False, True])
def test_extend_and_mask(rng: np.random.Generator, wrap: bool) -> None:
    a = random_words(rng, np.int32)
    bits = rng.integers(0, 40, a.size).astype(np.uint32)
    start = rng.integers(0, 40, a.size).astype(np.uint32)
    kept = [n % 32 if wrap else min(n, 32) for n in bits.tolist()]
    low = [value & ((1 << n) - 1) for value, n in zip(a.tolist(), kept, strict=True)]
    signed = [v - (1 << n) if n and v >> (n - 1) else v for v, n in zip(low, kept, strict=True)]
    np.testing.assert_array_equal(bitfield.sign_or_zero_extend(a, bits, wrap), np.array(signed, np.int32))
    np.testing.assert_array_equal(bitfield.sign_or_zero_extend(a.view(np.uint32), bits, wrap), np.array(low, np.uint32))
    first = [s % 32 if wrap else s for s in start.tolist()]
    mask = [((1 << n) - 1 << s) & 0xFFFFFFFF for n, s in zip(kept, first, strict=True)]
    np.testing.assert_array_equal(bitfield.bit_mask(start, bits, wrap), np.array(mask, np.uint32))


def test_permute_bytes_default_mode(rng: np.random.Generator) -> None:
    a, b, selector = (random_words(rng, np.uint32) for _ in range(3))

    def reference(x: int, y: int, control: int) -> int:
        source, result = y << 32 | x, 0
        for i in range(4):
            nibble = control >> 4 * i & 15
            byte = source >> 8 * (nibble & 7) & 255
            result |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * i
        return result

    expected = [reference(*case) for case in zip(a.tolist(), b.tolist(), selector.tolist(), strict=True)]
    np.testing.assert_array_equal(bitfield.permute_bytes(a, b, selector), np.array(expected, np.uint32))
    np.testing.assert_array_equal(
        bitfield.permute_bytes(a, b, np.uint32(0x5410)), (a & np.uint32(0xFFFF)) | (b << np.uint32(16))
    )


@pytest.mark.parametrize(
    ("mode", "control", "expected"),
    [
        ("f4e", 1, 0x44332211),
        ("f4e", 3, 0x66554433),
        ("b4e", 0, 0x55667700),
        ("b4e", 3, 0x00112233),
        ("rc8", 2, 0x22222222),
        ("ecl", 1, 0x33221111),
        ("ecr", 1, 0x11111100),
        ("rc16", 1, 0x33223322),
        ("rc16", 6, 0x11001100),
    ],
)
def test_permute_bytes_special_modes(mode: str, control: int, expected: int) -> None:
    a, b = np.uint32(0x33221100), np.uint32(0x77665544)
    assert bitfield.permute_bytes(a, b, np.uint32(control), mode) == expected


def test_lookup_3_on_every_table() -> None:
    a, b, c = np.uint32(0xF0), np.uint32(0xCC), np.uint32(0xAA)
    for table in range(256):
        assert bitfield.lookup_3(a, b, c, table) & np.uint32(0xFF) == table
