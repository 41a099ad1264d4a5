// The meeting point of all blocks of a cooperative launch, whose grid has one axis and whose blocks have two at most.
//
// The driver gives each such launch a word for it: at the address in %envreg1 (high half) and %envreg2 lie two u32, the
// bytes of this area and the barrier. So no memory of the caller's has to be cleared before a launch, and launches in
// several streams, or replays of a graph, have barriers of their own.
// Source: PTX ISA, %envreg ("driver-defined"); cooperative_groups/details/driver_abi.h of the CUDA toolkit, by which
// every program with grid.sync() relies on the same words.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ u32* grid_barrier() {
  u32 high, low;
  asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
  asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
  return reinterpret_cast<u32*>(u64(high) << 32 | low) + 1;
}

// Threads of all blocks, which `meet` within theirs, with one `leader` in each; what each wrote before, the others see
// after. The blocks' numbers add up to 2^31, so that the word's top bit changes when the last of them comes, and the other
// bits are then as they were.
template <class Meet> __device__ __forceinline__ void grid_sync(bool is_leader, Meet meet) {
  meet();
  if (is_leader) {
    u32* const barrier = grid_barrier();
    const u32 own = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    u32 before, now;
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(barrier), "r"(own) : "memory");
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
    } while (((before ^ now) & 0x80000000u) == 0);
  }
  meet();
}

__device__ __forceinline__ void grid_sync() {
  grid_sync(threadIdx.x + threadIdx.y == 0, [] { __syncthreads(); });
}
