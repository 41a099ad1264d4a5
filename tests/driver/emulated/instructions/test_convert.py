"""Every family of cvt through the machine."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes
from tests.driver.emulated.values.exact_rounding import BF16, F16, F32, F64, as_fraction, rounded

LANES = 128
INTEGERS = {
    "u16": np.uint16,
    "s16": np.int16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
}
FLOATS = {"f32": (np.float32, F32), "f64": (np.float64, F64)}
HALVES = {"f16": (np.float16, F16), "bf16": (ml_dtypes.bfloat16, BF16)}
ROUNDINGS = ["rn", "rz", "rm", "rp"]


def integers(rng: np.random.Generator, kind: str) -> np.ndarray:
    dtype = INTEGERS[kind]
    bits = rng.integers(0, 256, (LANES, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[:, 0]
    return bits >> rng.integers(0, np.dtype(dtype).itemsize * 8, LANES).astype(dtype)


def reals(rng: np.random.Generator) -> np.ndarray:
    """f32 numbers of many magnitudes, halves, and the specials."""
    values = rng.uniform(-2, 2, LANES) * 2.0 ** rng.integers(-30, 40, LANES)
    values[::4] = rng.integers(-300, 300, LANES // 4) / 2
    values[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38]
    return values.astype(np.float32)


def wrapped(value: int, kind: str) -> int:
    bits = int(kind[1:])
    value %= 1 << bits
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


@pytest.mark.parametrize("source", list(INTEGERS))
@pytest.mark.parametrize("target", list(INTEGERS))
def test_between_integers(lanes: Lanes, rng: np.random.Generator, source: str, target: str) -> None:
    a, limits, given = integers(rng, source), np.iinfo(INTEGERS[target]), np.iinfo(INTEGERS[source])
    (cut,) = lanes.run(f"cvt.{target}.{source} %d, %a;", {"%a": a}, {"%d": INTEGERS[target]})
    np.testing.assert_array_equal(cut, np.array([wrapped(value, target) for value in a.tolist()], INTEGERS[target]))
    if limits.min <= given.min and given.max <= limits.max:
        return
    (clamped,) = lanes.run(f"cvt.sat.{target}.{source} %d, %a;", {"%a": a}, {"%d": INTEGERS[target]})
    expected = [min(max(value, limits.min), limits.max) for value in a.tolist()]
    np.testing.assert_array_equal(clamped, np.array(expected, INTEGERS[target]))


@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_bytes_in_wider_registers(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    """An 8-bit type takes the low byte of a register and extends its result to the register's width."""
    a = integers(rng, "s32")
    body = f"cvt.{kind}.s32 %d, %a; cvt.s32.{kind} %e, %a; cvt.sat.{kind}.s32 %f, %a; cvt.rn.f32.{kind} %g, %a;"
    outputs = {"%d": np.int32, "%e": np.int32, "%f": np.int32, "%g": np.float32}
    dtype = np.uint8 if kind == "u8" else np.int8
    limits = np.iinfo(dtype)
    cut = a.astype(dtype)
    expected = [cut.astype(np.int32), cut.astype(np.int32), np.clip(a, limits.min, limits.max), cut.astype(np.float32)]
    for name, actual, wanted in zip(outputs, lanes.run(body, {"%a": a}, outputs), expected, strict=True):
        np.testing.assert_array_equal(actual, wanted, err_msg=name)


@pytest.mark.parametrize("source", list(INTEGERS))
@pytest.mark.parametrize("target", list(FLOATS))
def test_integer_to_float(lanes: Lanes, rng: np.random.Generator, source: str, target: str) -> None:
    a = integers(rng, source)
    dtype, form = FLOATS[target]
    body = "\n".join(f"cvt.{rounding}.{target}.{source} %{rounding}, %a;" for rounding in ROUNDINGS)
    results = lanes.run(body, {"%a": a}, {f"%{rounding}": dtype for rounding in ROUNDINGS})
    for rounding, actual in zip(ROUNDINGS, results, strict=True):
        np.testing.assert_array_equal(actual, [rounded(Fraction(value), form, rounding) for value in a.tolist()])


