"""Tensor copies in kernels, against an element-by-element oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.memory.tensor_map import encode
from lowdnn.driver.tensor_map import Im2colMap, TensorMapSwizzle, TiledMap
from tests.driver.emulated import tensor_oracle as oracle
from tests.driver.emulated.conftest import Bench
from tests.driver.emulated.tensor_cases import (
    SWIZZLES,
    pixel_start,
    random_im2col,
    random_tiled,
    tensor_bytes,
    tile_start,
)
from tests.driver.emulated.tensor_kernels import load_kernel

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
    tile = np.full(-(-nbytes // 128) * 128, 0xEE, np.uint8)
    for number, at in enumerate(places):
        for byte in range(size):
            to = oracle.swizzled(description.swizzle, base + number * size + byte) - base
            inside = oracle.in_tensor(description, at)
            tile[to] = data[oracle.byte_of(description, at) + byte] if inside else 0
    return tile


def box_bytes(description: Description) -> int:
    rank = description.rank
    return len(sources(description, (0,) * rank, (0,) * (rank - 2))) * description.data_type.size_bytes


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
    moved = encode(replaced(description, tensor))
    module = bench.machine.load(compile_cuda(load_kernel(description.rank, im2col, hint), ARCH))
    nbytes, front = box_bytes(description), 128 * int(rng.integers(0, 9))
    table = bench.put(np.array([(*at, *offsets) for at, offsets in copies], np.int32))
    shown = -(-nbytes // 128) * 128
    out = bench.empty(3 * shown)
    counts = [np.int32(number) for number in (shown, nbytes, front)]
    bench.run(module, "load", 3, 32, moved, table, out, *counts, shared=front + shown, checks=False)
    got = bench.get(out, (3, shown), np.uint8)
    for row, (at, offsets) in enumerate(copies):
        wanted = loaded(description, data, sources(description, at, offsets), front, nbytes)
        lands = wanted != 0xEE
        np.testing.assert_array_equal(got[row][lands], wanted[lands], err_msg=f"{description} {at} {offsets}")


def replaced(description: Description, address: int) -> Description:
    from dataclasses import replace

    return replace(description, address=address)


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
