"""The rules of tensor maps, and the real driver's marshalling of them."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from lowdnn.driver.base import DriverError
from lowdnn.driver.cuda import CudaDriver
from lowdnn.tensor_map import (
    Im2colMap,
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapL2Promotion,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
    address_problem,
    im2col_map_problem,
    tiled_map_problem,
)
from tests.driver.test_cuda import Spy

TILED = TiledMap(
    TensorMapDataType.BFLOAT16,
    0x7F00_0000_0100,
    (192, 100),
    (384,),
    (64, 128),
    (1, 2),
    swizzle=TensorMapSwizzle.BYTES_128,
    l2_promotion=TensorMapL2Promotion.BYTES_256,
    oob_fill=TensorMapOobFill.NAN_REQUEST_ZERO_FMA,
)
IM2COL = Im2colMap(
    TensorMapDataType.FLOAT16,
    0x7F00_0000_0100,
    (64, 14, 15, 2),
    (128, 1792, 26880),
    (-1, -2),
    (-1, 0),
    32,
    256,
    (1, 2, 1, 1),
)
BYTES_32 = TensorMapInterleave.BYTES_32
_NO_SWIZZLE = TensorMapSwizzle.NONE
#: Maps at the edge of every rule.
EXTREME_TILED = [
    replace(TILED, dims=(1 << 32, 1 << 32), strides_bytes=((1 << 40) - 16,)),
    replace(TILED, box=(256, 256), swizzle=_NO_SWIZZLE, element_strides=(8, 8)),
    replace(TILED, dims=(1,), strides_bytes=(), box=(8,), element_strides=(1,)),
    replace(TILED, strides_bytes=(0,), address=0),
    replace(
        TILED,
        dims=(64, 1 << 30, 8, 1 << 31, (1 << 30) + 1),
        strides_bytes=(1024, 128, 1024, (1 << 34) - 1024),
        box=(64, 64, 1, 1, 1),
        element_strides=(1,) * 5,
    ),
    replace(TILED, data_type=TensorMapDataType.FLOAT32, box=(256, 228), element_strides=(1, 1), swizzle=_NO_SWIZZLE),
]
EXTREME_IM2COL = [
    replace(IM2COL, channels_per_pixel=256, pixels_per_column=456),
    replace(IM2COL, pixels_per_column=1024, element_strides=(8, 8, 8, 8)),
    replace(IM2COL, dims=(64, 300, 300, 2), strides_bytes=(128, 38400, 11520000), lower_corner=(127, -128)),
    replace(IM2COL, dims=(64, 300, 300, 2), strides_bytes=(128, 38400, 11520000), upper_corner=(-128, 127)),
    replace(IM2COL, lower_corner=(0, 0), upper_corner=(-13, -14)),
]
#: Maps whose copies are larger than shared memory.
TOO_LARGE_TILED = replace(EXTREME_TILED[-1], box=(256, 229))
TOO_LARGE_IM2COL = replace(EXTREME_IM2COL[0], pixels_per_column=457)
#: (field, value, what is wrong) of maps that break one rule.
BROKEN_TILED: list[tuple[str, Any, str]] = [
    ("dims", (), "dims: expected 1 to 5 dimensions, got 0"),
    ("dims", (1,) * 6, "dims: expected 1 to 5 dimensions, got 6"),
    ("dims", (0, 100), "dims[0]: expected 1 to 4294967296, got 0"),
    ("dims", (192, 2**32 + 1), "dims[1]: expected"),
    ("address", 0x7F00_0000_0108, "address: expected a multiple of 16, got 0x7f0000000108"),
    ("strides_bytes", (392,), "strides_bytes[0]: expected a multiple of 16 below 2**40, got 392"),
    ("strides_bytes", (2**40,), "strides_bytes[0]"),
    ("strides_bytes", (384, 384), "strides_bytes: expected 1 numbers, got 2"),
    ("box", (64,), "box: expected 2 numbers, got 1"),
    ("box", (64, 257), "box[1]: expected 1 to 256, got 257"),
    ("box", (64, 0), "box[1]: expected"),
    ("box", (60, 1), "box[0]: expected a multiple of 16 bytes, got 60 elements (120 bytes)"),
    ("box", (128, 1), "box[0]: expected at most the swizzle's 128 bytes"),
    ("element_strides", (1, 9), "element_strides[1]: expected 1 to 8, got 9"),
    ("element_strides", (1,), "element_strides: expected 2 numbers, got 1"),
    ("data_type", TensorMapDataType.UINT16, "oob_fill: NaN needs a floating-point data type, got UINT16"),
    ("interleave", BYTES_32, "dims: expected 3 to 5 dimensions, got 2"),
]
BROKEN_IM2COL: list[tuple[str, Any, str]] = [
    ("dims", (64, 14), "dims: expected 3 to 5 dimensions, got 2"),
    ("lower_corner", (-129, 0), "lower_corner[0]: expected -128 to 127, got -129"),
    ("upper_corner", (0, 128), "upper_corner[1]: expected -128 to 127, got 128"),
    ("lower_corner", (0,), "lower_corner: expected 2 numbers, got 1"),
    ("dims", (64, 1 << 31, 15, 2), "upper_corner[0]: expected 1 to 2147483647 pixels between the corners"),
    ("upper_corner", (-15, 0), "upper_corner[0]: expected 1 to 2147483647 pixels between the corners, got 0"),
    ("channels_per_pixel", 257, "channels_per_pixel[0]: expected 1 to 256, got 257"),
    ("channels_per_pixel", 4, "channels_per_pixel: expected a multiple of 16 bytes"),
    ("pixels_per_column", 1025, "pixels_per_column[0]: expected 1 to 1024, got 1025"),
    ("swizzle", TensorMapSwizzle.BYTES_32, "channels_per_pixel: expected at most the swizzle's 32 bytes"),
]


def test_good_maps_keep_the_rules() -> None:
    assert [tiled_map_problem(tiled) for tiled in (TILED, *EXTREME_TILED)] == [""] * 7
    assert [im2col_map_problem(im2col) for im2col in (IM2COL, *EXTREME_IM2COL)] == [""] * 6


@pytest.mark.parametrize(("field", "value", "problem"), BROKEN_TILED)
def test_a_broken_rule_of_tiled_maps(field: str, value: Any, problem: str) -> None:
    assert tiled_map_problem(replace(TILED, **{field: value})).startswith(problem)


def test_copies_fit_shared_memory() -> None:
    assert tiled_map_problem(TOO_LARGE_TILED).startswith(
        "box: expected copies of at most 233472 bytes, got 234496 (58624 elements)"
    )
    assert im2col_map_problem(TOO_LARGE_IM2COL).startswith("pixels_per_column: expected copies of at most 233472")


def test_rules_of_interleaved_maps() -> None:
    tensor = replace(
        TILED,
        dims=(16, 8, 4),
        strides_bytes=(32, 256),
        box=(16, 1, 1),
        element_strides=(1, 1, 1),
        interleave=BYTES_32,
        swizzle=TensorMapSwizzle.BYTES_32,
    )
    assert tiled_map_problem(tensor) == ""
    assert "swizzle: expected BYTES_32" in tiled_map_problem(replace(tensor, swizzle=TensorMapSwizzle.NONE))
    assert "multiple of 32" in tiled_map_problem(replace(tensor, strides_bytes=(48, 256)))
    assert "multiple of 32" in tiled_map_problem(replace(tensor, address=16))
    assert address_problem(16, TensorMapInterleave.NONE) == ""
    assert "multiple of 32" in address_problem(16, BYTES_32)


@pytest.mark.parametrize(("field", "value", "problem"), BROKEN_IM2COL)
def test_a_broken_rule_of_im2col_maps(field: str, value: Any, problem: str) -> None:
    assert im2col_map_problem(replace(IM2COL, **{field: value})).startswith(problem)


@pytest.mark.parametrize(
    ("spatial", "low", "high"), [(1, -(2**15), 2**15 - 1), (2, -128, 127), (3, -16, 15)], ids=["3d", "4d", "5d"]
)
def test_ranges_of_corners(spatial: int, low: int, high: int) -> None:
    def problem(lower: int, upper: int) -> str:
        return im2col_map_problem(
            replace(
                IM2COL,
                dims=(64, *(2**17,) * spatial, 1),
                strides_bytes=(128,) * (spatial + 1),
                lower_corner=(lower,) * spatial,
                upper_corner=(upper,) * spatial,
                element_strides=(1,) * (spatial + 2),
            )
        )

    assert problem(low, high) == problem(high, low) == ""
    assert problem(low - 1, 0).startswith("lower_corner[0]")
    assert problem(0, high + 1).startswith("upper_corner[0]")


def _map(words: list[int]) -> Any:
    opaque = bindings.CUtensorMap()
    opaque.opaque = [bindings.cuuint64_t(word) for word in words]
    return opaque


def test_the_real_driver_gets_every_argument() -> None:
    spy = Spy(
        cuTensorMapEncodeTiled=(bindings.CUresult.CUDA_SUCCESS, _map(list(range(16)))),
        cuTensorMapEncodeIm2col=(bindings.CUresult.CUDA_SUCCESS, _map(list(range(1, 17)))),
    )
    driver = CudaDriver(spy)
    assert driver.tensor_map_encode_tiled(TILED) == struct.pack("<16Q", *range(16))
    assert driver.tensor_map_encode_im2col(IM2COL) == struct.pack("<16Q", *range(1, 17))
    (_, tiled), (_, im2col) = spy.calls
    assert [_plain(argument) for argument in tiled] == [
        9, 2, TILED.address, [192, 100], [384], [64, 128], [1, 2], 0, 3, 3, 1,
    ]  # fmt: skip
    assert [_plain(argument) for argument in im2col] == [
        6, 4, IM2COL.address, [64, 14, 15, 2], [128, 1792, 26880], [-1, -2], [-1, 0], 32, 256, [1, 2, 1, 1], 0, 0, 0, 0,
    ]  # fmt: skip


def test_a_vector_has_strides_that_are_no_null_pointer() -> None:
    spy = Spy(cuTensorMapEncodeTiled=(bindings.CUresult.CUDA_SUCCESS, _map([0] * 16)))
    vector = replace(TILED, dims=(192,), strides_bytes=(), box=(64,), element_strides=(1,))
    CudaDriver(spy).tensor_map_encode_tiled(vector)
    assert [_plain(argument) for argument in spy.calls[0][1][1:5]] == [1, TILED.address, [192], [0]]


def _plain(argument: Any) -> Any:
    return [int(item) for item in argument] if isinstance(argument, list) else int(argument)


def test_the_real_driver_replaces_the_address_of_a_copy() -> None:
    spy = Spy()

    def replaced(opaque: Any, address: int) -> tuple[Any]:
        words = [int(word) for word in opaque.opaque]
        opaque.opaque = [bindings.cuuint64_t(word) for word in (address, *words[1:])]
        return (bindings.CUresult.CUDA_SUCCESS,)

    spy.answers["cuTensorMapReplaceAddress"] = replaced
    old = struct.pack("<16Q", *range(16))
    assert CudaDriver(spy).tensor_map_replace_address(old, 0x4560) == struct.pack("<16Q", 0x4560, *range(1, 16))


def test_a_broken_rule_never_reaches_the_driver() -> None:
    spy = Spy()
    driver = CudaDriver(spy)
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeTiled.*INVALID_VALUE.*box: expected 2 numbers"):
        driver.tensor_map_encode_tiled(replace(TILED, box=(64,)))
    with pytest.raises(DriverError, match=r"cuTensorMapEncodeIm2col.*lower_corner: expected 2 numbers"):
        driver.tensor_map_encode_im2col(replace(IM2COL, lower_corner=(0,)))
    with pytest.raises(DriverError, match=r"cuTensorMapReplaceAddress.*multiple of 16"):
        driver.tensor_map_replace_address(bytes(128), 8)
    with pytest.raises(DriverError, match="expected 128 bytes, got 3"):
        driver.tensor_map_replace_address(b"abc", 16)
    assert spy.calls == []
