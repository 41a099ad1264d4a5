"""Tensor maps through plans, on the emulated device and on a GPU: kernels copy with maps whose addresses change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from lowdnn.driver.base import DeviceAttribute, Driver
from lowdnn.enums import DataType
from lowdnn.plan import (
    KernelRef,
    Launch,
    Plan,
    PlanTensor,
    Pointer,
    Scalar,
    ScalarType,
    Struct,
    TensorMap,
    TensorPointer,
    WorkspacePointer,
)
from lowdnn.runtime import loaded_plan
from lowdnn.runtime.runtime import Runtime
from lowdnn.runtime.stream import Stream
from lowdnn.runtime.tensor_maps import encode_map
from lowdnn.runtime.workspace import Workspace, size_anywhere
from lowdnn.status import MisalignedPointerError
from lowdnn.tensor_map import Im2colMap, TensorMapDataType, TensorMapLayout, TensorMapSwizzle, TiledMap
from tests.driver.emulated.copying.tensor_cases import SWIZZLES, random_im2col, random_tiled
from tests.support.data import fresh_seed
from tests.support.runtime import download, open_runtime, upload, write_sources

#: Copies a column of 32 pixels of C channels each: from the image ``x`` shifted by one row and two columns (IM2COL), or
#: from the same rows of the matrix ``x``; block b the b-th 32 rows of ``y``.
COPY_SOURCE = """
struct alignas(64) TensorMap { unsigned long long words[16]; };
struct Params { int width, height; TensorMap x; TensorMap y; };
extern "C" __global__ void KERNEL_NAME(const __grid_constant__ Params p) {
  __shared__ alignas(1024) float tile[32 * CHANNELS];
  __shared__ alignas(8) unsigned long long full;
  unsigned barrier = (unsigned)__cvta_generic_to_shared(&full), to = (unsigned)__cvta_generic_to_shared(tile);
  int row = 32 * blockIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :: "r"(barrier), "r"((unsigned)sizeof(tile)) : "memory");
#if IM2COL
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
               :: "r"(to), "l"(&p.x), "r"(barrier), "r"(0), "r"(row % p.width - 1),
                  "r"(row / p.width % p.height - 1), "r"(row / p.width / p.height),
                  "h"((unsigned short)2), "h"((unsigned short)0) : "memory");
#else
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4}], [%2];" :: "r"(to), "l"(&p.x), "r"(barrier), "r"(0), "r"(row) : "memory");
#endif
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra again; }"
               :: "r"(barrier) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%1, {%2, %3}], [%0];"
               :: "r"(to), "l"(&p.y), "r"(0), "r"(row) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""
CHANNELS = 32
X, Y = 1, 2
#: (images, height, width): 12 KB, and 192 KB, which drivers may describe otherwise.
SHAPES = [(1, 8, 12), (4, 16, 24)]


def copy_plan(shape: tuple[int, int, int], is_im2col: bool, through_workspace: bool = False) -> Plan:
    """y = x, shifted where ``is_im2col``; twice by way of the workspace, the second launch being a dependent one."""
    images, height, width = shape
    size_bytes = 4 * CHANNELS * images * height * width
    kernels = [_kernel(is_im2col), _kernel(is_im2col=False)]
    middle: Pointer = WorkspacePointer(256) if through_workspace else TensorPointer(Y)
    launches = [_launch(0, shape, TensorPointer(X), middle, is_im2col)]
    if through_workspace:
        launches.append(replace(_launch(1, shape, middle, TensorPointer(Y)), overlaps_previous=True))
    return Plan(
        engine="test_copy",
        engine_index=0,
        graph_key="copy",
        target_arch="sm_90a",
        choices=(),
        kernels=tuple(kernels[: len(launches)]),
        launches=tuple(launches),
        tensors=(
            PlanTensor(X, "x", DataType.FLOAT, size_bytes, 16, is_output=False),
            PlanTensor(Y, "y", DataType.FLOAT, size_bytes, 16, is_output=True),
        ),
        workspace_bytes=256 + size_bytes if through_workspace else 0,
    )


