"""f32 and f64 instructions through the machine, against rational arithmetic with one rounding."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.driver.emulated.instructions.lane_program import Lanes
from tests.driver.emulated.values.exact_rounding import F32, F64, Format, as_fraction, rounded

LANES = 64
KINDS: dict[str, tuple[type, Format]] = {"f32": (np.float32, F32), "f64": (np.float64, F64)}
EXACT: dict[str, Callable[..., Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
}


def numbers(rng: np.random.Generator, kind: str) -> np.ndarray:
    """Nonzero finite numbers near each other, some far apart."""
    dtype, form = KINDS[kind]
    significand = 1 + rng.integers(-300, 300, LANES) * 2.0 ** (1 - form.precision)
    exponent = rng.integers(-2, 3, LANES) * rng.choice([1, form.precision // 2], LANES)
    return (significand * 2.0**exponent * rng.choice([-1, 1], LANES)).astype(dtype)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("operation", list(EXACT))
def test_arithmetic(lanes: Lanes, rng: np.random.Generator, operation: str, rounding: str, kind: str) -> None:
    names = {"fma": "abc", "rcp": "a"}.get(operation, "ab")
    inputs = {f"%{name}": numbers(rng, kind) for name in names}
    (actual,) = lanes.run(f"{operation}.{rounding}.{kind} %d, {', '.join(inputs)};", inputs, {"%d": KINDS[kind][0]})
    rows = zip(*(values.tolist() for values in inputs.values()), strict=True)
    exact = [EXACT[operation](*map(as_fraction, row)) for row in rows]
    np.testing.assert_array_equal(actual, [rounded(value, KINDS[kind][1], rounding) for value in exact])


@pytest.mark.parametrize("kind", list(KINDS))
def test_sqrt_signs_and_copysign(lanes: Lanes, rng: np.random.Generator, kind: str) -> None:
    a, b = numbers(rng, kind), numbers(rng, kind)
    dtype = KINDS[kind][0]
    body = f"""
    abs.{kind} %m, %a; neg.{kind} %n, %a; copysign.{kind} %c, %a, %b;
    sqrt.rn.{kind} %s, %m; mov.{kind} %x, %a;
    """
    outputs = dict.fromkeys(("%m", "%n", "%c", "%s", "%x"), dtype)
    magnitude, negative, copied, root, same = lanes.run(body, {"%a": a, "%b": b}, outputs)
    np.testing.assert_array_equal(magnitude, np.abs(a))
    np.testing.assert_array_equal(negative, -a)
    np.testing.assert_array_equal(copied, np.copysign(b, a))
    np.testing.assert_array_equal(root, np.sqrt(np.abs(a)))
    np.testing.assert_array_equal(same, a)


def test_flush_and_saturation(lanes: Lanes) -> None:
    a = np.resize(np.array([1e-40, -1e-40, 0.75, -2.0, np.nan, 2.0**-126], np.float32), LANES)
    body = """
    add.ftz.f32 %d, %a, 0f00000000;
    mul.ftz.f32 %e, %a, 0f3F000000;
    add.sat.f32 %f, %a, %a;
    fma.rn.ftz.sat.f32 %g, %a, 0f3F800000, 0f3F000000;
    """
    added, halved, saturated, fused = lanes.run(body, {"%a": a}, {f"%{name}": np.float32 for name in "defg"})
    np.testing.assert_array_equal(added[:6], np.array([0, 0, 0.75, -2, np.nan, 2.0**-126], np.float32))
    np.testing.assert_array_equal(halved[:6], np.array([0, 0, 0.375, -1, np.nan, 0], np.float32))
    np.testing.assert_array_equal(np.signbit(halved[:2]), [False, True])
    np.testing.assert_array_equal(saturated[:6], np.array([2 * np.float32(1e-40), 0, 1, 0, 0, 2.0**-125]))
    np.testing.assert_array_equal(fused[:5], np.array([0.5, 0.5, 1, 0, 0], np.float32))


@pytest.mark.parametrize("kind", list(KINDS))
def test_extrema(lanes: Lanes, kind: str) -> None:
    dtype = KINDS[kind][0]
    a = np.resize(np.array([1, 0.0, -0.0, np.nan, np.nan, 5], dtype), LANES)
    b = np.resize(np.array([2, -0.0, 0.0, 7, np.nan, -3], dtype), LANES)
    body = f"min.{kind} %d, %a, %b; max.{kind} %e, %a, %b;"
    low, high = lanes.run(body, {"%a": a, "%b": b}, {"%d": dtype, "%e": dtype})
    np.testing.assert_array_equal(low[:6], [1, 0, 0, 7, np.nan, -3])
    np.testing.assert_array_equal(high[:6], [2, 0, 0, 7, np.nan, 5])
    np.testing.assert_array_equal(np.signbit(low[1:3]), [True, True])
    np.testing.assert_array_equal(np.signbit(high[1:3]), [False, False])


def test_extrema_of_f32_with_nan_and_sign_forms(lanes: Lanes) -> None:
    a = np.resize(np.array([1, np.nan, -4, 2], np.float32), LANES)
    b = np.resize(np.array([2, 7, 3, -5], np.float32), LANES)
    body = "max.NaN.f32 %d, %a, %b; min.xorsign.abs.f32 %e, %a, %b; max.ftz.f32 %f, %a, %b;"
    nan, signed, flushed = lanes.run(body, {"%a": a, "%b": b}, {f"%{name}": np.float32 for name in "def"})
    np.testing.assert_array_equal(nan[:4], [2, np.nan, 3, 2])
    assert nan.view(np.uint32)[1] == 0x7FFFFFFF
    np.testing.assert_array_equal(signed[:4], [1, 7, -3, -2])
    np.testing.assert_array_equal(flushed[:4], [2, 7, 3, 2])


def test_properties(lanes: Lanes) -> None:
    a = np.resize(np.array([0, 1e-40, 1, np.inf, np.nan], np.float32), LANES)
    names = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"]
    body = "\n".join(f"testp.{name}.f32 %{name}, %a;" for name in names)
    results = lanes.run(body, {"%a": a}, {f"%{name}": bool for name in names})
    truths = ["11100", "00010", "11110", "00001", "10100", "01000"]
    for name, actual, truth in zip(names, results, truths, strict=True):
        np.testing.assert_array_equal(actual[:5], [bit == "1" for bit in truth], err_msg=name)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
def test_approximate_functions(lanes: Lanes, rng: np.random.Generator, ftz: str) -> None:
    """Within the manual's error bounds, (relative, absolute); sin and cos between -2 pi and 2 pi."""
    a = rng.uniform(0.01, 6, LANES).astype(np.float32)
    x = a.astype(np.float64)
    exact = {
        "ex2": (np.exp2(x), 2.0**-22, 0),
        "lg2": (np.log2(x), 2.0**-22, 2.0**-22),
        "rcp": (1 / x, 2.0**-23, 0),
        "rsqrt": (x**-0.5, 2.0**-22.4, 0),
        "sqrt": (np.sqrt(x), 2.0**-22, 0),
        "sin": (np.sin(x), 0, 2.0**-20.5),
        "cos": (np.cos(x), 0, 2.0**-20.5),
        "tanh": (np.tanh(x), 2.0**-11, 0),
    }
    lines = [f"{name}.approx{'' if name == 'tanh' else ftz}.f32 %{name}, %a;" for name in exact]
    results = lanes.run("\n".join(lines), {"%a": a}, {f"%{name}": np.float32 for name in exact})
    for (name, (wanted, relative, absolute)), actual in zip(exact.items(), results, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=relative, atol=absolute, err_msg=name)