@pytest.mark.parametrize("source", list(FLOATS))
@pytest.mark.parametrize("target", list(INTEGERS))
def test_float_to_integer(lanes: Lanes, rng: np.random.Generator, source: str, target: str) -> None:
    a = reals(rng).astype(FLOATS[source][0])
    limits = np.iinfo(INTEGERS[target])
    nan = wrapped(1 << (limits.bits - 1), target) if source == "f64" or limits.bits == 64 else 0
    modes = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    body = "\n".join(f"cvt.{mode}.{target}.{source} %{mode}, %a;" for mode in modes)
    results = lanes.run(body, {"%a": a}, {f"%{mode}": INTEGERS[target] for mode in modes})
    for whole, actual in zip(modes.values(), results, strict=True):
        expected = [
            nan
            if math.isnan(v)
            else int(min(max(v if math.isinf(v) else whole(as_fraction(v)), limits.min), limits.max))
            for v in a.tolist()
        ]
        np.testing.assert_array_equal(actual, np.array(expected, INTEGERS[target]))


def test_between_f32_and_f64(lanes: Lanes, rng: np.random.Generator) -> None:
    single = reals(rng)
    double = single.astype(np.float64) * (1 + 2.0**-40)
    body = "\n".join(f"cvt.{mode}.f32.f64 %{mode}, %b;" for mode in ROUNDINGS) + "cvt.f64.f32 %w, %a;"
    outputs = {f"%{mode}": np.float32 for mode in ROUNDINGS} | {"%w": np.float64}
    *narrowed, widened = lanes.run(body, {"%a": single, "%b": double}, outputs)
    np.testing.assert_array_equal(widened, single.astype(np.float64))
    finite = np.isfinite(double)
    for mode, actual in zip(ROUNDINGS, narrowed, strict=True):
        expected = [rounded(as_fraction(value), F32, mode) for value in double[finite].tolist()]
        np.testing.assert_array_equal(actual[finite], expected)


def test_integral_values_flush_and_saturation(lanes: Lanes) -> None:
    a = np.resize(np.array([-1.5, -0.5, 0.5, 2.5, 1e-40, np.nan], np.float32), LANES)
    body = """
    cvt.rni.f32.f32 %n, %a; cvt.rzi.f32.f32 %z, %a; cvt.rmi.f32.f32 %m, %a; cvt.rpi.f32.f32 %p, %a;
    cvt.rpi.ftz.f32.f32 %f, %a; cvt.sat.f32.f32 %s, %a;
    """
    expected = {
        "%n": [-2, 0, 0, 2, 0, np.nan],
        "%z": [-1, 0, 0, 2, 0, np.nan],
        "%m": [-2, -1, 0, 2, 0, np.nan],
        "%p": [-1, 0, 1, 3, 1, np.nan],
        "%f": [-1, 0, 1, 3, 0, np.nan],
        "%s": [0, 0, 0.5, 1, np.float32(1e-40), 0],
    }
    results = lanes.run(body, {"%a": a}, dict.fromkeys(expected, np.float32))
    for (name, wanted), actual in zip(expected.items(), results, strict=True):
        np.testing.assert_array_equal(actual[:6], wanted, err_msg=name)


