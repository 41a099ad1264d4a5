"""Tensor copies in kernels, against an element-by-element oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault
from lowdnn.driver.emulated.memory.tensor_map import encode
from lowdnn.driver.tensor_map import Im2colMap, TensorMapDataType, TensorMapOobFill, TensorMapSwizzle, TiledMap
from tests.driver.emulated import tensor_oracle as oracle
from tests.driver.emulated.conftest import POLICIES, Bench
from tests.driver.emulated.tensor_cases import (
    SWIZZLES,
    pixel_start,
    random_im2col,
    random_tiled,
    tensor_bytes,
    tile_start,
)
from tests.driver.emulated.tensor_kernels import MULTICAST, load_kernel, store_kernel

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
    if description.data_type in (TensorMapDataType.TFLOAT32, TensorMapDataType.TFLOAT32_FTZ):
        data = tf32_rounded(data)
    tile = np.full(shared_bytes(description, nbytes), 0xEE, np.uint8)
    for number, at in enumerate(places):
        for byte in range(size):
            to = oracle.swizzled(description.swizzle, base + oracle.shared_offset(description, number) + byte) - base
            inside = oracle.in_tensor(description, at)
            tile[to] = data[oracle.byte_of(description, at) + byte] if inside else 0
    return tile


def box_bytes(description: Description) -> int:
    rank = description.rank
    return len(sources(description, (0,) * rank, (0,) * (rank - 2))) * description.data_type.size_bytes


def shared_bytes(description: Description, nbytes: int) -> int:
    """Shared memory of a box of ``nbytes``: whole rows of the swizzle, whole 128 bytes."""
    count = nbytes // description.data_type.size_bytes
    end = oracle.shared_offset(description, count - 1) + description.data_type.size_bytes
    return -(-max(end, description.swizzle.span_bytes) // 128) * 128


def tf32_rounded(data: Any) -> Any:
    """Positive finite float32 as bytes, rounded to nearest even."""
    bits = data.view(np.uint32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).astype(np.uint32).view(np.uint8)


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
    shown = shared_bytes(description, nbytes)
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
    shown = shared_bytes(description, nbytes)
    box = rng.integers(0, 256, shown, dtype=np.uint8)
    module = bench.machine.load(compile_cuda(store_kernel(description.rank, im2col), ARCH))
    arguments = (encode(replace(description, address=tensor)), bench.put(np.array(at, np.int32)), bench.put(box))
    bench.run(module, "store", 1, 32, *arguments, np.int32(shown), np.int32(front), shared=front + shown)
    size = description.data_type.size_bytes
    wanted = data.copy()
    for number, place in enumerate(sources(description, at, (0,) * (description.rank - 2))):
        if oracle.in_tensor(description, place):
            for byte in range(size):
                offset = oracle.shared_offset(description, number) + byte
                of = oracle.swizzled(description.swizzle, front + offset) - front
                wanted[oracle.byte_of(description, place) + byte] = box[of]
    np.testing.assert_array_equal(bench.get(tensor, data.size, np.uint8), wanted, err_msg=f"{description} {at}")


@pytest.mark.parametrize("rank", range(1, 6))
def test_tiled_stores_clip(bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int) -> None:
    for swizzle in SWIZZLES:
        tiled = random_tiled(rng, rank, swizzle)
        check_stores(bench, compile_cuda, rng, tiled, tile_start(rng, tiled, store=True))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_im2col_stores(bench: Bench, compile_cuda: Compile, rng: np.random.Generator, rank: int) -> None:
    for swizzle in SWIZZLES:
        corner = (0,) * (rank - 2)
        im2col = replace(random_im2col(rng, rank, swizzle), lower_corner=corner, upper_corner=corner)
        check_stores(bench, compile_cuda, rng, im2col, pixel_start(rng, im2col, store=True)[0])


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


@pytest.mark.parametrize(
    ("data_type", "bits", "nan"),
    [
        (TensorMapDataType.FLOAT16, np.uint16, 0x7FF7),
        (TensorMapDataType.BFLOAT16, np.uint16, 0x7FF7),
        (TensorMapDataType.FLOAT32, np.uint32, 0x7FF7_7FF7),
    ],
)
def test_nan_fill(bench: Bench, compile_cuda: Compile, data_type: TensorMapDataType, bits: Any, nan: int) -> None:
    width = 32 // np.dtype(bits).itemsize
    data = np.ones((2, width), bits)
    fill = TensorMapOobFill.NAN_REQUEST_ZERO_FMA
    tiled = TiledMap(data_type, bench.put(data), (width - 1, 2), (32,), (width, 3), (1, 1), oob_fill=fill)
    got = load_rows(bench, compile_cuda, tiled, (width // 2, 0), bits)
    wanted = np.full((3, width), nan, bits)
    wanted[:2, : width // 2 - 1] = 1
    np.testing.assert_array_equal(got, wanted)


# -- faults -----------------------------------------------------------------------------------------------------------
GOOD = TiledMap(TensorMapDataType.UINT32, 1 << 20, (32, 8), (128,), (32, 8), (1, 1))


def load_fault(
    bench: Bench, compile_cuda: Compile, content: bytes, rank: int = 2, front: int = 0, im2col: bool = False
) -> str:
    module = bench.machine.load(compile_cuda(load_kernel(rank, im2col), ARCH))
    table = bench.put(np.zeros(8, np.int32))
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
    assert "wants a tiled map of 3 dimensions, this one is a tiled map of 2" in load_fault(
        bench, compile_cuda, content, rank=3
    )
    im2col = Im2colMap(TensorMapDataType.UINT32, tensor, (4, 8, 8), (16, 128), (0,), (0,), 4, 64, (1, 1, 1))
    assert "wants a tiled map of 3 dimensions, this one is a im2col map" in load_fault(
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


@pytest.mark.parametrize("at", [(1, 0), (-6, 0), (3, 7)])
def test_a_row_that_begins_inside_16_bytes(bench: Bench, compile_cuda: Compile, at: tuple[int, int]) -> None:
    tiled = replace(GOOD, address=bench.put(np.zeros(256, np.uint32)))
    with pytest.raises(EmulationFault, match=r"invalid-coordinates: .* does not begin at a whole 16 bytes of its row"):
        load_rows(bench, compile_cuda, tiled, at, np.uint32)


def test_a_store_at_a_negative_coordinate(bench: Bench, compile_cuda: Compile, rng: np.random.Generator) -> None:
    with pytest.raises(EmulationFault, match=r"first element \(4, -1\) is negative, which a store must not be"):
        check_stores(bench, compile_cuda, rng, GOOD, (4, -1))


def test_a_first_pixel_beyond_the_box(bench: Bench, compile_cuda: Compile) -> None:
    tensor = bench.put(np.zeros(256, np.uint32))
    im2col = Im2colMap(TensorMapDataType.UINT32, tensor, (4, 8, 8), (16, 128), (-4,), (-8,), 4, 64, (1, 1, 1))
    report = load_fault(bench, compile_cuda, encode(im2col), rank=3, im2col=True)
    assert "invalid-coordinates: the copy's first element (0, 0, 0) lies outside of the tensor map's box" in report
