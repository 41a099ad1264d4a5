// Warpgroups: four neighbouring warps that share wgmma instructions, registers handed from one to another, and barriers
// of their own.
// Source: PTX ISA, setmaxnreg, elect, barrier, target sm_90a.

#pragma once

#include "include/numeric.cuh"

constexpr int WARPGROUP_SIZE = 128;

// Every warp of the warpgroup gives up or takes registers until each thread has COUNT (a multiple of 8, 24 to 256).
template <int COUNT> __device__ __forceinline__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

// A word that is the same in every thread of the warp, as the compiler then knows: it keeps what follows from it in
// registers of the warp, which wgmma takes descriptors from.
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

// `threads` threads (a multiple of 32) meet at the block's barrier `id` (1 to 15; 0 is __syncthreads).
__device__ __forceinline__ void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

// Counts this warp in at the barrier without waiting there.
__device__ __forceinline__ void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}
