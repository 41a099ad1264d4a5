// Grid barrier: all blocks of a cooperative launch wait for each other. The grid has one axis, blocks have at most two.
//
// The driver gives each such launch a word for the barrier: at the address in %envreg1 (high half) and %envreg2 (low
// half) lie two u32, the bytes of this area and the barrier. So no memory of the caller has to be cleared before a
// launch, and launches in several streams, or replays of a graph, have separate barriers.
// Source: PTX ISA, %envreg ("driver-defined"); cooperative_groups/details/driver_abi.h of the CUDA toolkit: every
// program with grid.sync() relies on the same words.

#pragma once

#include "include/numeric.cuh"

__device__ __forceinline__ u32* grid_barrier() {
  u32 high, low;
  asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
  asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
  return reinterpret_cast<u32*>(u64(high) << 32 | low) + 1;
}

// Waits for all blocks. block_barrier() synchronises the calling threads of one block, one of which is the leader;
// writes before the barrier are visible to all after it. The blocks' increments add up to 2^31, so that the word's top
// bit flips when the last block arrives and the other bits are then unchanged.
template <class BlockBarrier> __device__ __forceinline__ void grid_sync(bool is_leader, BlockBarrier block_barrier) {
  block_barrier();
  if (is_leader) {
    u32* const barrier = grid_barrier();
    const u32 own = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    u32 before, now;
    asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(before) : "l"(barrier), "r"(own) : "memory");
    do {
      asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(barrier) : "memory");
    } while (((before ^ now) & 0x80000000u) == 0);
  }
  block_barrier();
}

__device__ __forceinline__ void grid_sync() {
  grid_sync(threadIdx.x + threadIdx.y == 0, [] { __syncthreads(); });
}
