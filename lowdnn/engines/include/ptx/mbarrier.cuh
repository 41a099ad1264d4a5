// mbarrier: barriers in shared memory that count arrivals and bytes of asynchronous copies.
//
// A barrier is named by its shared-memory address. Its phase ends when all arrivals of the phase and all expected bytes
// have come; `mbarrier_wait` returns when the phase of the given parity has ended. A barrier starts in phase 0, so that
// a wait for parity 1 returns at once.
// Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", target sm_90.

#pragma once

#include "include/numeric.cuh"

constexpr int MBARRIER_BYTES = 8;

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

// Makes this thread's inits visible to the copy engine and to the other blocks of the cluster.
__device__ __forceinline__ void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives at the barrier that lies at the same address in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}"
      :: "r"(barrier), "r"(rank) : "memory");
}

// Arrives at a barrier by its cluster address (cluster.cuh): the block that waits there with mbarrier_wait_cluster may
// then overwrite what this thread has read.
__device__ __forceinline__ void mbarrier_release_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives, and makes the phase wait for `bytes` more bytes.
__device__ __forceinline__ void mbarrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}"
      :: "r"(barrier), "r"(parity) : "memory");
}

// Waits for the phase, and acquires the writes of other blocks' threads before they arrived.
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}"
      :: "r"(barrier), "r"(parity) : "memory");
}
