"""Fragment layouts against the manual's per-element formulas, and products against integer matrices."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from lowdnn.driver.emulated.values import tensor_core
from lowdnn.status import NotSupportedError

WARPS = 3
KINDS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "f64": np.float64,
}
Place = Callable[[int, int, int], tuple[int, int]]


def a_half(g: int, t: int, i: int) -> tuple[int, int]:
    """m16n8k16 .f16: the manual's row and column of a_i; k8 is its first half."""
    return (g if i < 2 or 4 <= i < 6 else g + 8), t * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_half(g: int, t: int, i: int) -> tuple[int, int]:
    return t * 2 + (i & 1) + (8 if i >= 2 else 0), g


def a_byte(g: int, t: int, i: int) -> tuple[int, int]:
    """m16n8k32 .s8: likewise for four bytes a register; m16n8k16 is its first half."""
    return (g if i < 4 or 8 <= i < 12 else g + 8), t * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_byte(g: int, t: int, i: int) -> tuple[int, int]:
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


def a_word(g: int, t: int, i: int) -> tuple[int, int]:
    """m16n8k8 .tf32 and .f64."""
    return (g if i in (0, 2) else g + 8), (t if i < 2 else t + 4)


def a_double_16(g: int, t: int, i: int) -> tuple[int, int]:
    """m16n8k16 .f64."""
    return (g if i % 2 == 0 else g + 8), (i * 2 if i % 2 == 0 else i * 2 - 2) + t


def b_word(g: int, t: int, i: int) -> tuple[int, int]:
    return t + 4 * i, g


def a_one_row(g: int, t: int, i: int) -> tuple[int, int]:
    return g, t * 4 + i


