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


CLUSTER = (
    PRELUDE
    + r"""
// Each CTA of a cluster loads one row and multicasts it to all CTAs of its mask.
extern "C" __global__ void multicast(u32* out, const u32* in, const unsigned short* masks, int size) {
    __shared__ alignas(16) u32 data[8][64];
    __shared__ u64 full;
    u32 rank, tid = threadIdx.x;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (tid == 0) init(&full, 1);
    for (int i = tid; i < 512; i += blockDim.x) data[i / 64][i % 64] = 7;
    proxy_fence();
    cluster_sync();
    if (tid == 0) {
        u32 rows = 0;
        for (int s = 0; s < size; s++) rows += masks[s] >> rank & 1;
        expect(&full, rows * 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     ".L2::cache_hint [%0], [%1], 256, [%2], %3, %4;"
                     :: "r"(at(data[rank])), "l"(in + blockIdx.x * 64), "r"(at(&full)), "h"(masks[rank]),
                        "l"(0x1000000000000000ull) : "memory");
    }
    wait(&full, 0);
    for (int i = tid; i < 512; i += blockDim.x) out[blockIdx.x * 512 + i] = data[i / 64][i % 64];
    cluster_sync();
}
// Each CTA of a pair sends its row to the other one: as a copy, as a reduction, from registers.
extern "C" __global__ void exchange(u32* out) {
    __shared__ alignas(16) u32 mine[64], theirs[64], sum[64], sent[64];
    __shared__ u64 full;
    u32 rank, tid = threadIdx.x;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    mine[tid] = blockIdx.x * 100 + tid;
    sum[tid] = 1000;
    sent[tid] = 50;
    if (tid == 0) { init(&full, 1); expect(&full, 3 * 256); }
    proxy_fence();
    cluster_sync();
    u32 bar = in_cta(&full, rank ^ 1);
    if (tid == 0) {
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     :: "r"(in_cta(theirs, rank ^ 1)), "r"(at(mine)), "r"(bar) : "memory");
        asm volatile("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
                     " [%0], [%1], 256, [%2];"
                     :: "r"(in_cta(sum, rank ^ 1)), "r"(at(mine)), "r"(bar) : "memory");
    }
    if (tid % 2 == 0)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                     :: "r"(in_cta(&sent[tid], rank ^ 1)), "r"(tid), "r"(tid + 1), "r"(bar) : "memory");
    wait(&full, 0);
    cluster_sync();
    if (tid == 0) expect(&full, 256);
    cluster_sync();
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32 [%0], %1, [%2];"
                 :: "r"(in_cta(&sum[tid], rank ^ 1)), "r"(1100u), "r"(bar) : "memory");
    wait(&full, 1);
    u32* to = out + blockIdx.x * 192 + tid;
    to[0] = theirs[tid]; to[64] = sum[tid]; to[128] = sent[tid];
    cluster_sync();
}
"""
)


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("policy", POLICIES)
def test_multicast_fills_the_same_place_in_each_cta_of_the_mask(
    bench: Bench, compile_cuda: Compile, rng: np.random.Generator, policy: str, landing: str
) -> None:
    """Rank r receives row s exactly where mask s names it, and the bytes of each are told to its own barrier."""
    masks = rng.integers(1, 16, 4, dtype=np.uint16)
    data = rng.integers(0, 1 << 32, (8, 64), dtype=np.uint32)
    module = bench.machine.load(compile_cuda(CLUSTER, "compute_90a"))
    out = bench.empty(8 * 512 * 4)
    arguments = (out, bench.put(data), bench.put(masks), np.int32(4))
    bench.run(module, "multicast", 8, 64, *arguments, cluster=4, policy=policy, landing=landing)
    expected = np.full((8, 8, 64), 7, np.uint32)
    for cta in range(8):
        for row in range(4):
            if masks[row] >> cta % 4 & 1:
                expected[cta, row] = data[cta // 4 * 4 + row]
    np.testing.assert_array_equal(bench.get(out, (8, 8, 64), np.uint32), expected)


@pytest.mark.parametrize("landing", ["late", "early"])
@pytest.mark.parametrize("policy", [*POLICIES, "fuzz(3)"])
def test_ctas_of_a_cluster_exchange_copies_reductions_and_registers(
    bench: Bench, compile_cuda: Compile, policy: str, landing: str
) -> None:
    module = bench.machine.load(compile_cuda(CLUSTER, "compute_90a"))
    out = bench.empty(4 * 192 * 4)
    bench.run(module, "exchange", 4, 64, out, cluster=2, policy=policy, landing=landing)
    thread = np.arange(64)
    for cta in range(4):
        theirs = (cta ^ 1) * 100 + thread
        expected = [theirs, np.maximum(1000 + theirs, 1100), thread]
        np.testing.assert_array_equal(bench.get(out, (4, 3, 64), np.uint32)[cta], expected)


MULTICAST = """
ld.param.u64 %rd1, [out]; mov.u32 %r1, bar; mov.u32 %r2, data; mov.u16 %h1, MASK;
mov.u32 %r3, %cluster_ctarank; setp.eq.u32 %p1, %r3, 1; @%p1 ret;
mbarrier.init.shared.b64 [%r1], 1;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%rd1], 16, [%r1], %h1;
ret;"""


@pytest.mark.parametrize(
    ("mask", "kind", "message"),
    [
        ("3", FaultKind.USE_AFTER_FREE, "multicast into the CTA of rank 1, which has exited"),
        ("5", FaultKind.SHARED_OUT_OF_BOUNDS, "CTA mask 0x5 in a cluster of 2 CTAs"),
        ("0", FaultKind.SHARED_OUT_OF_BOUNDS, "CTA mask 0x0"),
    ],
)
def test_multicast_reaches_running_ctas_of_the_cluster_only(
    bench: Bench, mask: str, kind: FaultKind, message: str
) -> None:
    shared = ".shared .align 8 .b64 bar; .shared .align 16 .b8 data[16];"
    module = bench.ptx(MULTICAST.replace("MASK", mask), declarations=shared)
    with pytest.raises(EmulationFault) as caught:
        bench.run(module, "k", 2, 1, bench.put(np.zeros(4, np.uint32)), cluster=2, policy="cta-reverse")
    assert caught.value.kind is kind
    assert message in str(caught.value)
