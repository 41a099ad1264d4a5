"""Tensor maps that kernels read from memory and change: tensormap.replace, tensormap.cp_fenceproxy, their fences."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowdnn.driver.emulated.copying.tensor_map import decode, encode
from lowdnn.driver.emulated.faults import EmulationFault, FaultKind, FaultReport
from lowdnn.tensor_map import (
    TENSOR_MAP_BYTES,
    TensorMapDataType,
    TensorMapInterleave,
    TensorMapOobFill,
    TensorMapSwizzle,
    TiledMap,
)
from tests.driver.emulated.conftest import POLICIES, Bench

OLD = TiledMap(TensorMapDataType.UINT32, 1 << 20, (64, 16), (256,), (8, 4), (1, 1))


def edited(bench: Bench, statements: str, old: TiledMap = OLD) -> Any:
    """The map after a kernel's statements on its address, %rd1, in global memory."""
    where = bench.put(np.frombuffer(encode(old), np.uint8), "map")
    module = bench.ptx(f"ld.param.u64 %rd1, [out];\n{statements}\nret;")
    bench.run(module, "k", 1, 1, where)
    return decode(bench.get(where, TENSOR_MAP_BYTES, np.uint8).tobytes())


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("global_address.global.b1024.b64 [%rd1], 0x7c0000001000", {"address": 0x7C00_0000_1000}),
        ("global_dim.global.b1024.b32 [%rd1], 1, 99", {"dims": (64, 99)}),
        ("global_stride.global.b1024.b64 [%rd1], 0, 512", {"strides_bytes": (512,)}),
        ("box_dim.global.b1024.b32 [%rd1], 0, 16", {"box": (16, 4)}),
        ("element_stride.global.b1024.b32 [%rd1], 1, 2", {"element_strides": (1, 2)}),
        ("elemtype.global.b1024.b32 [%rd1], 9", {"data_type": TensorMapDataType.FLOAT64}),
        ("elemtype.global.b1024.b32 [%rd1], 8", {"data_type": TensorMapDataType.FLOAT32_FTZ}),
        ("elemtype.global.b1024.b32 [%rd1], 10", {"data_type": TensorMapDataType.BFLOAT16}),
        ("swizzle_mode.global.b1024.b32 [%rd1], 3", {"swizzle": TensorMapSwizzle.BYTES_128}),
        ("fill_mode.global.b1024.b32 [%rd1], 1", {"oob_fill": TensorMapOobFill.NAN_REQUEST_ZERO_FMA}),
        ("interleave_layout.global.b1024.b32 [%rd1], 1", {"interleave": TensorMapInterleave.BYTES_16}),
        (
            "rank.global.b1024.b32 [%rd1], 2",
            {"dims": (64, 16, 1), "strides_bytes": (256, 0), "box": (8, 4, 1), "element_strides": (1, 1, 1)},
        ),
        ("rank.b1024.b32 [%rd1], 0", {"dims": (64,), "strides_bytes": (), "box": (8,), "element_strides": (1,)}),
    ],
)
def test_every_field(bench: Bench, statement: str, changes: dict[str, Any]) -> None:
    assert edited(bench, f"tensormap.replace.tile.{statement};") == replace(OLD, **changes)


def test_wrong_edits(bench: Bench) -> None:
    with pytest.raises(EmulationFault, match="dimension 2 of a map of 2 dimensions"):
        edited(bench, "tensormap.replace.tile.box_dim.global.b1024.b32 [%rd1], 2, 1;")
    with pytest.raises(EmulationFault, match="expected a number below 4"):
        edited(bench, "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd1], 4;")
    with pytest.raises(EmulationFault, match="are no tensor map"):
        edited(bench, "st.global.u32 [%rd1+20], 7;\ntensormap.replace.tile.rank.global.b1024.b32 [%rd1], 1;")
    with pytest.raises(EmulationFault, match="misaligned"):
        edited(bench, "add.u64 %rd1, %rd1, 16; tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 1;")