def _kernel(is_im2col: bool) -> KernelRef:
    kind = "im2col" if is_im2col else "tiled"
    macros = (("CHANNELS", CHANNELS), ("IM2COL", int(is_im2col)))
    return KernelRef(f"test_copy_{kind}_f32_sm90a", "test/copy.cu", "sm_90a", macros)


def _launch(
    kernel: int, shape: tuple[int, int, int], source: Pointer, target: Pointer, is_im2col: bool = False
) -> Launch:
    images, height, width = shape
    rows = images * height * width
    matrix = TiledMap(TensorMapDataType.FLOAT32, 0, (CHANNELS, rows), (4 * CHANNELS,), (CHANNELS, 32), (1, 1))
    image = Im2colMap(
        TensorMapDataType.FLOAT32,
        0,
        (CHANNELS, width, height, images),
        (4 * CHANNELS, 4 * CHANNELS * width, 4 * CHANNELS * width * height),
        (-1, -1),
        (-1, -1),
        CHANNELS,
        32,
        (1, 1, 1, 1),
    )
    arguments = Struct(
        (
            Scalar(ScalarType.I32, width),
            Scalar(ScalarType.I32, height),
            TensorMap(source, image if is_im2col else matrix),
            TensorMap(target, matrix),
        )
    )
    return Launch(kernel, (rows // 32, 1, 1), (32, 1, 1), (arguments,))


def expected(x: NDArray[Any], is_im2col: bool) -> NDArray[Any]:
    if not is_im2col:
        return x
    shifted = np.zeros_like(x)
    shifted[:, 1:, :-1] = x[:, :-1, 1:]
    return shifted


@pytest.fixture
def runtime(device: Runtime, tmp_path: Path) -> Iterator[Runtime]:
    if not device.context.attribute(DeviceAttribute.CLUSTER_LAUNCH):
        pytest.skip("the GPU copies no tensors")
    sources = write_sources(tmp_path, {"test/copy.cu": COPY_SOURCE})
    with open_runtime(device.driver, tmp_path / "cache", sources=sources) as opened:
        yield opened


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fresh seed; pytest shows the line below when the test fails."""
    seed = fresh_seed()
    print(f"seed = {seed}")  # noqa: T201
    return np.random.default_rng(seed)


@pytest.mark.parametrize("hides", [False, True], ids=["patched", "replaced"])
@pytest.mark.parametrize("is_im2col", [False, True], ids=["tiled", "im2col"])
@pytest.mark.parametrize("shape", SHAPES)
def test_copies_follow_the_addresses(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], is_im2col: bool, hides: bool
) -> None:
    if hides:
        monkeypatch.setattr(
            loaded_plan, "encode_map", lambda driver, layout: replace(encode_map(driver, layout), address_word=None)
        )
    loaded = runtime.load(copy_plan(shape, is_im2col, through_workspace=True))
    x = np.arange(np.prod(shape) * CHANNELS, dtype=np.float32).reshape(*shape, CHANNELS)
    for number, offset in enumerate((0, 1, 252)):
        buffers = upload(runtime, x + number), upload(runtime, np.full_like(x, np.nan))
        with Workspace(runtime.context, offset + size_anywhere(loaded.plan.workspace_bytes)) as workspace:
            loaded.execute((buffers[0].address, buffers[1].address), workspace.address + offset)
            got = download(buffers[1], np.float32).reshape(x.shape)
        np.testing.assert_array_equal(got, expected(x + number, is_im2col))


def test_tensors_need_to_be_aligned_for_copies_only(runtime: Runtime) -> None:
    loaded = runtime.load(copy_plan(SHAPES[0], is_im2col=False))
    rows = np.prod(SHAPES[0])
    x = np.arange((rows + 1) * CHANNELS, dtype=np.float32)
    x_buffer, y_buffer = upload(runtime, x), upload(runtime, np.zeros_like(x))
    with pytest.raises(MisalignedPointerError, match=r"uid 1 \(x\)\]: expected a multiple of 16 bytes"):
        loaded.execute((x_buffer.address + 8, y_buffer.address))
    loaded.execute((x_buffer.address + 16, y_buffer.address))
    count = rows * CHANNELS
    np.testing.assert_array_equal(download(y_buffer, np.float32)[:count], x[4 : count + 4])


def test_graph_nodes_copy_where_they_are_told(runtime: Runtime) -> None:
    loaded = runtime.load(copy_plan(SHAPES[0], is_im2col=True, through_workspace=True))
    driver, context = runtime.driver, runtime.context
    x = np.arange(np.prod(SHAPES[0]) * CHANNELS, dtype=np.float32).reshape(*SHAPES[0], CHANNELS)
    x_buffer, first, second = (upload(runtime, content) for content in (x, np.zeros_like(x), np.zeros_like(x)))
    size_bytes = 255 + size_anywhere(loaded.plan.workspace_bytes)
    with Stream.create(context) as stream, Workspace(context, size_bytes) as workspace:
        with context.activated():
            graph = driver.graph_create()
            nodes = loaded.add_to_graph(graph, (x_buffer.address, first.address), workspace.address + 4)
            graph_exec = driver.graph_instantiate(graph)
            driver.graph_launch(graph_exec, stream.handle)
            loaded.update_graph(graph_exec, nodes, (x_buffer.address, second.address), workspace.address + 255)
            driver.graph_launch(graph_exec, stream.handle)
        stream.synchronize()
        for buffer in (first, second):
            got = download(buffer, np.float32).reshape(x.shape)
            np.testing.assert_array_equal(got, expected(x, is_im2col=True))
        with context.activated():
            driver.graph_exec_destroy(graph_exec)
            driver.graph_destroy(graph)


@pytest.mark.parametrize("hidden", [lambda address: (address >> 4, 0), lambda address: (address, address)])
def test_a_map_that_hides_its_address_is_left_to_the_driver(hidden: Callable[[int], tuple[int, int]]) -> None:
    class Hiding:
        def tensor_map_encode_tiled(self, layout: TiledMap) -> bytes:
            return b"".join(word.to_bytes(8, "little") for word in (1, *hidden(layout.address), *range(13)))

    layout = TiledMap(TensorMapDataType.FLOAT32, 0, (32, 4), (128,), (32, 4), (1, 1))
    assert encode_map(cast(Driver, Hiding()), layout).address_word is None


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_a_patched_map_is_the_encoded_one(
    runtime: Runtime, rng: np.random.Generator, rank: int, swizzle: TensorMapSwizzle
) -> None:
    layouts: list[TensorMapLayout] = [random_tiled(rng, rank, swizzle, address=0)]
    if rank > 2:
        layouts.append(random_im2col(rng, rank, swizzle, address=0))
    for layout in layouts:
        larger = replace(layout, dims=(*layout.dims[:-1], 1 << 20))
        for one in (layout, larger):
            check_patched(runtime, one)


def check_patched(runtime: Runtime, layout: TensorMapLayout) -> None:
    driver = runtime.driver
    encode = driver.tensor_map_encode_tiled if isinstance(layout, TiledMap) else driver.tensor_map_encode_im2col
    with runtime.context.activated():
        encoded = encode_map(driver, layout)
        assert encoded.address_word is not None, layout
        for address in (16, 0x7F00_0000_0100, (1 << 47) - 16):
            at = 8 * encoded.address_word
            patched = encoded.content[:at] + address.to_bytes(8, "little") + encoded.content[at + 8 :]
            fresh = encode(replace(layout, address=address))
            assert patched == fresh == driver.tensor_map_replace_address(encoded.content, address), layout
