"""Accumulator registers and matrices of warpgroups, the shapes there are, and tiles that descriptors find."""

from __future__ import annotations

import numpy as np
import pytest

from lowdnn.driver.emulated.values.wgmma import (
    WarpgroupProduct,
    first_byte,
    pattern_keys,
    tile_pattern,
    warpgroup_product,
)
from lowdnn.status import NotSupportedError

ORDER = np.array([[0, 3, 4, 7], [1, 2, 5, 6]])


def form(n: int, d: str, a: str, k: int) -> WarpgroupProduct:
    return warpgroup_product(f"m64n{n}k{k}", d, a, a, False, (False, False), False)


@pytest.mark.parametrize(("d", "dtype"), [("f32", np.float32), ("f16", np.uint32)])
def test_registers_of_a_matrix(rng: np.random.Generator, d: str, dtype: type) -> None:
    product = form(24, d, "f16", 16)
    matrix = rng.integers(-99, 99, (2, 64, 24)).astype(np.float32)
    columns = product.columns_of(matrix, ORDER)
    assert columns.dtype == dtype
    assert columns.shape == (product.registers, 256)
    elements = (
        columns.view(np.float32) if d == "f32" else columns.view(np.float16).reshape(6, 256, 2).transpose(0, 2, 1)
    )
    warp, lane = 2, 13
    place = int(ORDER[1, warp]) * 32 + lane
    for i, value in enumerate(elements.reshape(12, 256)[:, place]):
        assert value == matrix[1, 16 * warp + lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2]
    np.testing.assert_array_equal(product.matrix_of(columns, ORDER), matrix)


def test_shapes() -> None:
    integers = [n for n in range(4, 300) if _exists(n, "s32", "s8", 32)]
    assert integers == [8, 16, 24, *range(32, 257, 16)]
    assert [n for n in range(4, 300) if _exists(n, "f32", "tf32", 8)] == list(range(8, 257, 8))
    assert not _exists(64, "f32", "bf16", 8)
    assert not _exists(64, "f16", "bf16", 16)


def _exists(n: int, d: str, a: str, k: int) -> bool:
    try:
        form(n, d, a, k)
    except NotSupportedError:
        return False
    return True


def test_base_offset_moves_the_swizzle_pattern() -> None:
    """A tile that starts 384 bytes after a 1024-byte boundary, told so, lies like one that starts on it."""
    plain = np.uint64(1 << 62 | 64 << 32 | 4096 >> 4)
    moved = np.uint64(1 << 62 | 64 << 32 | 3 << 49 | (4096 + 384) >> 4)
    patterns = [tile_pattern(int(pattern_keys(one)), 64, False) for one in (plain, moved)]
    np.testing.assert_array_equal(patterns[1].units, patterns[0].units + 384 // 16)
    assert first_byte(plain) == first_byte(moved) == 4096


def test_start_within_a_row_of_the_pattern() -> None:
    """The second 32 bytes of K of a 128-byte swizzled tile: units 2 and 3 of each row, XORed with the row."""
    pattern = tile_pattern(int(pattern_keys(np.uint64(1 << 62 | 64 << 32 | (2048 + 32) >> 4))), 16, False)
    row, unit = np.arange(16)[:, None], np.array([[2, 3]])
    np.testing.assert_array_equal(pattern.units, row * 8 + (unit ^ row % 8))
    assert (pattern.low, pattern.high) == (2, 15 * 8 + 5)
