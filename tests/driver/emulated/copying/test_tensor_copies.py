"""Tensor copies in kernels, against an element-by-element oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.copying.tensor_map import encode
from lowdnn.driver.emulated.faults import EmulationFault
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TensorMapOobFill, TensorMapSwizzle, TiledMap
from tests.driver.emulated.conftest import POLICIES, Bench
from tests.driver.emulated.copying import tensor_oracle as oracle
from tests.driver.emulated.copying.tensor_cases import (
    SWIZZLES,
    pixel_start,
    random_im2col,
    random_tiled,
    tensor_bytes,
    tile_start,
)
from tests.driver.emulated.copying.tensor_kernels import MULTICAST, load_kernel, store_kernel

ARCH = "compute_90a"
Compile = Callable[..., str]
Description = TiledMap | Im2colMap


def sources(description: Description, at: Sequence[int], offsets: Sequence[int]) -> list[tuple[int, ...]]:
    if isinstance(description, TiledMap):
        return oracle.tile(description, tuple(at))
    return oracle.column(description, tuple(at), tuple(offsets))


def loaded(description: Description, data: Any, places: list[tuple[int, ...]], base: int, nbytes: int) -> Any:
    """The box in shared memory from address ``base`` on; 0xEE where nothing lands."""
    size = description.data_type.size_bytes
    tile = np.full(shown_bytes(description, nbytes), 0xEE, np.uint8)
    for number, at in enumerate(places):
        for byte in range(size):
            to = oracle.shared_offset(description, base, number * size + byte)
            inside = oracle.in_tensor(description, at)
            tile[to] = data[oracle.byte_of(description, at) + byte] if inside else 0
    return tile


def box_bytes(description: Description) -> int:
    rank = description.rank
    return len(sources(description, (0,) * rank, (0,) * (rank - 2))) * description.data_type.size_bytes


def shown_bytes(description: Description, nbytes: int) -> int:
    """Shared memory that the copy may touch, in lines of 128 bytes."""
    row = oracle.row_bytes(description)
    return -(-(nbytes // row * max(row, description.swizzle.span_bytes)) // 128) * 128


def finite_bytes(rng: np.random.Generator, count: int) -> Any:
    """Bytes that are normal numbers as any floating-point type."""
    return rng.integers(0x20, 0x40, count, dtype=np.uint8)


def check_loads(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, description: Description, hint: bool = False
) -> None:
    """Three copies at random places."""
    im2col = isinstance(description, Im2colMap)
    if isinstance(description, Im2colMap):
        copies = [pixel_start(rng, description) for _ in range(3)]
    else:
        copies = [(tile_start(rng, description), ()) for _ in range(3)]
    data = finite_bytes(rng, tensor_bytes(description))
    tensor = bench.put(data, "tensor")
    moved = encode(replace(description, address=tensor))
    module = bench.machine.load(compile_cuda(load_kernel(description.rank, im2col, hint), ARCH))
    nbytes, front = box_bytes(description), 128 * int(rng.integers(0, 9))
    table = bench.put(np.array([(*at, *offsets) for at, offsets in copies], np.int32))
    shown = shown_bytes(description, nbytes)
    out = bench.empty(3 * shown)
    counts = [np.int32(number) for number in (shown, nbytes, front)]
    bench.run(module, "load", 3, 32, moved, table, out, *counts, shared=front + shown, checks=False)
    got = bench.get(out, (3, shown), np.uint8)
    for row, (at, offsets) in enumerate(copies):
        wanted = loaded(description, data, sources(description, at, offsets), front, nbytes)
        lands = wanted != 0xEE
        np.testing.assert_array_equal(got[row][lands], wanted[lands], err_msg=f"{description} {at} {offsets}")


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("rank", range(1, 6))
def test_tiled_loads(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int, swizzle: TensorMapSwizzle
) -> None:
    for _ in range(3):
        check_loads(bench, compile_cuda, rng, random_tiled(rng, rank, swizzle), hint=rank == 2)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_im2col_loads(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int, swizzle: TensorMapSwizzle
) -> None:
    for _ in range(3):
        check_loads(bench, compile_cuda, rng, random_im2col(rng, rank, swizzle))


def check_stores(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, description: Description, at: tuple[int, ...]
) -> None:
    """One copy: the box lands where it is in the tensor, and nowhere else."""
    im2col = isinstance(description, Im2colMap)
    data = finite_bytes(rng, tensor_bytes(description))
    tensor = bench.put(data, "tensor")
    nbytes, front = box_bytes(description), 128 * int(rng.integers(0, 9))
    shown = shown_bytes(description, nbytes)
    box = rng.integers(0, 256, shown, dtype=np.uint8)
    module = bench.machine.load(compile_cuda(store_kernel(description.rank, im2col), ARCH))
    arguments = (encode(replace(description, address=tensor)), bench.put(np.array(at, np.int32)), bench.put(box))
    bench.run(module, "store", 1, 32, *arguments, np.int32(shown), np.int32(front), shared=front + shown)
    size = description.data_type.size_bytes
    wanted = data.copy()
    for number, place in enumerate(sources(description, at, (0,) * (description.rank - 2))):
        if oracle.in_tensor(description, place):
            for byte in range(size):
                of = oracle.shared_offset(description, front, number * size + byte)
                wanted[oracle.byte_of(description, place) + byte] = box[of]
    np.testing.assert_array_equal(bench.get(tensor, data.size, np.uint8), wanted, err_msg=f"{description} {at}")


@pytest.mark.parametrize("rank", range(1, 6))
def test_tiled_stores_clip(bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int) -> None:
    for swizzle in SWIZZLES:
        tiled = random_tiled(rng, rank, swizzle)
        check_stores(bench, compile_cuda, rng, tiled, tile_start(rng, tiled, inside=True))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_im2col_stores(bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int) -> None:
    for swizzle in SWIZZLES:
        im2col = random_im2col(rng, rank, swizzle, inside=True)
        check_stores(bench, compile_cuda, rng, im2col, pixel_start(rng, im2col, inside=True)[0])


REDUCTIONS: list[tuple[TensorMapDataType, Any, str, Callable[[Any, Any], Any]]] = [
    (TensorMapDataType.FLOAT32, np.float32, "add", np.add),
    (TensorMapDataType.FLOAT16, np.float16, "add", np.add),
    (TensorMapDataType.UINT32, np.uint32, "add", np.add),
    (TensorMapDataType.INT32, np.int32, "min", np.minimum),
    (TensorMapDataType.UINT64, np.uint64, "max", np.maximum),
    (TensorMapDataType.INT64, np.int64, "max", np.maximum),
    (TensorMapDataType.FLOAT16, np.float16, "min", np.minimum),
    (TensorMapDataType.UINT32, np.uint32, "and", np.bitwise_and),
    (TensorMapDataType.UINT64, np.uint64, "or", np.bitwise_or),
    (TensorMapDataType.UINT32, np.uint32, "xor", np.bitwise_xor),
    (TensorMapDataType.UINT32, np.uint32, "inc", lambda old, new: np.where(old >= new, 0, old + 1)),
    (TensorMapDataType.UINT32, np.uint32, "dec", lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
]


@pytest.mark.parametrize(("data_type", "dtype", "operation", "combine"), REDUCTIONS)
def test_reductions(
    bench: Bench,
    compile_cuda: Compile,
    rng: np.random.Generator,
    data_type: TensorMapDataType,
    dtype: Any,
    operation: str,
    combine: Callable[[Any, Any], Any],
) -> None:
    """Two CTAs reduce boxes that overlap in half of their rows, and that stick out of the tensor."""
    width = 32 // np.dtype(dtype).itemsize
    old = rng.integers(0, 100, (12, width)).astype(dtype)
    boxes = rng.integers(0, 100, (2, 8, width)).astype(dtype)
    tensor = bench.put(old, "tensor")
    tiled = TiledMap(data_type, tensor, (width, 12), (32,), (width, 8), (1, 1))
    module = bench.machine.load(compile_cuda(store_kernel(2, reduction=operation), ARCH))
    arguments = (encode(tiled), bench.put(np.array([[0, 2], [0, 6]], np.int32)), bench.put(boxes))
    bench.run(module, "store", 2, 32, *arguments, np.int32(256), np.int32(0), shared=256)
    wanted = old.copy()
    wanted[2:10] = combine(wanted[2:10], boxes[0])
    wanted[6:] = combine(wanted[6:], boxes[1, :6])
    np.testing.assert_array_equal(bench.get(tensor, old.shape, dtype), wanted)


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("policy", POLICIES)
def test_multicast(bench: Bench, compile_cuda: Compile, policy: str, landing: str) -> None:
    data = np.arange(32 * 32, dtype=np.uint32).reshape(32, 32)
    tiled = TiledMap(TensorMapDataType.UINT32, bench.put(data), (32, 32), (128,), (32, 8), (1, 1))
    out = bench.empty(4 * 512 * 4)
    module = bench.machine.load(compile_cuda(MULTICAST, ARCH))
    bench.run(module, "multicast", 4, 64, encode(tiled), out, cluster=2, policy=policy, landing=landing)
    got = bench.get(out, (4, 2, 8, 32), np.uint32)
    for block in range(4):
        first = block // 2 * 16
        np.testing.assert_array_equal(got[block, 0], data[first : first + 8])
        np.testing.assert_array_equal(got[block, 1], data[first + 8 * (block % 2) :][:8])


# -- values -----------------------------------------------------------------------------------------------------------
def load_rows(bench: Bench, compile_cuda: Compile, tiled: TiledMap, at: tuple[int, int], dtype: Any) -> Any:
    module = bench.machine.load(compile_cuda(load_kernel(2), ARCH))
    nbytes = box_bytes(tiled)
    out = bench.empty(nbytes)
    counts = (np.int32(nbytes), np.int32(nbytes), np.int32(0))
    bench.run(module, "load", 1, 32, encode(tiled), bench.put(np.array(at, np.int32)), out, *counts, shared=nbytes)
    return bench.get(out, tiled.box[::-1], dtype)


@pytest.mark.parametrize("data_type", [TensorMapDataType.FLOAT16, TensorMapDataType.BFLOAT16])
def test_nan_fill(bench: Bench, compile_cuda: Compile, data_type: TensorMapDataType) -> None:
    fill = TensorMapOobFill.NAN_REQUEST_ZERO_FMA
    tensor = bench.put(np.ones((2, 16), np.uint16))
    tiled = TiledMap(data_type, tensor, (12, 2), (32,), (8, 3), (1, 1), oob_fill=fill)
    got = load_rows(bench, compile_cuda, tiled, (8, 0), np.uint16)
    wanted = np.full((3, 8), 0x7FF7, np.uint16)
    wanted[:2, :4] = 1
    np.testing.assert_array_equal(got, wanted)


def test_tf32_loads_round(bench: Bench, compile_cuda: Compile) -> None:
    """Also beside elements that are not in the tensor."""
    data = np.full((2, 4), 0x2B2CF856, np.uint32)
    tiled = TiledMap(TensorMapDataType.TFLOAT32, bench.put(data), (4, 2), (16,), (4, 3), (1, 1))
    got = load_rows(bench, compile_cuda, tiled, (0, 0), np.uint32)
    np.testing.assert_array_equal(got, [[0x2B2D0000] * 4] * 2 + [[0] * 4])


# -- faults -----------------------------------------------------------------------------------------------------------
GOOD = TiledMap(TensorMapDataType.UINT32, 1 << 20, (32, 8), (128,), (32, 8), (1, 1))


def load_fault(
    bench: Bench,
    compile_cuda: Compile,
    content: bytes,
    rank: int = 2,
    front: int = 0,
    im2col: bool = False,
    at: tuple[int, ...] = (0,) * 8,
) -> str:
    module = bench.machine.load(compile_cuda(load_kernel(rank, im2col), ARCH))
    table = bench.put(np.array(at, np.int32))
    counts = (np.int32(1024), np.int32(1024), np.int32(front))
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "load", 1, 32, content, table, bench.empty(1024), *counts, shared=1024 + front % 128)
    return str(caught.value)


def test_garbage_is_no_tensor_map(bench: Bench, compile_cuda: Compile) -> None:
    report = load_fault(bench, compile_cuda, bytes(range(128)))
    assert report.startswith("invalid-tensor-map: the 128 bytes at 0x")
    assert "are no tensor map" in report
    assert "parameters of load" in report
    assert "cp.async.bulk.tensor" in report
    good = bytearray(encode(replace(GOOD, address=bench.put(np.zeros(256, np.uint32)))))
    good[50] ^= 1
    assert "are no tensor map" in load_fault(bench, compile_cuda, bytes(good))


def test_a_map_of_another_rank_or_kind(bench: Bench, compile_cuda: Compile) -> None:
    tensor = bench.put(np.zeros(256, np.uint32))
    content = encode(replace(GOOD, address=tensor))
    assert "takes tiled maps of 3 dimensions, this map is tiled and has 2" in load_fault(
        bench, compile_cuda, content, rank=3
    )
    im2col = Im2colMap(TensorMapDataType.UINT32, tensor, (4, 8, 8), (16, 128), (0,), (0,), 4, 64, (1, 1, 1))
    assert "takes tiled maps of 3 dimensions, this map is im2col and has 3" in load_fault(
        bench, compile_cuda, encode(im2col), rank=3
    )


def test_a_tensor_past_its_buffer(bench: Bench, compile_cuda: Compile) -> None:
    content = encode(replace(GOOD, address=bench.put(np.zeros(7 * 32, np.uint32), "short")))
    report = load_fault(bench, compile_cuda, content)
    assert report.startswith("out-of-bounds: ")
    assert "past the end of short (896 bytes)" in report


def test_never_written_bytes_of_the_tensor(bench: Bench, compile_cuda: Compile) -> None:
    content = encode(replace(GOOD, address=bench.empty(1024, "empty")))
    report = load_fault(bench, compile_cuda, content)
    assert report.startswith("uninitialised-read: ")
    assert "empty" in report


def test_a_misaligned_or_too_small_destination(bench: Bench, compile_cuda: Compile) -> None:
    content = encode(replace(GOOD, address=bench.put(np.zeros(256, np.uint32))))
    assert "misaligned: " in load_fault(bench, compile_cuda, content, front=64)
    assert "shared-out-of-bounds: " in load_fault(bench, compile_cuda, content, front=128)


def test_a_first_pixel_beyond_the_box(bench: Bench, compile_cuda: Compile) -> None:
    tensor = bench.put(np.zeros(256, np.uint32))
    im2col = Im2colMap(TensorMapDataType.UINT32, tensor, (4, 8, 8), (16, 128), (-4,), (-8,), 4, 64, (1, 1, 1))
    report = load_fault(bench, compile_cuda, encode(im2col), rank=3, im2col=True)
    assert "coordinates {0, 0, 0}: the first pixel lies outside the map's box of pixels" in report


def test_addresses_wrap_around_and_their_memory_is_checked(bench: Bench, compile_cuda: Compile) -> None:
    """The 64 rows end at row 2^30 of a map whose last two strides add up to 2^34 bytes."""
    end, row_bytes = 1 << 30, 16
    tensor = bench.put(np.arange(256, dtype=np.uint32), "rows")
    dims, strides = (4, end, 1 << 31, end + 1), (row_bytes, row_bytes, (1 << 34) - row_bytes)
    content = encode(TiledMap(TensorMapDataType.UINT32, tensor, dims, strides, (4, 64, 1, 1), (1,) * 4))
    module, out = bench.machine.load(compile_cuda(load_kernel(4), ARCH)), bench.empty(1024)
    counts = (np.int32(1024), np.int32(1024), np.int32(0))
    for first, length in ((0, 64), (60, 4), (64, 0)):
        at = bench.put(np.array((0, end - length, first + length, end), np.int32))
        bench.run(module, "load", 1, 32, content, at, out, *counts, shared=1024)
        expected = np.zeros(256, np.uint32)
        expected[: 4 * length] = np.arange(4 * first, 4 * (first + length))
        np.testing.assert_array_equal(bench.get(out, 256, np.uint32), expected)
    report = load_fault(bench, compile_cuda, content, rank=4, at=(0, end - 4, 65, end))
    assert "16 bytes past the end of rows (1024 bytes)" in report
    report = load_fault(bench, compile_cuda, content, rank=4, at=(0, end - 4, 3, end))
    assert "16 bytes before the start of rows" in report


def test_stores_into_constant_and_freed_memory(bench: Bench, compile_cuda: Compile) -> None:
    module = bench.machine.load(compile_cuda(store_kernel(2), ARCH))
    box = bench.put(np.zeros(256, np.uint32))
    constant = bench.memory.allocate(1024, "table", read_only=True)
    freed = bench.put(np.zeros(256, np.uint32), "gone")
    bench.memory.free(freed)
    for tensor, report in ((constant, "write-to-read-only: a store into table"), (freed, "gone has been freed")):
        arguments = (encode(replace(GOOD, address=tensor)), bench.put(np.zeros(2, np.int32)), box)
        with pytest.raises(EmulationFault, match=report):
            bench.run(module, "store", 1, 32, *arguments, np.int32(1024), np.int32(0), shared=1024)


def test_coordinates_that_hardware_refuses(bench: Bench, compile_cuda: Compile) -> None:
    tensor = bench.put(np.zeros(256, np.uint32))
    content = encode(replace(GOOD, address=tensor))
    report = load_fault(bench, compile_cuda, content, at=(-2, 0))
    assert report.startswith("invalid-tensor-copy: coordinates {-2, 0}: rows must begin at a multiple of 16 bytes")
    module = bench.machine.load(compile_cuda(store_kernel(2), ARCH))
    arguments = (content, bench.put(np.array([0, -1], np.int32)), bench.put(np.zeros(256, np.uint32)))
    with pytest.raises(EmulationFault, match=r"coordinates \{0, -1\}: a store may not begin at a negative") as caught:
        bench.run(module, "store", 1, 32, *arguments, np.int32(1024), np.int32(0), shared=1024)
    assert caught.value.result == 715
