"""Atomic updates against a lane-by-lane loop, with distinct, colliding and fully shared addresses."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.values import atomic
from lowdnn.status import NotSupportedError

LANES = 200
INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
PLACES = {"distinct": LANES, "colliding": 30, "shared": 1}


def places(rng: np.random.Generator, kind: str) -> np.ndarray:
    return rng.permutation(LANES) if kind == "distinct" else rng.integers(0, PLACES[kind], LANES)


@pytest.mark.parametrize("kind", list(PLACES))
@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.uint64, np.int64])
@pytest.mark.parametrize("operation", list(INTEGER))
def test_integer_operations(rng: np.random.Generator, operation: str, dtype: type, kind: str) -> None:
    index = places(rng, kind)
    memory = rng.integers(0, 50, LANES).astype(dtype)
    operand = rng.integers(0, 100, LANES).astype(dtype) - (dtype(50) if operation in ("add", "min") else dtype(0))
    expected_memory, expected_old = memory.tolist(), []
    bits = memory.itemsize * 8
    for place, value in zip(index.tolist(), operand.tolist(), strict=True):
        expected_old.append(expected_memory[place])
        expected_memory[place] = INTEGER[operation](expected_memory[place], value)
    unsigned = np.dtype(f"u{bits // 8}")
    old = atomic.updater(operation, "u32")(memory, index, operand)
    np.testing.assert_array_equal(memory.view(unsigned), np.array([v % (1 << bits) for v in expected_memory], unsigned))
    np.testing.assert_array_equal(old.view(unsigned), np.array([v % (1 << bits) for v in expected_old], unsigned))


@pytest.mark.parametrize("kind", list(PLACES))
@pytest.mark.parametrize(
    ("name", "held", "number"),
    [
        ("f32", np.float32, np.float32),
        ("f64", np.float64, np.float64),
        ("f16", np.uint16, np.float16),
        ("bf16", np.uint16, ml_dtypes.bfloat16),
    ],
)
def test_float_sums_round_in_lane_order(
    rng: np.random.Generator, name: str, held: type, number: type, kind: str
) -> None:
    index = places(rng, kind)
    memory, operand = (rng.standard_normal(LANES).astype(number) for _ in range(2))
    expected = memory.copy()
    for place, value in zip(index.tolist(), operand, strict=True):
        expected[place] = expected[place] + value
    atomic.updater("add", name)(memory.view(held), index, operand.view(held))
    np.testing.assert_array_equal(memory, expected)


def test_packed_sum() -> None:
    memory = np.array([1.0, 2.0], np.float16).view(np.uint32)
    operand = np.array([0.5, -1.0], np.float16).view(np.uint32)
    atomic.updater("add", "f16x2")(memory, np.zeros(3, np.int64), operand[0])
    np.testing.assert_array_equal(memory.view(np.float16), [2.5, -1.0])


def test_swaps_of_128_bits_compare_all_bits() -> None:
    """0.0 and -0.0, and a NaN and itself, are told apart and found by their bits."""
    words = np.array([0, 1 << 63, 0x7FF8000000000001, 5, 7, 7], np.uint64).view(np.complex128)
    compare = np.array([0, 0, 0x7FF8000000000001, 5, 7, 8], np.uint64).view(np.complex128)
    value = np.arange(6, dtype=np.uint64).view(np.complex128)
    old = atomic.updater("cas", "b128")(words, np.arange(3), compare, value)
    assert old.view(np.uint64).tolist() == [0, 1 << 63, 0x7FF8000000000001, 5, 7, 7]
    assert words.view(np.uint64).tolist() == [0, 1 << 63, 2, 3, 7, 7]


@pytest.mark.parametrize("scale", [1.0, 1e-38])
def test_flush_of_global_f32_sums(rng: np.random.Generator, scale: float) -> None:
    """Sums and operands below the normal range become zero in every turn; ``old`` shows memory as it was."""
    memory = (rng.standard_normal(2) * scale).astype(np.float32)
    operand = (rng.standard_normal(LANES) * scale).astype(np.float32)
    index = rng.integers(0, 2, LANES)
    expected, seen = memory.copy(), []
    for place, value in zip(index.tolist(), operand, strict=True):
        seen.append(expected[place])
        expected[place] = flushed(flushed(expected[place]) + flushed(value))
    old = atomic.updater("add", "f32", ftz=True)(memory, index, operand)
    np.testing.assert_array_equal(memory, expected)
    np.testing.assert_array_equal(old, seen)


def flushed(value: np.float32) -> np.float32:
    return value if abs(value) >= 2.0**-126 else np.float32(0)


def test_compare_and_swap_has_one_winner() -> None:
    memory = np.zeros(2, np.uint32)
    index = np.array([0, 1, 0, 0, 1])
    value = np.array([10, 11, 12, 13, 14], np.uint32)
    old = atomic.updater("cas", "b32")(memory, index, np.uint32(0), value)
    np.testing.assert_array_equal(memory, [10, 11])
    np.testing.assert_array_equal(old, [0, 0, 10, 10, 11])


def test_unknown_operation_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"atom\.operation.*xor"):
        atomic.updater("xor", "f32")