#: Each CTA makes its own map in shared memory from the one that all share, publishes it in global memory and copies a
#: box with it.
PER_CTA_MAPS = """
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void per_cta(const __grid_constant__ Map shared_map, Map* own, unsigned* const* tensors,
                                   unsigned* out) {
  __shared__ alignas(128) Map draft;
  __shared__ alignas(128) unsigned tile[32];
  __shared__ alignas(8) unsigned long long full;
  unsigned bar = (unsigned)__cvta_generic_to_shared(&full), to = (unsigned)__cvta_generic_to_shared(tile);
  unsigned map = (unsigned)__cvta_generic_to_shared(&draft);
  Map* mine = own + blockIdx.x;
  if (threadIdx.x < 16) draft.words[threadIdx.x] = shared_map.words[threadIdx.x];
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;"
                                     :: "r"(bar) : "memory");
  __syncwarp();
  if (threadIdx.x == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
                 :: "r"(map), "l"(tensors[blockIdx.x]) : "memory");
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;"
                 :: "r"(map), "r"(2 + blockIdx.x) : "memory");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               :: "l"(mine), "r"(map) : "memory");
  if (threadIdx.x == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(mine) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" :: "r"(bar) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" :: "r"(to), "l"(mine), "r"(bar), "r"(0), "r"(0) : "memory");
  }
  asm volatile("{\\n.reg .pred done;\\nagain:\\n"
               " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\\n @!done bra again;\\n}"
               :: "r"(bar) : "memory");
  out[blockIdx.x * 32 + threadIdx.x] = tile[threadIdx.x];
}
"""


def per_cta(bench: Bench, ptx: str, policy: str) -> tuple[np.ndarray, np.ndarray]:
    """Runs ``PER_CTA_MAPS`` with races looked for: what it gives, and what is right."""
    data = np.arange(1, 97, dtype=np.uint32).reshape(3, 4, 8)
    tensors = [bench.put(part, f"tensor {i}") for i, part in enumerate(data)]
    content = encode(TiledMap(TensorMapDataType.UINT32, tensors[0], (8, 4), (32,), (8, 4), (1, 1)))
    out = bench.empty(3 * 128)
    arguments = (content, bench.empty(3 * TENSOR_MAP_BYTES, "maps"), bench.put(np.array(tensors, np.uint64)), out)
    bench.run(bench.machine.load(ptx), "per_cta", 3, 32, *arguments, policy=policy, races=True)
    wanted = data.copy()
    for block in range(3):
        wanted[block, 2 + block :] = 0
    return bench.get(out, data.shape, np.uint32), wanted


@pytest.mark.parametrize("policy", POLICIES)
def test_each_cta_makes_its_own_map(bench: Bench, compile_cuda: Callable[..., str], policy: str) -> None:
    actual, wanted = per_cta(bench, compile_cuda(PER_CTA_MAPS, "compute_90a"), policy)
    np.testing.assert_array_equal(actual, wanted)


#: Instead of the copy out of shared memory with its fence: a copy by words, and the fence alone.
BY_WORDS = """if (threadIdx.x < 16) mine->words[threadIdx.x] = draft.words[threadIdx.x];
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncwarp();"""
_FENCE = r'asm volatile\("fence.proxy.tensormap.*'


def race(bench: Bench, ptx: str) -> FaultReport:
    with pytest.raises(EmulationFault) as caught:
        per_cta(bench, ptx, "lockstep")
    return caught.value.report


@pytest.mark.parametrize("policy", POLICIES)
def test_a_map_may_be_copied_by_words(bench: Bench, compile_cuda: Callable[..., str], policy: str) -> None:
    actual, wanted = per_cta(bench, compile_cuda(by_words(BY_WORDS), "compute_90a"), policy)
    np.testing.assert_array_equal(actual, wanted)


def test_a_changed_map_needs_a_release_and_an_acquire_fence(bench: Bench, compile_cuda: Callable[..., str]) -> None:
    for source in (re.sub(_FENCE, "", PER_CTA_MAPS), by_words(re.sub(_FENCE, "", BY_WORDS))):
        assert source.count("fence.proxy") + source.count("cp_fenceproxy") == 1
        report = race(bench, compile_cuda(source, "compute_90a"))
        assert report.kind is FaultKind.MISSING_PROXY_FENCE
        assert "tensormap proxy" in report.message
        assert report.buffer == "maps"


def test_all_ctas_must_not_change_one_map(bench: Bench, compile_cuda: Callable[..., str]) -> None:
    report = race(bench, compile_cuda(PER_CTA_MAPS.replace("own + blockIdx.x", "own"), "compute_90a"))
    assert report.kind is FaultKind.DATA_RACE
    assert report.buffer == "maps"


def by_words(copy: str) -> str:
    """``PER_CTA_MAPS`` with another copy of the map into global memory."""
    return re.sub(r'asm volatile\("tensormap.cp_fenceproxy.*\n.*;', lambda _: copy, PER_CTA_MAPS)
