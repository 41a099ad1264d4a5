"""The test kernels: for each its text, and a host side that runs it on small data and compares with NumPy.

The sizes make every stage of a pipeline serve at least twice and every guard matter. Data are small integers, so that
sums are exact and results must be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from lowdnn.driver import nvrtc
from lowdnn.driver.base import LaunchConfig
from lowdnn.runtime.compile import lowered
from lowdnn.tensor_map import TensorMapDataType, TensorMapSwizzle
from tests.driver.emulated.mutation.device import Device

Check = Callable[[Device, np.random.Generator], None]

_FOLDER = Path(__file__).parent / "kernels"
_ARCH = "--gpu-architecture=compute_90a"


@dataclass(frozen=True)
class Program:
    """``check`` launches on a device that has the program's PTX and raises AssertionError for a wrong result."""

    name: str
    check: Check
    macros: tuple[str, ...] = ()

    def ptx(self) -> str:
        return _compiled(self.name, self.macros)

    def __str__(self) -> str:
        return self.name


@cache
def _compiled(name: str, macros: tuple[str, ...]) -> str:
    headers = {path.name: path.read_text() for path in _FOLDER.glob("*.cuh")}
    source = (_FOLDER / f"{name}.cu").read_text()
    options = (_ARCH, "-default-device", *macros)
    return lowered(nvrtc.compile_program(source, name=f"{name}.cu", headers=headers, options=options).image).decode()


def tree_reduction(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, 1300)
    y = device.empty(3 * 4, "y")
    device.launch("tree_reduction", line(3, 128), device.put(x, "x"), y, np.int32(x.size))
    expected = np.pad(x, (0, 3 * 512 - x.size)).reshape(3, 512).sum(1)
    np.testing.assert_array_equal(device.get(y, 3, np.float32), expected)


def tiled_matmul(device: Device, rng: np.random.Generator) -> None:
    m, n, k = 20, 30, 40
    a, b = integers(rng, (m, k)), integers(rng, (k, n))
    c = device.empty(4 * m * n, "c")
    config = LaunchConfig((2, 2, 1), (256, 1, 1))
    device.launch("tiled_matmul", config, device.put(a, "a"), device.put(b, "b"), c, *map(np.int32, (m, n, k)))
    np.testing.assert_array_equal(device.get(c, (m, n), np.float32), a @ b)


def softmax(device: Device, rng: np.random.Generator) -> None:
    check_softmax(device, rng, (3, 300))


def cp_async_pipeline(device: Device, rng: np.random.Generator) -> None:
    m, n, k = 40, 50, 96
    a, b = integers(rng, (m, k)), integers(rng, (n, k))
    c = device.empty(4 * m * n, "c")
    config = LaunchConfig((2, 2, 1), (128, 1, 1))
    operands = device.put(bf16(a), "a"), device.put(bf16(b), "b")
    device.launch("cp_async_pipeline", config, *operands, c, *map(np.int32, (m, n, k)))
    np.testing.assert_array_equal(device.get(c, (m, n), np.float32), a @ b.T)


def named_barriers(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, 6 * 64)
    y = device.empty(x.nbytes, "y")
    device.launch("named_barriers", line(1, 96), device.put(x, "x"), y, np.int32(x.size))
    np.testing.assert_array_equal(device.get(y, x.size, np.float32), 2 * x + 1)


def mbarrier_exchange(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, (5, 64))
    y = device.empty(x.nbytes, "y")
    device.launch("mbarrier_exchange", line(1, 64), device.put(x, "x"), y, np.int32(x.size))
    np.testing.assert_array_equal(device.get(y, x.shape, np.float32), x[:, ::-1])


def last_block_sums(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, (4, 64))
    parts, y = device.empty(x.nbytes, "parts"), device.empty(4 * 64, "y")
    counter = device.put(np.zeros(1, np.uint32), "counter")
    device.launch("last_block_sums", line(4, 64), device.put(x, "x"), parts, counter, y)
    np.testing.assert_array_equal(device.get(y, 64, np.float32), 2 * x.sum(0))


def block_to_block(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, 64)
    middle, y = device.empty(x.nbytes, "middle"), device.empty(x.nbytes, "y")
    flag = device.put(np.zeros(1, np.uint32), "flag")
    config = LaunchConfig((2, 1, 1), (64, 1, 1), cooperative=True)
    device.launch("block_to_block", config, device.put(x, "x"), middle, flag, y)
    np.testing.assert_array_equal(device.get(y, 64, np.float32), x[::-1])


def cluster_reduction(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, (2, 1024))
    y = device.empty(2 * 4, "y")
    config = LaunchConfig((8, 1, 1), (64, 1, 1), cluster=(4, 1, 1))
    device.launch("cluster_reduction", config, device.put(x, "x"), y)
    np.testing.assert_array_equal(device.get(y, 2, np.float32), x.sum(1))


