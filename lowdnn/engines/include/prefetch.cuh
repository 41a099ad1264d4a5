// Prefetches to the L2 cache: hints, which no write of other kernels makes stale.
// Source: PTX ISA, prefetch, cp.async.bulk.prefetch, target sm_90.

#pragma once

#include "include/numeric.cuh"

// The line of an address.
__device__ __forceinline__ void prefetch_to_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(at)));
}

// `bytes` from an address on, both multiples of 16.
__device__ __forceinline__ void prefetch_to_l2(const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(from)), "r"(bytes));
}
