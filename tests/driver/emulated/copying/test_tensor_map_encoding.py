"""The emulated driver's tensor maps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lowdnn.driver.base import DriverError
from lowdnn.driver.emulated.copying.tensor_map import decode, encode
from lowdnn.driver.emulated.driver import EmulatedDriver
from lowdnn.tensor_map import (
    TENSOR_MAP_BYTES,
    Im2colMap,
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapL2Promotion,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
)

TILED = TiledMap(
    TensorMapDataType.BFLOAT16,
    0x7C00_0000_0100,
    (64, 1 << 32, 3),
    (128, (1 << 40) - 16),
    (64, 256, 1),
    (1, 8, 2),
    swizzle=TensorMapSwizzle.BYTES_128,
    l2_promotion=TensorMapL2Promotion.BYTES_256,
    oob_fill=TensorMapOobFill.NAN_REQUEST_ZERO_FMA,
)
IM2COL = Im2colMap(
    TensorMapDataType.FLOAT32,
    0x7C00_0000_0100,
    (8, 1 << 20, 10, 11, 2),
    (32, 320, 3200, 32000),
    (-16, -2, 15),
    (15, 2, 15),
    8,
    1024,
    (1, 2, 1, 3, 1),
    swizzle=TensorMapSwizzle.BYTES_32,
)
WIDE = replace(IM2COL, dims=(8, 7, 2), strides_bytes=(32, 320), lower_corner=(-32768,), upper_corner=(32767,))


@pytest.fixture
def driver() -> EmulatedDriver:
    opened = EmulatedDriver()
    opened.init()
    opened.context_set_current(opened.primary_context_retain(0))
    return opened


@pytest.mark.parametrize("description", [TILED, IM2COL, replace(WIDE, element_strides=(1, 1, 1))])
def test_a_map_survives_its_encoding(driver: EmulatedDriver, description: Any) -> None:
    if isinstance(description, TiledMap):
        content = driver.tensor_map_encode_tiled(description)
    else:
        content = driver.tensor_map_encode_im2col(description)
    assert len(content) == TENSOR_MAP_BYTES
    assert decode(content) == description
    moved = driver.tensor_map_replace_address(content, 0x7C00_0000_4560)
    assert decode(moved) == replace(description, address=0x7C00_0000_4560)


def test_the_address_is_the_first_word() -> None:
    content = encode(TILED)
    assert content[:8] == TILED.address.to_bytes(8, "little")
    assert decode((4096).to_bytes(8, "little") + content[8:]) == replace(TILED, address=4096)


def test_any_other_changed_byte_shows() -> None:
    content = encode(IM2COL)
    for place in range(8, TENSOR_MAP_BYTES):
        assert decode(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]) is None


def test_errors(driver: EmulatedDriver) -> None:
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeTiled.*INVALID_VALUE.*box\[1\]: expected 1 to 256"):
        driver.tensor_map_encode_tiled(replace(TILED, box=(64, 300, 1)))
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeIm2col.*INVALID_VALUE.*lower_corner\[0\]"):
        driver.tensor_map_encode_im2col(replace(IM2COL, lower_corner=(-17, 0, 0)))
    with pytest.raises(DriverError, match=r"NOT_SUPPORTED.*interleaved layouts are not modelled"):
        driver.tensor_map_encode_tiled(replace(TILED, interleave=TensorMapInterleave.BYTES_16))
    with pytest.raises(DriverError, match=r"cuTensorMapReplaceAddress.*the bytes are no tensor map"):
        driver.tensor_map_replace_address(bytes(TENSOR_MAP_BYTES), 16)
    with pytest.raises(DriverError, match=r"cuTensorMapReplaceAddress.*multiple of 16, got 0x7c0000000008"):
        driver.tensor_map_replace_address(encode(TILED), 0x7C00_0000_0008)
    with pytest.raises(DriverError, match="NOT_INITIALIZED"):
        EmulatedDriver().tensor_map_encode_tiled(TILED)
