"""Comparisons, selections and moves through the machine."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes

LANES = 64
KINDS = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
}
ORDERED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}


def operands(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Values that are often equal, with NaN among the floats."""
    a, b = ((rng.integers(-3, 4, LANES)).astype(KINDS[kind]) for _ in range(2))
    if kind[0] == "f":
        a[::7], b[::5] = np.nan, np.nan
    return a, b


@pytest.mark.parametrize("kind", list(KINDS))
def test_setp(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    a, b = operands(rng, kind)
    tests = ORDERED | (UNSIGNED if kind[0] == "u" else {})
    body = "\n".join(f"setp.{name}.{kind} %{name}, %a, %b;" for name in tests)
    results = lanes.run(body, {"%a": a, "%b": b}, {f"%{name}": bool for name in tests})
    nan = (a != a) | (b != b)
    for (name, compare), actual in zip(tests.items(), results, strict=True):
        np.testing.assert_array_equal(actual, compare(a, b) & ~nan, err_msg=name)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_unordered_setp(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    a, b = operands(rng, kind)
    nan = np.isnan(a) | np.isnan(b)
    names = [f"{name}u" for name in ORDERED]
    body = "\n".join(f"setp.{name}.{kind} %{name}, %a, %b;" for name in [*names, "num", "nan"])
    results = lanes.run(body, {"%a": a, "%b": b}, {f"%{name}": bool for name in [*names, "num", "nan"]})
    expected = [compare(a, b) | nan for compare in ORDERED.values()]
    for actual, wanted in zip(results, [*expected, ~nan, nan], strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_setp_with_two_destinations_and_a_predicate(lanes: Lanes, rng: np.random.Generator) -> None:
    a, b = operands(rng, "s32")
    c = rng.random(LANES) < 0.5
    inputs = {"%a": a, "%b": b, "%c": c}
    for name, combine in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        body = f"setp.lt.{name}.s32 %p|%q, %a, %b, %c; setp.lt.{name}.s32 %r, %a, %b, !%c;"
        p, q, r = lanes.run(body, inputs, {"%p": bool, "%q": bool, "%r": bool})
        np.testing.assert_array_equal(p, combine(a < b, c))
        np.testing.assert_array_equal(q, combine(~(a < b), c))
        np.testing.assert_array_equal(r, combine(a < b, ~c))


def test_comparison_flushes_subnormals(lanes: Lanes) -> None:
    a = np.full(LANES, 1e-40, np.float32)
    body = "setp.eq.ftz.f32 %p, %a, 0f00000000; setp.eq.f32 %q, %a, 0f00000000;"
    flushed, kept = lanes.run(body, {"%a": a}, {"%p": bool, "%q": bool})
    assert flushed.all()
    assert not kept.any()


def test_set(lanes: Lanes, rng: np.random.Generator) -> None:
    a, b = operands(rng, "f32")
    body = "set.le.u32.f32 %d, %a, %b; set.le.f32.f32 %e, %a, %b; set.gt.s32.s32 %f, %x, %y;"
    x, y = operands(rng, "s32")
    inputs = {"%a": a, "%b": b, "%x": x, "%y": y}
    ones, real, whole = lanes.run(body, inputs, {"%d": np.uint32, "%e": np.float32, "%f": np.int32})
    np.testing.assert_array_equal(ones, np.where(a <= b, 0xFFFFFFFF, 0))
    np.testing.assert_array_equal(real, (a <= b).astype(np.float32))
    np.testing.assert_array_equal(whole, -(x > y).astype(np.int32))


@pytest.mark.parametrize(
    ("kind", "suffix"), [(np.uint16, "b16"), (np.uint32, "b32"), (np.float32, "f32"), (np.int64, "s64")]
)
def test_selp_and_slct(lanes: Lanes, rng: np.random.Generator, kind: type, suffix: str) -> None:
    a, b = (rng.integers(0, 100, LANES).astype(kind) for _ in range(2))
    p, c = rng.random(LANES) < 0.5, rng.integers(-2, 3, LANES).astype(np.int32)
    f = c.astype(np.float32)
    f[::9] = np.nan
    inputs = {"%a": a, "%b": b, "%p": p, "%c": c, "%f": f}
    body = f"selp.{suffix} %d, %a, %b, %p; slct.{suffix}.s32 %e, %a, %b, %c; slct.{suffix}.f32 %g, %a, %b, %f;"
    chosen, by_integer, by_float = lanes.run(body, inputs, {"%d": kind, "%e": kind, "%g": kind})
    np.testing.assert_array_equal(chosen, np.where(p, a, b))
    np.testing.assert_array_equal(by_integer, np.where(c >= 0, a, b))
    np.testing.assert_array_equal(by_float, np.where(f >= 0, a, b))


def test_packing_moves(lanes: Lanes, rng: np.random.Generator) -> None:
    a = rng.integers(0, 1 << 63, LANES, dtype=np.int64).view(np.uint64)
    body = """
    .reg .b16 %h<4>;
    mov.b64 {%l, %h}, %a;
    mov.b32 {%h0, %h1}, %l;
    mov.b32 %x, {%h1, %h0};
    mov.b64 %y, {%h, %l};
    mov.b32 {_, %h2}, %h;
    cvt.u32.u16 %z, %h2;
    """
    outputs = {"%l": np.uint32, "%h": np.uint32, "%x": np.uint32, "%y": np.uint64, "%z": np.uint32}
    low, high, swapped, turned, upper = lanes.run(body, {"%a": a}, outputs)
    halves = a.view(np.uint32).reshape(-1, 2)
    np.testing.assert_array_equal(low, halves[:, 0])
    np.testing.assert_array_equal(high, halves[:, 1])
    np.testing.assert_array_equal(swapped, halves[:, 0] >> 16 | halves[:, 0] << 16)
    np.testing.assert_array_equal(turned, a >> np.uint64(32) | a << np.uint64(32))
    np.testing.assert_array_equal(upper, halves[:, 1] >> 16)


def test_guarded_instructions_leave_other_lanes_alone(lanes: Lanes, rng: np.random.Generator) -> None:
    a = rng.integers(0, 100, LANES).astype(np.int32)
    body = """
    .reg .pred %p;
    mov.s32 %d, 7;
    setp.gt.s32 %p, %a, 50;
    @%p add.s32 %d, %a, 1;
    @!%p sub.s32 %d, %d, %a;
    """
    (actual,) = lanes.run(body, {"%a": a}, {"%d": np.int32})
    np.testing.assert_array_equal(actual, np.where(a > 50, a + 1, 7 - a))
