// Arithmetic of attention, whichever instruction multiplies: powers of two, operands of two values, and rows of
// accumulators, of which four neighbouring lanes have the columns.

#pragma once

#include "include/numeric.cuh"

constexpr f32 LOG2_E = 1.44269504088896341f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// A power of two to 2 units in the last place.
__device__ __forceinline__ f32 power_of_two(f32 x) {
  f32 result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Two values as one word, the first in its low half.
__device__ __forceinline__ u32 packed(Tag<bf16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 packed(Tag<f16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Of the four lanes that hold a row of accumulators.
__device__ __forceinline__ f32 largest_of_row(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ f32 sum_of_row(f32 x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
