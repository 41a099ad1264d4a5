"""Logic, shifts and bit fields through the machine, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 64
TYPES = {"16": np.uint16, "32": np.uint32, "64": np.uint64}


def words(rng: np.random.Generator, bits: int) -> np.ndarray:
    dtype = TYPES[str(bits)]
    values = rng.integers(0, 256, (LANES, bits // 8), dtype=np.uint8).view(dtype)[:, 0]
    values >>= rng.integers(0, bits, LANES).astype(dtype)
    values[:4] = [0, 1, np.iinfo(dtype).max, 1 << (bits - 1)]
    rng.shuffle(values)
    return values


def amounts(rng: np.random.Generator, top: int) -> np.ndarray:
    return rng.integers(0, top, LANES).astype(np.uint32)


def check(lanes: Lanes, line: str, inputs: dict[str, np.ndarray], bits: int, reference: Callable[..., int]) -> None:
    (actual,) = lanes.run(line, inputs, {"%d": TYPES[str(bits)]})
    rows = zip(*(values.tolist() for values in inputs.values()), strict=True)
    expected = np.array([reference(*row) % (1 << bits) for row in rows], TYPES[str(bits)])
    np.testing.assert_array_equal(actual, expected, err_msg=line)


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(lanes: Lanes, rng: np.random.Generator, bits: int) -> None:
    two = {"%a": words(rng, bits), "%b": words(rng, bits)}
    check(lanes, f"and.b{bits} %d, %a, %b;", two, bits, lambda a, b: a & b)
    check(lanes, f"or.b{bits} %d, %a, %b;", two, bits, lambda a, b: a | b)
    check(lanes, f"xor.b{bits} %d, %a, %b;", two, bits, lambda a, b: a ^ b)
    check(lanes, f"not.b{bits} %d, %a;", {"%a": two["%a"]}, bits, lambda a: ~a)
    check(lanes, f"cnot.b{bits} %d, %a;", {"%a": two["%a"]}, bits, lambda a: int(a == 0))


def test_predicate_logic(lanes: Lanes, rng: np.random.Generator) -> None:
    a, b = (rng.random(LANES) < 0.5 for _ in range(2))
    inputs = {"%p": a, "%q": b}
    outputs = {f"%r{place}": bool for place in range(4)}
    body = "and.pred %r0, %p, %q; or.pred %r1, %p, %q; xor.pred %r2, %p, %q; not.pred %r3, %p;"
    for actual, expected in zip(lanes.run(body, inputs, outputs), [a & b, a | b, a ^ b, ~a], strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts(lanes: Lanes, rng: np.random.Generator, bits: int) -> None:
    inputs = {"%a": words(rng, bits), "%n": amounts(rng, 80)}
    check(lanes, f"shl.b{bits} %d, %a, %n;", inputs, bits, lambda a, n: a << min(n, bits))
    check(lanes, f"shr.u{bits} %d, %a, %n;", inputs, bits, lambda a, n: a >> n)
    check(lanes, f"shr.s{bits} %d, %a, %n;", inputs, bits, lambda a, n: signed(a, bits) >> n)
    check(lanes, f"shl.b{bits} %d, %a, {bits + 3};", {"%a": inputs["%a"]}, bits, lambda a: 0)
    check(lanes, f"shr.s{bits} %d, %a, {bits + 3};", {"%a": inputs["%a"]}, bits, lambda a: signed(a, bits) >> bits)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shifts(lanes: Lanes, rng: np.random.Generator, mode: str) -> None:
    inputs = {"%a": words(rng, 32), "%b": words(rng, 32), "%n": amounts(rng, 70)}

    def amount(n: int) -> int:
        return min(n, 32) if mode == "clamp" else n % 32

    check(lanes, f"shf.l.{mode}.b32 %d, %a, %b, %n;", inputs, 32, lambda a, b, n: ((b << 32 | a) << amount(n)) >> 32)
    check(lanes, f"shf.r.{mode}.b32 %d, %a, %b, %n;", inputs, 32, lambda a, b, n: (b << 32 | a) >> amount(n))


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields(lanes: Lanes, rng: np.random.Generator, bits: int) -> None:
    inputs = {"%a": words(rng, bits), "%p": amounts(rng, bits), "%n": amounts(rng, bits)}

    def extract(a: int, start: int, length: int) -> int:
        return a >> start & ((1 << length) - 1)

    def extract_signed(a: int, start: int, length: int) -> int:
        if length == 0:
            return 0
        if start + length > bits:
            return signed(a, bits) >> start
        return signed(extract(a, start, length), length)

    def insert(a: int, b: int, start: int, length: int) -> int:
        mask = ((1 << length) - 1) << start
        return b & ~mask | a << start & mask

    check(lanes, f"bfe.u{bits} %d, %a, %p, %n;", inputs, bits, extract)
    check(lanes, f"bfe.s{bits} %d, %a, %p, %n;", inputs, bits, extract_signed)
    target = {"%a": inputs["%a"], "%b": words(rng, bits), "%p": inputs["%p"], "%n": inputs["%n"]}
    check(lanes, f"bfi.b{bits} %d, %a, %b, %p, %n;", target, bits, insert)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting(lanes: Lanes, rng: np.random.Generator, bits: int) -> None:
    a = {"%a": words(rng, bits)}
    check(lanes, f"popc.b{bits} %d, %a;", a, 32, int.bit_count)
    check(lanes, f"clz.b{bits} %d, %a;", a, 32, lambda v: bits - v.bit_length())
    check(lanes, f"bfind.u{bits} %d, %a;", a, 32, lambda v: v.bit_length() - 1)
    check(lanes, f"bfind.shiftamt.u{bits} %d, %a;", a, 32, lambda v: bits - v.bit_length() if v else -1)

    def top_signed(value: int) -> int:
        number = signed(value, bits)
        return (~number if number < 0 else number).bit_length() - 1

    check(lanes, f"bfind.s{bits} %d, %a;", a, 32, top_signed)
    check(lanes, f"brev.b{bits} %d, %a;", a, bits, lambda v: int(f"{v:0{bits}b}"[::-1], 2))


def test_masks_and_extension(lanes: Lanes, rng: np.random.Generator) -> None:
    inputs = {"%a": amounts(rng, 32), "%b": amounts(rng, 40)}
    check(lanes, "bmsk.clamp.b32 %d, %a, %b;", inputs, 32, lambda a, b: ((1 << b) - 1) << a)
    check(lanes, "bmsk.wrap.b32 %d, %a, %b;", inputs, 32, lambda a, b: ((1 << b % 32) - 1) << a)
    value = {"%a": words(rng, 32), "%b": amounts(rng, 40)}
    check(lanes, "szext.clamp.u32 %d, %a, %b;", value, 32, lambda a, b: a & ((1 << b) - 1))
    check(lanes, "szext.clamp.s32 %d, %a, %b;", value, 32, lambda a, b: signed(a & ((1 << b) - 1), b) if b else 0)


def test_permutes(lanes: Lanes, rng: np.random.Generator) -> None:
    def permute(a: int, b: int, selector: int) -> int:
        source, result = b << 32 | a, 0
        for place in range(4):
            nibble = selector >> 4 * place & 15
            byte = source >> 8 * (nibble & 7) & 255
            result |= (byte if nibble < 8 else 255 * (byte >> 7)) << 8 * place
        return result

    inputs = {"%a": words(rng, 32), "%b": words(rng, 32), "%c": words(rng, 32)}
    check(lanes, "prmt.b32 %d, %a, %b, %c;", inputs, 32, permute)
    two = {"%a": inputs["%a"], "%b": inputs["%b"]}
    for selector in (0x5410, 0x7632, 0x0123, 0xBA98, 0x4444):
        check(lanes, f"prmt.b32 %d, %a, %b, {selector};", two, 32, lambda a, b, s=selector: permute(a, b, s))
    check(lanes, "prmt.b32.f4e %d, %a, %b, %c;", inputs, 32, lambda a, b, c: (b << 32 | a) >> 8 * (c & 3))
    check(lanes, "prmt.b32.rc16 %d, %a, %b, %c;", inputs, 32, lambda a, b, c: (a >> 16 * (c & 1) & 0xFFFF) * 0x10001)


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0x3F, 0x80, 0xFF, 0x1B])
def test_lookup(lanes: Lanes, rng: np.random.Generator, table: int) -> None:
    inputs = {"%a": words(rng, 32), "%b": words(rng, 32), "%c": words(rng, 32)}

    def lookup(a: int, b: int, c: int) -> int:
        return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))

    check(lanes, f"lop3.b32 %d, %a, %b, %c, {table};", inputs, 32, lookup)


def test_find_nth_set(lanes: Lanes, rng: np.random.Generator) -> None:
    inputs = {"%a": words(rng, 32), "%p": amounts(rng, 32), "%n": amounts(rng, 5)}

    def nth(mask: int, base: int, count: int) -> int:
        positions = [place for place in range(base, 32) if mask >> place & 1]
        if count == 0:
            return base if mask >> base & 1 else -1
        return positions[count - 1] if len(positions) >= count else -1

    check(lanes, "fns.b32 %d, %a, %p, %n;", inputs, 32, nth)
