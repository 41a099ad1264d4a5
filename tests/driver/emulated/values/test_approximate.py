"""The approximate functions: accuracy against float64, and the special values of the manual's tables."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.values import approximate

SPECIAL = {
    "rcp": ([-np.inf, -0.0, 0.0, np.inf, np.nan], [-0.0, -np.inf, np.inf, 0.0, np.nan]),
    "sqrt": ([-1.0, -0.0, 0.0, np.inf], [np.nan, -0.0, 0.0, np.inf]),
    "rsqrt": ([-1.0, -0.0, 0.0, np.inf], [np.nan, -np.inf, np.inf, 0.0]),
    "lg2": ([-1.0, -0.0, 0.0, 1.0, np.inf], [np.nan, -np.inf, -np.inf, 0.0, np.inf]),
    "ex2": ([-np.inf, -200.0, 0.0, 3.0, 200.0, np.inf], [0.0, 0.0, 1.0, 8.0, np.inf, np.inf]),
    "tanh": ([-np.inf, -0.0, 0.0, np.inf], [-1.0, -0.0, 0.0, 1.0]),
    "sin": ([-0.0, 0.0, np.inf], [-0.0, 0.0, np.nan]),
    "cos": ([-0.0, 0.0, np.inf], [1.0, 1.0, np.nan]),
}
EXACT = {"rcp": lambda x: 1 / x, "rsqrt": lambda x: x**-0.5, "lg2": np.log2, "ex2": np.exp2}


@pytest.mark.parametrize("name", list(SPECIAL))
def test_special_values_and_accuracy(rng: np.random.Generator, name: str) -> None:
    given, expected = (np.array(values, np.float32) for values in SPECIAL[name])
    actual = approximate.function(name)(given)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual[expected == 0]), np.signbit(expected[expected == 0]))
    values = rng.uniform(0.01, 60, 1000).astype(np.float32)
    exact = EXACT.get(name, getattr(np, name, None))(values.astype(np.float64))
    result = approximate.function(name)(values)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact, rtol=2.0**-23, atol=0)


def test_flush_to_zero() -> None:
    tiny = np.float32(1e-40)
    assert approximate.function("rcp", ftz=True)(-tiny) == -np.inf
    assert approximate.function("ex2", ftz=True)(np.float32(-127.5)) == 0
    assert approximate.function("ex2")(np.float32(-127.5)) > 0
    assert approximate.function("lg2", ftz=True)(tiny) == -np.inf


def test_division() -> None:
    a, b = np.array([1.0, np.inf, -3.0, 6.0], np.float32), np.array([2.0**127, 2.0**127, 2.0**127, 3.0], np.float32)
    np.testing.assert_array_equal(approximate.function("div")(a, b), [0.0, np.nan, -0.0, 2.0])
    np.testing.assert_array_equal(approximate.div_full(a, b), a / b)


def test_f64_seeds_have_twenty_fraction_bits(rng: np.random.Generator) -> None:
    values = rng.uniform(0.001, 1000, 1000)
    for function, exact in ((approximate.rcp_f64, 1 / values), (approximate.rsqrt_f64, values**-0.5)):
        result = function(values)
        assert not (result.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
        np.testing.assert_allclose(result, exact, rtol=2.0**-19)
    assert approximate.rcp_f64(np.float64(1e-310)) == np.inf
