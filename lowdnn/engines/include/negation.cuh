// -x for integers, which wraps at the lowest value.

#pragma once

#include "include/numeric.cuh"

template <class T> __device__ __forceinline__ T negated(T x) { return T(0) - x; }

// Computes the complement plus one. From max(max(x, -b), -c) and similar terms, ptxas 13.0 makes one instruction
// (VIMNMX3) on compute capability 9.0 and 10.0, which leaves out the sign of b.
__device__ __forceinline__ i32 negated(i32 x) {
  i32 complement;
  asm("not.b32 %0, %1;" : "=r"(complement) : "r"(x));
  return complement + 1;
}
