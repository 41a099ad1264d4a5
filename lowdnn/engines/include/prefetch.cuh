// Prefetches to the L2 cache: hints, which no write of another kernel makes stale.
// Source: PTX ISA, prefetch, target sm_50.

#pragma once

#include "include/numeric.cuh"

// The line of an address.
__device__ __forceinline__ void prefetch_to_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
}
