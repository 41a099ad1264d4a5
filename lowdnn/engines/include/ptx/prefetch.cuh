// Prefetches to the L2 cache: hints, which stay correct whatever other kernels write.
// Source: PTX ISA, prefetch, target sm_50; ld.relaxed, target sm_70.

#pragma once

#include "include/numeric.cuh"

// Prefetches the line of an address.
__device__ __forceinline__ void prefetch_to_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
}

// Loads a word that another kernel may be writing: its value is good for a hint only. The load does not allocate in the
// L1 cache, where later writes would not be seen.
__device__ __forceinline__ i32 load_relaxed(const i32* from) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)));
  return value;
}
