"""Bulk copies, asynchronous stores and reductions, cp.async on mbarriers: kernels in CUDA C++ with inline PTX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowdnn.driver.emulated.faults import EmulationFault, FaultKind
from lowdnn.driver.emulated.machine import Module
from tests.driver.emulated.conftest import POLICIES, Bench

Compile = Callable[..., str]

PRELUDE = r"""
typedef unsigned int u32; typedef unsigned long long u64;
__device__ u32 at(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void init(u64* bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(count) : "memory");
}
__device__ void expect(u64* bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" :: "r"(at(bar)), "r"(bytes)
                 : "memory");
}
__device__ void arrive(u64* bar) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" :: "r"(at(bar)) : "memory");
}
__device__ void wait(u64* bar, u32 parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;"
                     " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory");
    } while (!done);
}
__device__ void load(void* to, const void* of, u32 bytes, u64* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(to)), "l"(of), "r"(bytes), "r"(at(bar)) : "memory");
}
__device__ void store(void* to, const void* of, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(at(of)), "r"(bytes) : "memory");
}
__device__ void commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ void wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ void wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ u32 in_cta(const void* p, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(p)), "r"(rank));
    return there;
}
"""

PIPELINE = (
    PRELUDE
    + r"""
// Warp 0 loads stages of 1 KB, the others add 1 to each word; a bulk store brings each stage back.
extern "C" __global__ void pipeline(u32* out, const u32* in, int stages) {
    __shared__ alignas(16) u32 data[2][256];
    __shared__ u64 full[2], empty[2];
    int tid = threadIdx.x;
    if (tid == 0)
        for (int i = 0; i < 2; i++) { init(&full[i], 1); init(&empty[i], 4); }
    __syncthreads();
    long start = (long)blockIdx.x * stages * 256;
    if (tid < 32) {
        if (tid == 0)
            for (int s = 0; s < stages; s++) {
                WAIT_EMPTY(wait(&empty[s % 2], (s / 2 & 1) ^ 1));
                expect(&full[s % 2], EXPECTED);
                load(data[s % 2], in + start + s * 256, 1024, &full[s % 2]);
            }
    } else {
        for (int s = 0; s < stages; s++) {
            WAIT_FULL(wait(&full[s % 2], s / 2 & 1));
            for (int i = tid - 32; i < 256; i += 128) data[s % 2][i] += 1;
            proxy_fence();
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (tid == 32) { store(out + start + s * 256, data[s % 2], 1024); commit(); WAIT_READ(wait_read()); }
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (tid % 32 == 0) arrive(&empty[s % 2]);
        }
    }
}
"""
)


def _pipeline(bench: Bench, compile_cuda: Compile, **changes: str) -> Module:
    words = {"WAIT_EMPTY(x)": "x", "WAIT_FULL(x)": "x", "WAIT_READ(x)": "x", "EXPECTED": "1024", **changes}
    defines = "".join(f"#define {name} {value}\n" for name, value in words.items())
    return bench.machine.load(compile_cuda(defines + PIPELINE, "compute_90a"))


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("policy", [*POLICIES, *(f"fuzz({seed})" for seed in range(8))])
def test_a_pipeline_of_bulk_copies_is_right_under_every_policy(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, policy: str, landing: str
) -> None:
    data = rng.integers(0, 1 << 32, (3, 5, 256), dtype=np.uint32)
    out, source = bench.empty(data.nbytes), bench.put(data)
    module = _pipeline(bench, compile_cuda)
    bench.run(module, "pipeline", 3, 160, out, source, np.int32(5), policy=policy, landing=landing)
    np.testing.assert_array_equal(bench.get(out, data.shape, np.uint32), data + np.uint32(1))


MUTANTS = {
    "no wait for full": ({"WAIT_FULL(x)": ""}, FaultKind.UNINITIALISED_READ, "lockstep", "late"),
    "no wait for empty": ({"WAIT_EMPTY(x)": ""}, FaultKind.BARRIER_MISUSE, "lockstep", "late"),
    "no wait for the store": ({"WAIT_READ(x)": ""}, FaultKind.ASYNC_MISUSE, "lockstep", "late"),
    "too few bytes expected": ({"EXPECTED": "512"}, FaultKind.DEADLOCK, "lockstep", "late"),
    "too many bytes expected": ({"EXPECTED": "1040"}, FaultKind.DEADLOCK, "warp-serial(1)", "early"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_pipeline_are_reported(bench: Bench, compile_cuda: Compile, name: str) -> None:
    changes, kind, policy, landing = MUTANTS[name]
    data = np.zeros((2, 5, 256), np.uint32)
    out, source = bench.empty(data.nbytes), bench.put(data)
    with pytest.raises(EmulationFault) as caught:
        bench.run(
            _pipeline(bench, compile_cuda, **changes), "pipeline", 2, 160, out, source, np.int32(5),
            policy=policy, landing=landing,
        )  # fmt: skip
    assert caught.value.kind is kind
