"""Integer instructions through the machine, one row for each form, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 64
TYPES = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "b32": np.uint32,
    "b64": np.uint64,
}


def random_operands(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Random bits of random magnitude, and the corners."""
    dtype = TYPES[kind]
    bits = rng.integers(0, 256, (LANES, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[:, 0]
    values = bits >> rng.integers(0, np.dtype(dtype).itemsize * 8, LANES).astype(dtype)
    limits = np.iinfo(dtype)
    values[:6] = [limits.min, limits.max, 0, 1, limits.max, limits.min]
    rng.shuffle(values)
    return values


def as_type(value: int, kind: str) -> int:
    """The number that the low bits of ``value`` stand for."""
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def clamp(value: int) -> int:
    return min(max(value, -(2**31)), 2**31 - 1)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def low_24(value: int, kind: str) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if kind == "s32" and value >> 23 else value


def check(
    lanes: Lanes,
    rng: np.random.Generator,
    line: str,
    kinds: str,
    target: str,
    reference: Callable[..., int],
    **given: np.ndarray,
) -> None:
    """``line`` on operands %a %b %c of ``kinds`` yields ``reference`` of their numbers in every lane."""
    names = kinds.split()
    inputs = {f"%{name}": random_operands(rng, kind) for name, kind in zip("abc", names, strict=False)}
    inputs |= {f"%{name}": values for name, values in given.items()}
    (actual,) = lanes.run(line, inputs, {"%d": TYPES[target]})
    rows = zip(*(values.tolist() for values in inputs.values()), strict=True)
    expected = np.array([as_type(reference(*row), target.replace("b", "u")) for row in rows], TYPES[target])
    np.testing.assert_array_equal(actual, expected, err_msg=line)


NORMAL = ["u16", "s16", "u32", "s32", "u64", "s64"]


@pytest.mark.parametrize("kind", NORMAL)
def test_two_operand_arithmetic(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    bits = int(kind[1:])
    both = f"{kind} {kind}"
    check(lanes, rng, f"add.{kind} %d, %a, %b;", both, kind, lambda a, b: a + b)
    check(lanes, rng, f"sub.{kind} %d, %a, %b;", both, kind, lambda a, b: a - b)
    check(lanes, rng, f"mul.lo.{kind} %d, %a, %b;", both, kind, lambda a, b: a * b)
    check(lanes, rng, f"mul.hi.{kind} %d, %a, %b;", both, kind, lambda a, b: a * b >> bits)
    check(lanes, rng, f"min.{kind} %d, %a, %b;", both, kind, min)
    check(lanes, rng, f"max.{kind} %d, %a, %b;", both, kind, max)


@pytest.mark.parametrize("kind", NORMAL)
def test_division(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    divisor = random_operands(rng, kind)
    divisor[divisor == 0] = 7
    check(lanes, rng, f"div.{kind} %d, %a, %b;", kind, kind, quotient, b=divisor)
    check(lanes, rng, f"rem.{kind} %d, %a, %b;", kind, kind, lambda a, b: a - quotient(a, b) * b, b=divisor)


@pytest.mark.parametrize("kind", NORMAL)
def test_three_operand_arithmetic(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    bits = int(kind[1:])
    triple = f"{kind} {kind} {kind}"
    check(lanes, rng, f"mad.lo.{kind} %d, %a, %b, %c;", triple, kind, lambda a, b, c: a * b + c)
    check(lanes, rng, f"mad.hi.{kind} %d, %a, %b, %c;", triple, kind, lambda a, b, c: (a * b >> bits) + c)
    check(lanes, rng, f"sad.{kind} %d, %a, %b, %c;", triple, kind, lambda a, b, c: c + abs(a - b))


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_wide_products(lanes: Lanes, rng: np.random.Generator, kind: str, wide: str) -> None:
    check(lanes, rng, f"mul.wide.{kind} %d, %a, %b;", f"{kind} {kind}", wide, lambda a, b: a * b)
    check(lanes, rng, f"mad.wide.{kind} %d, %a, %b, %c;", f"{kind} {kind} {wide}", wide, lambda a, b, c: a * b + c)


def test_saturation(lanes: Lanes, rng: np.random.Generator) -> None:
    check(lanes, rng, "add.sat.s32 %d, %a, %b;", "s32 s32", "s32", lambda a, b: clamp(a + b))
    check(lanes, rng, "sub.sat.s32 %d, %a, %b;", "s32 s32", "s32", lambda a, b: clamp(a - b))
    check(lanes, rng, "mad.hi.sat.s32 %d, %a, %b, %c;", "s32 s32 s32", "s32", lambda a, b, c: clamp((a * b >> 32) + c))


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_24_bit_products(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    def product(a: int, b: int) -> int:
        return low_24(a, kind) * low_24(b, kind)

    triple = f"{kind} {kind} {kind}"
    check(lanes, rng, f"mul24.lo.{kind} %d, %a, %b;", f"{kind} {kind}", kind, product)
    check(lanes, rng, f"mul24.hi.{kind} %d, %a, %b;", f"{kind} {kind}", kind, lambda a, b: product(a, b) >> 16)
    check(lanes, rng, f"mad24.lo.{kind} %d, %a, %b, %c;", triple, kind, lambda a, b, c: product(a, b) + c)
    check(lanes, rng, f"mad24.hi.{kind} %d, %a, %b, %c;", triple, kind, lambda a, b, c: (product(a, b) >> 16) + c)


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_signs(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    check(lanes, rng, f"abs.{kind} %d, %a;", kind, kind, abs)
    check(lanes, rng, f"neg.{kind} %d, %a;", kind, kind, lambda a: -a)


@pytest.mark.parametrize("kind", ["u32", "u64"])
def test_carry_chains(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    """Sums, differences and products of twice the width, in halves."""
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    a, b, c, d = (random_operands(rng, kind) for _ in range(4))
    inputs = {"%al": a, "%ah": b, "%bl": c, "%bh": d}
    outputs = {"%low": TYPES[kind], "%high": TYPES[kind]}
    rows = list(zip(*(values.tolist() for values in inputs.values()), strict=True))
    pairs = [(ah << bits | al, bh << bits | bl) for al, ah, bl, bh in rows]

    def halves(totals: list[int]) -> list[np.ndarray]:
        return [np.array([total >> shift & mask for total in totals], TYPES[kind]) for shift in (0, bits)]

    add = f"add.cc.{kind} %low, %al, %bl; addc.{kind} %high, %ah, %bh;"
    subtract = f"sub.cc.{kind} %low, %al, %bl; subc.{kind} %high, %ah, %bh;"
    multiply = f"mad.lo.cc.{kind} %low, %al, %bl, %ah; madc.hi.{kind} %high, %al, %bl, %bh;"
    np.testing.assert_array_equal(lanes.run(add, inputs, outputs), halves([x + y for x, y in pairs]))
    np.testing.assert_array_equal(lanes.run(subtract, inputs, outputs), halves([x - y for x, y in pairs]))
    products = [al * bl + ah + (bh << bits) for al, ah, bl, bh in rows]
    np.testing.assert_array_equal(lanes.run(multiply, inputs, outputs), halves(products))


def test_long_carry_chain(lanes: Lanes, rng: np.random.Generator) -> None:
    """The carry passes through instructions that both read and set it."""
    inputs = {f"%{name}": random_operands(rng, "u32") for name in ("a0", "a1", "a2", "b0", "b1", "b2")}
    body = "add.cc.u32 %d0, %a0, %b0; addc.cc.u32 %d1, %a1, %b1; addc.u32 %d2, %a2, %b2;"
    words = lanes.run(body, inputs, {"%d0": np.uint32, "%d1": np.uint32, "%d2": np.uint32})
    actual = sum(word.astype(object) << 32 * place for place, word in enumerate(words))
    a = sum(inputs[f"%a{place}"].astype(object) << 32 * place for place in range(3))
    b = sum(inputs[f"%b{place}"].astype(object) << 32 * place for place in range(3))
    np.testing.assert_array_equal(actual, (a + b) % (1 << 96))


@pytest.mark.parametrize("a_kind", ["u32", "s32"])
@pytest.mark.parametrize("b_kind", ["u32", "s32"])
def test_byte_dot_products(lanes: Lanes, rng: np.random.Generator, a_kind: str, b_kind: str) -> None:
    target = "u32" if (a_kind, b_kind) == ("u32", "u32") else "s32"

    def part(value: int, place: int, bits: int, kind: str) -> int:
        return as_type(value >> place * bits, f"{kind[0]}{bits}")

    def four(a: int, b: int, c: int) -> int:
        return c + sum(part(a, i, 8, a_kind) * part(b, i, 8, b_kind) for i in range(4))

    def two(a: int, b: int, c: int, first: int) -> int:
        return c + sum(part(a, i, 16, a_kind) * part(b, first + i, 8, b_kind) for i in range(2))

    triple = f"b32 b32 {target}"
    check(lanes, rng, f"dp4a.{a_kind}.{b_kind} %d, %a, %b, %c;", triple, target, four)
    check(lanes, rng, f"dp2a.lo.{a_kind}.{b_kind} %d, %a, %b, %c;", triple, target, lambda a, b, c: two(a, b, c, 0))
    check(lanes, rng, f"dp2a.hi.{a_kind}.{b_kind} %d, %a, %b, %c;", triple, target, lambda a, b, c: two(a, b, c, 2))


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
def test_packed_pairs(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    element = kind[:3]

    def by_half(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def pair(a: int, b: int) -> int:
            halves = [function(as_type(a >> s, element), as_type(b >> s, element)) & 0xFFFF for s in (0, 16)]
            return halves[1] << 16 | halves[0]

        return pair

    check(lanes, rng, f"add.{kind} %d, %a, %b;", "b32 b32", "b32", by_half(lambda a, b: a + b))
    check(lanes, rng, f"min.{kind} %d, %a, %b;", "b32 b32", "b32", by_half(min))
    check(lanes, rng, f"max.{kind} %d, %a, %b;", "b32 b32", "b32", by_half(max))
    if kind == "s16x2":
        check(lanes, rng, "min.s16x2.relu %d, %a, %b;", "b32 b32", "b32", by_half(lambda a, b: max(0, min(a, b))))


def test_relu_of_extrema(lanes: Lanes, rng: np.random.Generator) -> None:
    check(lanes, rng, "max.relu.s32 %d, %a, %b;", "s32 s32", "s32", lambda a, b: max(a, b, 0))
    check(lanes, rng, "min.relu.s32 %d, %a, %b;", "s32 s32", "s32", lambda a, b: max(min(a, b), 0))
