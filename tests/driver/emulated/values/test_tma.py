"""Which bytes tensor copies move, against an element-by-element oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.values import tma
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TensorMapOobFill, TensorMapSwizzle, TiledMap
from tests.driver.emulated.copying import tensor_oracle as oracle
from tests.driver.emulated.copying.tensor_cases import SWIZZLES, pixel_start, random_im2col, random_tiled, tile_start


def elements(description: TiledMap | Im2colMap, units: tma.Units, row: int) -> list[int | None]:
    """Byte offset of each element of one copy, None where it is outside."""
    size = description.data_type.size_bytes
    found: list[int | None] = []
    for place, unit in enumerate(units.places[row].tolist()):
        inside = units.inside is None or units.inside[row, place]
        found += [unit + part if inside else None for part in range(0, units.unit, size)]
    return found


def expected(description: TiledMap | Im2colMap, at: list[tuple[int, ...]]) -> list[int | None]:
    return [oracle.byte_of(description, c) if oracle.in_tensor(description, c) else None for c in at]


@pytest.mark.parametrize("rank", range(1, 6))
def test_tiles_of_every_rank(rng: np.random.Generator, rank: int) -> None:
    for _ in range(20):
        tiled = random_tiled(rng, rank)
        starts = [tile_start(rng, tiled) for _ in range(4)]
        units = tma.tile_units(tiled, np.array(starts, dtype=np.int64))
        assert units.places.shape[1] * units.unit == tma.tile_bytes(tiled)
        for row, start in enumerate(starts):
            assert elements(tiled, units, row) == expected(tiled, oracle.tile(tiled, start)), (tiled, start)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_columns_of_every_rank(rng: np.random.Generator, rank: int) -> None:
    for _ in range(20):
        im2col = random_im2col(rng, rank)
        starts, offsets = zip(*(pixel_start(rng, im2col) for _ in range(4)), strict=True)
        at, moved = (np.array(table, dtype=np.int64) for table in (starts, offsets))
        units = tma.column_units(im2col, at, moved)
        assert units.places.shape[1] * units.unit == tma.column_bytes(im2col)
        assert not tma.off_the_box(im2col, at).any()
        for row, start in enumerate(starts):
            wanted = expected(im2col, oracle.column(im2col, start, offsets[row]))
            assert elements(im2col, units, row) == wanted, (im2col, start, offsets[row])


def test_aligned_boxes_move_in_16_byte_units() -> None:
    tiled = TiledMap(TensorMapDataType.BFLOAT16, 1 << 20, (64, 40), (128,), (64, 16), (1, 1))
    assert tma.tile_units(tiled, np.array([[0, 0], [0, 16]])).inside is None
    clipped = tma.tile_units(tiled, np.array([[0, 32], [8, 30]]))
    assert clipped.unit == 16
    assert clipped.inside is not None
    assert clipped.inside.sum(axis=1).tolist() == [8 * 8, 7 * 10]
    assert tma.tile_units(tiled, np.array([[1, 0]])).unit == 2


def test_a_start_off_the_box_of_pixels() -> None:
    im2col = Im2colMap(TensorMapDataType.FLOAT32, 1 << 20, (4, 8, 2), (16, 128), (-1,), (-1,), 4, 4, (1, 1, 1))
    at: Any = np.array([[0, -2, 0], [0, -1, 0], [0, 6, 0], [0, 7, 0]])
    assert tma.off_the_box(im2col, at).tolist() == [True, False, False, True]


@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_swizzles_of_every_address(swizzle: TensorMapSwizzle) -> None:
    addresses = np.arange(4096)
    wanted = [oracle.swizzled(swizzle, address) for address in range(4096)]
    assert tma.swizzled(swizzle, addresses).tolist() == wanted
    row = swizzle.span_bytes or 64
    for base in (0, 128, 512, 896):
        pattern = tma.shared_pattern(swizzle, base, 4, 640, row)
        assert (base + pattern).tolist() == wanted[base : base + 640 : 4]
        if swizzle:
            short = tma.shared_pattern(swizzle, base, 4, 160, 16)
            lines = [
                oracle.swizzled(swizzle, base + line * row + byte) for line in range(10) for byte in range(0, 16, 4)
            ]
            assert (base + short).tolist() == lines


def test_fill() -> None:
    assert tma.fill_of(TensorMapOobFill.ZEROS, 16) == b""
    nan = tma.fill_of(TensorMapOobFill.NAN_REQUEST_ZERO_FMA, 8)
    assert np.frombuffer(nan, np.uint16).tolist() == [0x7FF7] * 4


def test_tf32_loads_round() -> None:
    convert = tma.conversion_of(TensorMapDataType.TFLOAT32)
    assert convert is not None
    bits = np.array([0x2B2CF856, 0xC4525736, 0x7FC42F70, 0x0005A875, 0x7F800000], np.uint32)
    wanted = [0x2B2D0000, 0xC4526000, 0x7FFFE000, 0x0005A000, 0x7F800000]
    assert convert(bits.view(np.uint8)).view(np.uint32).tolist() == wanted
    assert tma.conversion_of(TensorMapDataType.FLOAT32_FTZ) is None