@pytest.mark.parametrize("kind", list(HALVES))
def test_halves(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    dtype, form = HALVES[kind]
    a = reals(rng)
    body = f"cvt.rn.{kind}.f32 %n, %a; cvt.rz.{kind}.f32 %z, %a; cvt.f32.{kind} %w, %n; cvt.rni.s32.{kind} %i, %n;"
    outputs = {"%n": np.uint16, "%z": np.uint16, "%w": np.float32, "%i": np.int32}
    nearest, cut, widened, whole = lanes.run(body, {"%a": a}, outputs)
    finite = np.isfinite(a)
    for bits, mode in ((nearest, "rn"), (cut, "rz")):
        numbers = bits.view(dtype).astype(np.float64)
        np.testing.assert_array_equal(
            numbers[finite], [rounded(as_fraction(v), form, mode) for v in a[finite].tolist()]
        )
    np.testing.assert_array_equal(widened, nearest.view(dtype).astype(np.float32))
    inside = np.isfinite(widened) & (np.abs(widened) < 2**31)
    np.testing.assert_array_equal(whole[inside], np.rint(widened[inside]).astype(np.int32))
    assert nearest[np.isnan(a)].tolist() == [0x7FFF] * int(np.isnan(a).sum())


@pytest.mark.parametrize("kind", list(HALVES))
def test_pairs_of_halves(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    dtype = HALVES[kind][0]
    a, b = np.clip(reals(rng), -60000, 60000), np.clip(reals(rng), -60000, 60000)
    body = f"cvt.rn.{kind}x2.f32 %d, %a, %b; cvt.rn.relu.{kind}x2.f32 %e, %a, %b;"
    plain, clamped = lanes.run(body, {"%a": a, "%b": b}, {"%d": np.uint32, "%e": np.uint32})
    both = np.stack([b, a], axis=1).ravel()
    np.testing.assert_array_equal(plain.view(dtype).astype(np.float32), both.astype(dtype).astype(np.float32))
    positive = np.where(both > 0, both, np.where(np.isnan(both), both, 0))
    np.testing.assert_array_equal(clamped.view(dtype).astype(np.float32), positive.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2)])
def test_fp8_pairs(lanes: Lanes, rng: np.random.Generator, kind: str, dtype: type) -> None:
    a, b = (rng.uniform(-2, 2, LANES) * 2.0 ** rng.integers(-12, 12, LANES) for _ in range(2))
    inputs = {"%a": a.astype(np.float32), "%b": b.astype(np.float32)}
    body = f"""
    cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;
    cvt.rn.f16x2.{kind}x2 %e, %d;
    cvt.rn.satfinite.{kind}x2.f16x2 %f, %e;
    """
    packed, widened, again = lanes.run(body, inputs, {"%d": np.uint16, "%e": np.uint32, "%f": np.uint16})
    largest = float(ml_dtypes.finfo(dtype).max)
    both = np.clip(np.stack([inputs["%b"], inputs["%a"]], axis=1).ravel(), -largest, largest).astype(dtype)
    np.testing.assert_array_equal(packed.view(np.uint8), both.view(np.uint8))
    np.testing.assert_array_equal(widened.view(np.float16).astype(np.float32), both.astype(np.float32))
    np.testing.assert_array_equal(again, packed)


def test_tf32(lanes: Lanes, rng: np.random.Generator) -> None:
    a = np.where(np.isfinite(reals(rng)), reals(rng), 1).astype(np.float32)
    a[~np.isfinite(a)] = 1
    (bits,) = lanes.run("cvt.rna.tf32.f32 %d, %a;", {"%a": a}, {"%d": np.uint32})
    away = (a.view(np.uint32).astype(np.uint64) + np.uint64(0x1000)) & np.uint64(0xFFFFE000)
    np.testing.assert_array_equal(bits, away)


def test_packing_with_saturation(lanes: Lanes, rng: np.random.Generator) -> None:
    a, b = integers(rng, "s32"), integers(rng, "s32")
    c = integers(rng, "u32")
    body = "cvt.pack.sat.s16.s32 %d, %a, %b; cvt.pack.sat.u8.s32.b32 %e, %a, %b, %c;"
    words, quarters = lanes.run(body, {"%a": a, "%b": b, "%c": c}, {"%d": np.uint32, "%e": np.uint32})
    np.testing.assert_array_equal(words.view(np.int16).reshape(-1, 2), np.clip(np.stack([b, a], 1), -32768, 32767))
    np.testing.assert_array_equal(quarters & np.uint32(0xFF), np.clip(b, 0, 255))
    np.testing.assert_array_equal(quarters >> np.uint32(8) & np.uint32(0xFF), np.clip(a, 0, 255))
    np.testing.assert_array_equal(quarters >> np.uint32(16), c & np.uint32(0xFFFF))