def test_approximate_divisions(lanes: Lanes, rng: np.random.Generator) -> None:
    """At most 2 units in the last place; 0 where the reciprocal of the divisor underflows."""
    a, b = (rng.uniform(0.5, 20, LANES).astype(np.float32) for _ in range(2))
    b[0] = 2.0**127
    body = "div.approx.f32 %d, %a, %b; div.full.f32 %e, %a, %b; div.approx.ftz.f32 %f, %a, %b;"
    approximate, full, flushed = lanes.run(body, {"%a": a, "%b": b}, {f"%{name}": np.float32 for name in "def"})
    assert approximate[0] == flushed[0] == 0
    for actual in (approximate[1:], full[1:], flushed[1:]):
        np.testing.assert_array_max_ulp(actual, (a / b)[1:], maxulp=2)


def test_seeds_of_f64(lanes: Lanes, rng: np.random.Generator) -> None:
    a = rng.uniform(0.5, 20, LANES)
    body = "rcp.approx.ftz.f64 %d, %a; rsqrt.approx.ftz.f64 %e, %a;"
    reciprocal, root = lanes.run(body, {"%a": a}, {"%d": np.float64, "%e": np.float64})
    np.testing.assert_allclose(reciprocal, 1 / a, rtol=2.0**-19)
    np.testing.assert_allclose(root, a**-0.5, rtol=2.0**-19)
