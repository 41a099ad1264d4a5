"""Every conversion against Python integers, rational rounding and ml_dtypes."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.values.convert import INTEGERS, converter, pack_saturated
from lowdnn.status import NotSupportedError
from tests.driver.emulated.values.exact_rounding import BF16, F16, F32, F64, Format, as_fraction, rounded

ALL_16 = np.arange(1 << 16, dtype=np.uint16)
TF32 = Format(11, -126, Fraction(2047) * Fraction(2) ** 117)
VIEWS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
TARGETS = {"f16": F16, "bf16": BF16}


def random_bits(rng: np.random.Generator, dtype: type, count: int = 400) -> np.ndarray:
    return rng.integers(0, 256, (count, np.dtype(dtype).itemsize), dtype=np.uint8).view(dtype)[:, 0]


def f32_values(rng: np.random.Generator) -> np.ndarray:
    """Random bits, values that 16- and 8-bit formats hold or lie between, and specials."""
    grid = (rng.integers(-64, 64, 400) * 2.0 ** rng.integers(-30, 12, 400)).astype(np.float32)
    subnormal = rng.integers(0, 1 << 23, 50).astype(np.uint32).view(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65520, 65519, 448, 464, 3.4e38, 1e-8], np.float32)
    return np.concatenate([random_bits(rng, np.float32), grid, subnormal, special])


def integer_values(rng: np.random.Generator, name: str) -> np.ndarray:
    kind = INTEGERS[name]
    limits = np.iinfo(kind)
    shift = rng.integers(0, limits.bits, 400).astype(kind)
    return np.concatenate([random_bits(rng, kind) >> shift, np.array([limits.min, limits.max, 0, 1], kind)])


@pytest.mark.parametrize("source", list(INTEGERS))
@pytest.mark.parametrize("target", list(INTEGERS))
def test_integer_to_integer(rng: np.random.Generator, source: str, target: str) -> None:
    values, kind = integer_values(rng, source), INTEGERS[target]
    limits = np.iinfo(kind)
    clamped = [min(max(value, limits.min), limits.max) for value in values.tolist()]
    np.testing.assert_array_equal(converter(source, target, saturate=True)(values), np.array(clamped, kind))
    cut = [value % (1 << limits.bits) for value in values.tolist()]
    np.testing.assert_array_equal(converter(source, target)(values), np.array(cut, f"u{limits.bits // 8}").view(kind))


@pytest.mark.parametrize("source", list(INTEGERS))
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("target", "form"), [("f32", F32), ("f64", F64), ("f16", F16), ("bf16", BF16)])
def test_integer_to_float(rng: np.random.Generator, source: str, target: str, form: Format, rounding: str) -> None:
    values = integer_values(rng, source)
    actual = converter(source, target, rounding)(values)
    actual = actual.view(VIEWS[target]).astype(np.float64) if target in VIEWS else actual
    np.testing.assert_array_equal(actual, [rounded(Fraction(value), form, rounding) for value in values.tolist()])


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", list(INTEGERS))
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_float_to_integer_clamps(rng: np.random.Generator, source: str, target: str, rounding: str) -> None:
    kind = INTEGERS[target]
    limits = np.iinfo(kind)
    near = np.array([limits.min, limits.max], np.float64)[:, None] * (1 + np.array([-(2.0**-20), 0, 2.0**-20]))
    halves = rng.integers(-600, 600, 200) / 2
    values = np.concatenate([near.ravel(), halves, random_bits(rng, np.float64), [np.inf, -np.inf, np.nan, 1e300]])
    bits, numbers = in_type(values, source)
    with_nan = 1 << (limits.bits - 1) if source == "f64" or limits.bits == 64 else 0
    whole = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[rounding]

    def reference(value: float) -> int:
        if math.isnan(value):
            return with_nan - (1 << limits.bits) if limits.min < 0 and with_nan else with_nan
        if math.isinf(value):
            return limits.max if value > 0 else limits.min
        return min(max(whole(as_fraction(value)), limits.min), limits.max)

    expected = np.array([reference(value) for value in numbers.tolist()], kind)
    np.testing.assert_array_equal(converter(source, target, rounding)(bits), expected)
    for place in range(7):
        assert converter(source, target, rounding)(bits[place]) == expected[place]


def in_type(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(what a register of type ``name`` holds, the numbers it stands for)."""
    if name in VIEWS:
        held = values.astype(np.float32).astype(VIEWS[name])
        return held.view(np.uint16), held.astype(np.float64)
    held = values.astype({"f32": np.float32, "f64": np.float64}[name])
    return held, held


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32"])
def test_narrowing(rng: np.random.Generator, source: str, target: str, rounding: str) -> None:
    values, form = f32_values(rng), {"f32": F32, **TARGETS}[target]
    if source == "f64":
        values = values.astype(np.float64) * (1 + rng.integers(-1, 2, values.size) * 2.0**-50)
    actual = converter(source, target, rounding)(values)
    if target in VIEWS:
        np.testing.assert_array_equal(actual[np.isnan(values)], np.uint16(0x7FFF))
        actual = actual.view(VIEWS[target]).astype(np.float64)
    finite = np.isfinite(values)
    expected = [rounded(as_fraction(value), form, rounding) for value in values[finite].tolist()]
    np.testing.assert_array_equal(actual[finite], expected)
    np.testing.assert_array_equal(actual[~finite], values[~finite])
    np.testing.assert_array_equal(np.signbit(actual[finite]), np.signbit(values[finite]))


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_widening_of_every_16_bit_value(source: str) -> None:
    numbers = ALL_16.view(VIEWS[source])
    np.testing.assert_array_equal(converter(source, "f32")(ALL_16), numbers.astype(np.float32))
    np.testing.assert_array_equal(converter(source, "f64")(ALL_16), numbers.astype(np.float64))