def dependent_launch(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, 3 * 64)
    middle, y = device.empty(x.nbytes, "middle"), device.empty(x.nbytes, "y")
    device.launch("first", line(3, 64), device.put(x, "x"), middle)
    device.launch("second", LaunchConfig((3, 1, 1), (64, 1, 1), programmatic_serialization=True), middle, y)
    np.testing.assert_array_equal(device.get(y, x.size, np.float32), 2 * x + 1)


def bulk_pipeline(device: Device, rng: np.random.Generator) -> None:
    x = integers(rng, 10 * 128)
    y = device.empty(x.nbytes, "y")
    device.launch("bulk_pipeline", line(2, 160), device.put(x, "x"), y, np.int32(x.size))
    np.testing.assert_array_equal(device.get(y, x.size, np.float32), 2 * x + 1)


def wgmma_pipeline(device: Device, rng: np.random.Generator) -> None:
    """Two blocks, two tiles each, two stages for four steps of k."""
    check_wgmma_pipeline(device, rng, (256, 128, 256), warpgroups=2, block_n=64, stages=2, blocks=2)


def cluster_multicast(device: Device, rng: np.random.Generator) -> None:
    m, k = 256, 256
    a, b = integers(rng, (m, k)), integers(rng, (64, k))
    c = device.empty(4 * m * 64, "c")
    maps = bf16_map(device, a, "a", (64, 64)), bf16_map(device, b, "b", (32, 64))
    config = LaunchConfig((m // 64, 1, 1), (160, 1, 1), 2 * 2 * 64 * 128, cluster=(2, 1, 1))
    device.launch("cluster_multicast", config, *maps, c, np.int32(k))
    np.testing.assert_array_equal(device.get(c, (m, 64), np.float32), a @ b.T)


def check_wgmma_pipeline(
    device: Device,
    rng: np.random.Generator,
    sizes: tuple[int, int, int],
    *,
    warpgroups: int,
    block_n: int,
    stages: int,
    blocks: int,
) -> None:
    """One launch of ``wgmma_pipeline``, compiled for these numbers, on sizes m, n, k."""
    m, n, k = sizes
    block_m = 64 * warpgroups
    a, b = integers(rng, (m, k)), integers(rng, (n, k))
    c = device.empty(4 * m * n, "c")
    maps = (
        bf16_map(device, a, "a", (block_m, 64)),
        bf16_map(device, b, "b", (block_n, 64)),
        device.tensor_map(TensorMapDataType.FLOAT32, c, (m, n), (64, 32)),
    )
    shared_bytes = stages * (block_m + block_n) * 128 + block_m * block_n * 4
    config = LaunchConfig((blocks, 1, 1), (128 * warpgroups + 32, 1, 1), shared_bytes)
    device.launch("wgmma_pipeline", config, *maps, *map(np.int32, sizes))
    np.testing.assert_array_equal(device.get(c, (m, n), np.float32), a @ b.T)


def check_softmax(device: Device, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    """One launch of ``softmax`` on (rows, columns), of which at most 1024 columns."""
    x = rng.standard_normal(shape).astype(np.float32) * 4
    y = device.empty(x.nbytes, "y")
    device.launch("softmax", line(shape[0], 128), device.put(x, "x"), y, np.int32(shape[1]))
    exponentials = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = exponentials / exponentials.sum(1, keepdims=True)
    np.testing.assert_allclose(device.get(y, shape, np.float32), expected, rtol=1e-5)


PROGRAMS = {
    program.name: program
    for program in (
        Program("tree_reduction", tree_reduction),
        Program("tiled_matmul", tiled_matmul),
        Program("softmax", softmax),
        Program("cp_async_pipeline", cp_async_pipeline),
        Program("named_barriers", named_barriers),
        Program("mbarrier_exchange", mbarrier_exchange),
        Program("last_block_sums", last_block_sums),
        Program("block_to_block", block_to_block),
        Program("cluster_reduction", cluster_reduction),
        Program("dependent_launch", dependent_launch),
        Program("bulk_pipeline", bulk_pipeline),
        Program("wgmma_pipeline", wgmma_pipeline, ("-DWARPGROUPS=2", "-DBLOCK_N=64", "-DSTAGES=2")),
        Program("cluster_multicast", cluster_multicast),
    )
}


def line(blocks: int, threads: int) -> LaunchConfig:
    return LaunchConfig((blocks, 1, 1), (threads, 1, 1))


def integers(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    return rng.integers(-8, 9, shape).astype(np.float32)


def bf16(values: np.ndarray) -> np.ndarray:
    """Numbers that bfloat16 holds, as its bits."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def bf16_map(device: Device, matrix: np.ndarray, label: str, box: tuple[int, int]) -> bytes:
    address = device.put(bf16(matrix), label)
    return device.tensor_map(TensorMapDataType.BFLOAT16, address, matrix.shape, box, TensorMapSwizzle.BYTES_128)
