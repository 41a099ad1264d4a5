// Warpgroups: four neighbouring warps that share wgmma instructions, registers that move between warpgroups, and named
// barriers.
// Source: PTX ISA, setmaxnreg, elect, barrier, target sm_90a.

#pragma once

#include "include/numeric.cuh"

constexpr int WARPGROUP_SIZE = 128;

// Called by every warp of a warpgroup: gives up or takes registers until each thread has COUNT (a multiple of 8, 24 to
// 256).
template <int COUNT> __device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

// A word that is equal in every thread of the warp; the shuffle lets the compiler know that. So it keeps values derived
// from it in uniform registers, from which wgmma takes descriptors.
__device__ __forceinline__ u32 uniform(u32 word) { return __shfl_sync(~0u, word, 0); }

// True in one thread of the warp.
__device__ __forceinline__ bool elect_one() {
  u32 elected;
  asm volatile(
      "{\n.reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n}"
      : "=r"(elected));
  return elected;
}

// Waits at the block's barrier `id` (1 to 15; 0 is __syncthreads) for `threads` threads, a multiple of 32.
__device__ __forceinline__ void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// Arrives at the barrier for this warp, without waiting there.
__device__ __forceinline__ void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