@pytest.mark.parametrize("rounding", ["rn", "rz", "rna"])
def test_tf32(rng: np.random.Generator, rounding: str) -> None:
    values = f32_values(rng)
    bits = converter("f32", "tf32", rounding)(values)
    assert not (bits[~np.isnan(values)] & np.uint32(0x1FFF)).any()
    finite = np.isfinite(values)
    expected = [rounded(as_fraction(value), TF32, rounding) for value in values[finite].tolist()]
    np.testing.assert_array_equal(bits.view(np.float32)[finite], expected)
    limit = converter("f32", "tf32", rounding, satfinite=True)(np.array([np.inf, -np.inf, 3.4028235e38], np.float32))
    np.testing.assert_array_equal(limit.view(np.float32), np.float32(2047 * 2.0**117) * np.array([1, -1, 1]))


def test_tf32_cuts_nan_without_rounding() -> None:
    """Bits that an H200 gives; those of all ones must not carry into the sign and beyond."""
    nans = np.array([0x7F800001, 0x7FC00000, 0xFF81301D, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    cut = [0x7F800000, 0x7FC00000, 0xFF812000, 0x7FFFE000, 0xFFFFE000]
    assert converter("f32", "tf32", "rna")(nans.view(np.float32)).tolist() == cut


@pytest.mark.parametrize("target", ["f16x2", "bf16x2"])
def test_pairs_put_the_first_operand_high(rng: np.random.Generator, target: str) -> None:
    upper, lower = f32_values(rng), f32_values(rng)
    single = converter("f32", target[:-2], "rn")
    packed = converter("f32", target, "rn")(upper, lower)
    np.testing.assert_array_equal(packed >> np.uint32(16), single(upper))
    np.testing.assert_array_equal(packed & np.uint32(0xFFFF), single(lower))
    clamped = converter("f32", target, "rn", relu=True)(np.float32(-2.0), np.array([-0.0, 1.0, np.nan], np.float32))
    np.testing.assert_array_equal(clamped, [0, single(np.float32(1)), 0x7FFF])
    limit = converter("f32", target, "rn", satfinite=True)(np.float32(np.inf), np.float32(-np.inf))
    assert limit == {"f16x2": 0x7BFFFBFF, "bf16x2": 0x7F7FFF7F}[target]


@pytest.mark.parametrize(("target", "kind"), [("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)])
def test_fp8_pairs(rng: np.random.Generator, target: str, kind: type) -> None:
    upper, lower = f32_values(rng), f32_values(rng)
    convert = converter("f32", target, "rn", satfinite=True)
    packed = convert(upper, lower)
    largest = float(ml_dtypes.finfo(kind).max)
    for bits, values in ((packed >> np.uint16(8), upper), (packed & np.uint16(0xFF), lower)):
        expected = np.clip(values, -largest, largest).astype(kind)
        number = ~np.isnan(values)
        np.testing.assert_array_equal(bits.astype(np.uint8)[number], expected.view(np.uint8)[number])
        np.testing.assert_array_equal(bits[~number], 0x7F)
    assert convert(np.float32(2), np.float32(-1)) == convert(np.full(1, 2, np.float32), np.full(1, -1, np.float32))[0]


@pytest.mark.parametrize(("source", "kind"), [("e4m3x2", ml_dtypes.float8_e4m3fn), ("e5m2x2", ml_dtypes.float8_e5m2)])
def test_fp8_pairs_and_f16_pairs_both_ways(source: str, kind: type) -> None:
    halves = converter(source, "f16x2", "rn")(ALL_16)
    numbers = ALL_16.view(np.uint8).view(kind).astype(np.float32)
    np.testing.assert_array_equal(halves.view(np.float16).astype(np.float32), numbers)
    back = converter("f16x2", source, "rn", satfinite=True)(halves).view(np.uint8)
    expected = np.where(np.isnan(numbers), 0x7F, ALL_16.view(np.uint8))
    largest = np.array(float(ml_dtypes.finfo(kind).max)).astype(kind).view(np.uint8)
    infinite = np.isinf(numbers)
    expected = np.where(infinite, largest | (ALL_16.view(np.uint8) & 0x80), expected)
    np.testing.assert_array_equal(back, expected)


def test_integral_rounding_in_place_and_flush() -> None:
    values = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, np.inf], np.float32)
    np.testing.assert_array_equal(converter("f32", "f32", "rni")(values), [-2, 0, 0, 2, 2, np.inf])
    np.testing.assert_array_equal(converter("f32", "f32", "rmi")(values), [-2, -1, 0, 1, 2, np.inf])
    np.testing.assert_array_equal(converter("f16", "f16", "rpi")(np.array([0x3C01], np.uint16)), [0x4000])
    tiny = np.array([1e-40, -1e-40], np.float32)
    assert (converter("f32", "s32", "rpi", ftz=True)(tiny) == 0).all()
    assert (converter("f32", "s32", "rpi")(tiny) == [1, 0]).all()
    np.testing.assert_array_equal(np.signbit(converter("f64", "f32", "rn", ftz=True)(tiny.astype(np.float64))), [0, 1])
    saturated = converter("f32", "f32", saturate=True)(np.array([-2.0, 0.5, 7.0, np.nan], np.float32))
    np.testing.assert_array_equal(saturated, [0, 0.5, 1, 0])


def test_pack_saturated() -> None:
    a, b = np.array([70000, -5, 300], np.int32), np.array([-70000, 7, -300], np.int32)
    np.testing.assert_array_equal(
        pack_saturated("s16", a, b), np.array([0x7FFF8000, 0xFFFB0007, 0x012CFED4], np.uint32)
    )
    np.testing.assert_array_equal(
        pack_saturated("u8", a, b, np.uint32(0xABCD)), np.array([0xABCDFF00, 0xABCD0007, 0xABCDFF00])
    )


def test_unknown_types_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="e3m2x2"):
        converter("f32", "e3m2x2", "rn")
