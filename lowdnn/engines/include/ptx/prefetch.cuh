// Prefetches to the L2 cache: hints, which no write of another kernel makes stale.
// Source: PTX ISA, prefetch, target sm_50; ld.relaxed, target sm_70.

#pragma once

#include "include/numeric.cuh"

// The line of an address.
__device__ __forceinline__ void prefetch_to_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
}

// What lies there or what another kernel writes there now: of use for a hint alone. It leaves nothing in the L1 cache,
// where what is written would not be seen.
__device__ __forceinline__ i32 load_relaxed(const i32* from) {
  i32 value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)));
  return value;
}