def c_wide(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


CASES: list[tuple[str, list[str], Place, Place]] = [
    ("m16n8k16", ["f16", "bf16"], a_half, b_half),
    ("m16n8k8", ["f16", "bf16"], a_half, b_half),
    ("m16n8k32", ["s8", "u8", "e4m3", "e5m2"], a_byte, b_byte),
    ("m16n8k16", ["s8", "u8", "e4m3", "e5m2"], a_byte, b_byte),
    ("m8n8k16", ["s8", "u8"], a_one_row, b_byte),
    ("m16n8k8", ["tf32", "f64"], a_word, b_word),
    ("m16n8k4", ["tf32", "f64"], a_word, b_word),
    ("m16n8k16", ["f64"], a_double_16, b_word),
    ("m8n8k4", ["f64"], lambda g, t, i: (g, t), b_word),
]
FLAT = [(shape, name, a, b) for shape, names, a, b in CASES for name in names]


def to_registers(matrices: np.ndarray, place: Place, kind: type) -> np.ndarray:
    """[warps, rows, columns] numbers as fragments [warps, 32, registers], element by element."""
    count = matrices[0].size // 32
    lanes = np.zeros((len(matrices), 32, count), kind)
    for lane in range(32):
        for i in range(count):
            row, column = place(lane // 4, lane % 4, i)
            lanes[:, lane, i] = matrices[:, row, column].astype(kind)
    return lanes if kind == np.float64 else lanes.view(np.uint32)


@pytest.mark.parametrize(("shape", "name", "a_place", "b_place"), FLAT, ids=[f"{case[0]}-{case[1]}" for case in FLAT])
def test_product_of_small_integers_is_exact(
    rng: np.random.Generator, shape: str, name: str, a_place: Place, b_place: Place
) -> None:
    rows, depth = (int(part) for part in shape[1:].split("n8k"))
    low = 0 if name == "u8" else -8
    a, b = rng.integers(low, 8, (WARPS, rows, depth)), rng.integers(low, 8, (WARPS, depth, 8))
    c = rng.integers(-1000, 1000, (WARPS, rows, 8))
    accumulator = {"s8": "s32", "u8": "s32", "f64": "f64"}.get(name, "f32")
    kind = {"s32": np.int32, "f64": np.float64, "f32": np.float32}[accumulator]
    product = tensor_core.matrix_product(shape, name, name, accumulator, accumulator)
    c_registers = to_registers(c, c_wide, kind).view(kind)
    actual = product(to_registers(a, a_place, KINDS[name]), to_registers(b, b_place, KINDS[name]), c_registers)
    assert actual.dtype == kind
    np.testing.assert_array_equal(actual, to_registers(a @ b + c, c_wide, kind).view(kind))


@pytest.mark.parametrize("signed", [False, True])
def test_four_bit_integers(rng: np.random.Generator, signed: bool) -> None:
    low = -8 if signed else 0
    a, b = rng.integers(low, low + 16, (WARPS, 16, 64)), rng.integers(low, low + 16, (WARPS, 64, 8))
    a_registers = np.zeros((WARPS, 32, 4), np.uint32)
    b_registers = np.zeros((WARPS, 32, 2), np.uint32)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(8):
            shift = np.uint32(4 * i)
            for r in range(4):
                nibble = a[:, g + 8 * (r % 2), 32 * (r // 2) + 8 * t + i] & 15
                a_registers[:, lane, r] |= nibble.astype(np.uint32) << shift
            for r in range(2):
                b_registers[:, lane, r] |= (b[:, 32 * r + 8 * t + i, g] & 15).astype(np.uint32) << shift
    name = "s4" if signed else "u4"
    product = tensor_core.matrix_product("m16n8k64", name, name, "s32", "s32")
    actual = product(a_registers, b_registers, np.zeros((WARPS, 32, 4), np.int32))
    np.testing.assert_array_equal(actual.view(np.uint32), to_registers(a @ b, c_wide, np.int32))


def test_f16_accumulators_round_once(rng: np.random.Generator) -> None:
    a, b = rng.integers(-8, 8, (WARPS, 16, 16)), rng.integers(-8, 8, (WARPS, 16, 8))
    c = rng.integers(1000, 2000, (WARPS, 16, 8)) + 0.5
    product = tensor_core.matrix_product("m16n8k16", "f16", "f16", "f16", "f16")
    registers = to_registers(c, c_wide, np.float16)
    actual = product(to_registers(a, a_half, np.float16), to_registers(b, b_half, np.float16), registers)
    expected = (a @ b + c.astype(np.float16).astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(actual, to_registers(expected, c_wide, np.float16))


def test_bytes_with_f16_sums_round_twice_before_c() -> None:
    """2**6 * 2**5 from the first pair of elements, 1 from the second, which f16 loses; then C = 1, lost as well."""
    a, b = np.zeros((1, 32, 2), np.uint32), np.zeros((1, 32, 1), np.uint32)
    a[0, 0, 0] = 0x54 | 0x3C << 16
    b[0, 0, 0] = 0x50 | 0x3C << 16
    c = np.zeros((1, 32, 2), np.uint32)
    c[0, 0, 0] = 0x3C00
    product = tensor_core.matrix_product("m16n8k16", "e5m2", "e5m2", "f16", "f16")
    assert product(a, b, c)[0, 0, 0] & 0xFFFF == np.float16(2048).view(np.uint16)


def test_tf32_ignores_the_low_bits_of_its_registers() -> None:
    a = np.full((1, 32, 4), np.array(1 + 2.0**-10 + 2.0**-11, np.float32).view(np.uint32), np.uint32)
    b = np.full((1, 32, 2), np.float32(1).view(np.uint32), np.uint32)
    product = tensor_core.matrix_product("m16n8k8", "tf32", "tf32", "f32", "f32")
    assert (product(a, b, np.zeros((1, 32, 4), np.float32)) == np.float32(8 * (1 + 2.0**-10))).all()


def test_integer_sums_wrap_or_saturate() -> None:
    a, b = np.full((1, 32, 4), 0x01010101, np.uint32), np.full((1, 32, 2), 0x01010101, np.uint32)
    c = np.full((1, 32, 4), 2**31 - 1, np.int32)
    wrapping = tensor_core.matrix_product("m16n8k32", "s8", "s8", "s32", "s32")
    clamping = tensor_core.matrix_product("m16n8k32", "s8", "s8", "s32", "s32", satfinite=True)
    assert (wrapping(a, b, c) == np.int32(-(2**31) + 31)).all()
    assert (clamping(a, b, c) == np.int32(2**31 - 1)).all()


def test_unknown_shape_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"mma\.shape.*m16n8k64"):
        tensor_core.matrix_product("m16n8k64", "bf16", "bf16", "f32", "f32")


@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrix_loads_and_stores(rng: np.random.Generator, count: int) -> None:
    matrices = rng.integers(0, 1 << 16, (WARPS, count, 8, 8)).astype(np.uint16)
    upright, transposed = (tensor_core.matrices_to_lanes(matrices, flag) for flag in (False, True))
    for lane in range(32):
        g, t = lane // 4, lane % 4
        low, high = matrices[:, :, g, 2 * t].astype(np.uint32), matrices[:, :, g, 2 * t + 1].astype(np.uint32)
        np.testing.assert_array_equal(upright[:, lane], low | high << np.uint32(16))
        low, high = matrices[:, :, 2 * t, g].astype(np.uint32), matrices[:, :, 2 * t + 1, g].astype(np.uint32)
        np.testing.assert_array_equal(transposed[:, lane], low | high << np.uint32(16))
    np.testing.assert_array_equal(tensor_core.lanes_to_matrices(upright), matrices)
    np.testing.assert_array_equal(tensor_core.lanes_to_matrices(transposed, transposed=True), matrices)
    np.testing.assert_array_equal(tensor_core.transpose_fragment(upright), transposed)
