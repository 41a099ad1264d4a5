"""Integer arithmetic, bit fields, logic and shifts. PTX ISA manual, "Integer Arithmetic Instructions" and following."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.calibration.case import Array, Case
from tests.calibration.inputs import random_bits
from tests.calibration.lanewise import Step, lanewise

_EDGES = (0, 1, 2, 3, 7, 0x7F, 0x80, 0xFF)
_KINDS = {"u16": 2, "s16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "b16": 2, "b32": 4, "b64": 8}
_LOP3_GROUP = 64


def cases() -> Iterator[Case]:
    for width in (2, 4, 8):
        yield _arithmetic(width)
        yield _one_operand(width)
        yield _shifts(width)
    yield _quotients(2)
    yield _quotients(4)
    yield _quotients(8)
    yield _narrow_products()
    yield _carries(4)
    yield _carries(8)
    yield _packed_halves()
    yield _funnel_shifts()
    yield _permutations()
    yield from (_bit_fields(width) for width in (4, 8))
    yield _bit_searches()
    yield _dot_products()
    yield from (_lookups(first) for first in range(0, 256, _LOP3_GROUP))


def _step(instruction: str, operands: str, kind: str) -> Step:
    return Step(instruction, f"{instruction} %d, {operands};", kind)


def _arithmetic(width: int) -> Case:
    bits = 8 * width
    steps = []
    for sign in "us":
        kind = f"{sign}{bits}"
        steps += [
            _step(f"{name}.{kind}", "%a, %b", f"u{bits}") for name in ("add", "sub", "min", "max", "mul.lo", "mul.hi")
        ]
        steps += [_step(f"{name}.{kind}", "%a, %b, %c", f"u{bits}") for name in ("mad.lo", "mad.hi", "sad")]
        if width < 8:
            steps.append(_step(f"mul.wide.{kind}", "%a, %b", f"u{2 * bits}"))
    if width == 4:
        steps += [_step(f"{name}.s32", "%a, %b", "u32") for name in ("add.sat", "sub.sat", "min.relu", "max.relu")]
        steps.append(_step("mad.hi.sat.s32", "%a, %b, %c", "u32"))
    return lanewise(f"arithmetic-{bits}", _triples(width), steps)


def _one_operand(width: int) -> Case:
    bits = 8 * width
    steps = [_step(f"{name}.s{bits}", "%a", f"u{bits}") for name in ("abs", "neg")]
    steps += [_step(f"{name}.b{bits}", "%a", f"u{bits}") for name in ("not", "cnot")]
    steps += [_step(f"{name}.b{bits}", "%a, %b", f"u{bits}") for name in ("and", "or", "xor")]
    if width > 2:
        steps += [_step(f"{name}.b{bits}", "%a", "u32") for name in ("popc", "clz")]
        steps.append(_step(f"brev.b{bits}", "%a", f"u{bits}"))
        steps += [_step(f"bfind{shift}.{sign}{bits}", "%a", "u32") for sign in "us" for shift in ("", ".shiftamt")]
    return lanewise(f"unary-{bits}", _triples(width), steps)


def _shifts(width: int) -> Case:
    bits = 8 * width
    forms = (f"shl.b{bits}", f"shr.u{bits}", f"shr.s{bits}")
    return lanewise(
        f"shifts-{bits}", {"a": _repeated(width), "n": _amounts()}, [_step(f, "%a, %n", f"u{bits}") for f in forms]
    )


def _quotients(width: int) -> Case:
    """Divisors other than zero: division by zero has no defined value. Nor has the least number over -1."""
    bits = 8 * width
    values = _triples(width)
    divisor = np.where(values["b"] == 0, values["b"].dtype.type(3), values["b"])
    least = values["a"].dtype.type(1 << (bits - 1))
    dividend = np.where((values["a"] == least) & (divisor == ~least.dtype.type(0)), least.dtype.type(5), values["a"])
    steps = [_step(f"{name}.{sign}{bits}", "%a, %b", f"u{bits}") for name in ("div", "rem") for sign in "us"]
    return lanewise(f"quotients-{bits}", {"a": dividend, "b": divisor}, steps)


def _narrow_products() -> Case:
    steps = [_step(f"mul24.{part}.{kind}", "%a, %b", "u32") for part in ("lo", "hi") for kind in ("u32", "s32")]
    steps += [_step(f"mad24.{part}.{kind}", "%a, %b, %c", "u32") for part in ("lo", "hi") for kind in ("u32", "s32")]
    return lanewise("products-24", _triples(4), [*steps, _step("mad24.hi.sat.s32", "%a, %b, %c", "u32")])


def _carries(width: int) -> Case:
    """Each chain adds or subtracts once to set the carry, and stores what the next instruction makes of it."""
    bits = 8 * width
    kind = f"u{bits}"
    scratch = f".reg .b{bits} %t;\n"
    chains = {
        "addc": f"add.cc.{kind} %t, %a, %b;\naddc.{kind} %d, %c, %a;",
        "addc.cc": f"add.cc.{kind} %t, %a, %b;\naddc.cc.{kind} %t, %t, %c;\naddc.{kind} %d, %t, 0;",
        "subc": f"sub.cc.{kind} %t, %a, %b;\nsubc.{kind} %d, %c, %a;",
        "subc.cc": f"sub.cc.{kind} %t, %a, %b;\nsubc.cc.{kind} %t, %t, %c;\nsubc.{kind} %d, %t, 0;",
        "mad.lo.cc": f"mad.lo.cc.{kind} %t, %a, %b, %c;\nmadc.hi.{kind} %d, %a, %b, 0;",
        "mad.hi.cc": f"mad.hi.cc.{kind} %t, %a, %b, %c;\naddc.{kind} %d, %t, 0;",
        "madc.lo.cc": f"add.cc.{kind} %t, %a, %b;\nmadc.lo.cc.{kind} %t, %b, %c, %a;\naddc.{kind} %d, %t, 0;",
    }
    return lanewise(
        f"carries-{bits}",
        _triples(width),
        [Step(f"{name}.{kind}", scratch + text, kind) for name, text in chains.items()],
    )


def _packed_halves() -> Case:
    forms = ["add.u16x2", "add.s16x2"]
    forms += [f"{name}{relu}" for name in ("min", "max") for relu in (".u16x2", ".s16x2", ".relu.s16x2")]
    return lanewise("packed-16x2", _triples(4), [_step(form, "%a, %b", "u32") for form in forms])


def _funnel_shifts() -> Case:
    values = {"a": _repeated(4), "b": _repeated(4)[::-1].copy(), "n": _amounts()}
    steps = [_step(f"shf.{side}.{mode}.b32", "%a, %b, %n", "u32") for side in "lr" for mode in ("clamp", "wrap")]
    steps += [_step(f"szext.{mode}.{kind}", "%a, %n", "u32") for mode in ("clamp", "wrap") for kind in ("u32", "s32")]
    steps += [_step(f"bmsk.{mode}.b32", "%n, %m", "u32") for mode in ("clamp", "wrap")]
    return lanewise("funnel-shifts", values | {"m": np.roll(_amounts(), 11)}, steps)


def _permutations() -> Case:
    """prmt with every selector, of which the low 16 bits count; the special modes look at two bits."""
    count = 1 << 16
    selector = np.arange(count, dtype=np.uint32) | random_bits("selector", count, 4) << np.uint32(16)
    values = {"a": np.full(count, 0x83C1_7F02, np.uint32), "b": np.full(count, 0x04F5_9607, np.uint32), "c": selector}
    modes = ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    return lanewise("permutations", values, [_step(f"prmt.b32{mode}", "%a, %b, %c", "u32") for mode in modes])


def _bit_fields(width: int) -> Case:
    bits = 8 * width
    position, length = np.meshgrid(np.arange(0, 260, 4 if width == 4 else 9), np.arange(0, 260, 5), indexing="ij")
    count = position.size
    values = {
        "a": random_bits(f"bfe{bits}", count, width),
        "b": random_bits(f"bfi{bits}", count, width),
        "m": position.reshape(-1).astype(np.uint32),
        "n": length.reshape(-1).astype(np.uint32),
    }
    steps = [_step(f"bfe.{sign}{bits}", "%a, %m, %n", f"u{bits}") for sign in "us"]
    return lanewise(f"bit-fields-{bits}", values, [*steps, _step(f"bfi.b{bits}", "%a, %b, %m, %n", f"u{bits}")])


def _bit_searches() -> Case:
    """fns from every position of a base within the word, for offsets of both signs."""
    base, offset = np.meshgrid(np.arange(32, dtype=np.uint32), np.arange(-6, 7), indexing="ij")
    count = base.size
    values = {
        "a": random_bits("fns", count, 4),
        "b": base.reshape(-1),
        "c": offset.reshape(-1).astype(np.int32).view("u4"),
    }
    return lanewise("searches", values, [_step("fns.b32", "%a, %b, %c", "u32")])


def _dot_products() -> Case:
    kinds = [f"{a}.{b}" for a in ("u32", "s32") for b in ("u32", "s32")]
    steps = [_step(f"dp4a.{kind}", "%a, %b, %c", "u32") for kind in kinds]
    steps += [_step(f"dp2a.{half}.{kind}", "%a, %b, %c", "u32") for half in ("lo", "hi") for kind in kinds]
    return lanewise("dot-products", _triples(4), steps)


def _lookups(first: int) -> Case:
    """lop3 with immediate tables: eight lanes show all of a table, the rest is random."""
    values = _triples(4)
    kept = {name: np.concatenate([np.array([pattern], np.uint32), one[:31]]) for (name, one), pattern in
            zip(values.items(), (0xF0F0F0F0, 0xCCCCCCCC, 0xAAAAAAAA), strict=True)}  # fmt: skip
    steps = [
        Step(f"lop3.b32 {table:#04x}", f"lop3.b32 %d, %a, %b, %c, {table};", "u32")
        for table in range(first, first + _LOP3_GROUP)
    ]
    return lanewise(f"lookups-{first}", kept, steps)


def _triples(width: int) -> dict[str, Array]:
    """All pairs of edge values and random ones, with a random third operand."""
    bits = 8 * width
    low = np.array(_EDGES, np.uint64)
    edges = np.unique(
        np.concatenate([low, ~low, np.uint64(1 << (bits - 1)) + low, np.uint64(1 << (bits - 1)) - low]).astype(
            f"u{width}"
        )
    )
    a, b = (one.reshape(-1) for one in np.meshgrid(edges, edges, indexing="ij"))
    a, b = (np.concatenate([one, random_bits(f"{name}{bits}", 512, width)]) for name, one in (("a", a), ("b", b)))
    return {"a": a, "b": b, "c": random_bits(f"c{bits}", len(a), width)}


def _repeated(width: int) -> Array:
    return random_bits(f"shifted{width}", 4 * 80, width)


def _amounts() -> Array:
    """0 to 75, and numbers whose low bits alone would be small."""
    return np.tile(np.concatenate([np.arange(76), [256, 288, 1 << 31, (1 << 32) - 1]]), 4).astype(np.uint32)
