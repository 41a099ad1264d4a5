// Powers of two and of e by the hardware's instruction, with an error of 2 units in the last place of f32; results
// below 2^-126 are 0.

#pragma once

#include "include/numeric.cuh"

#define INFINITE __int_as_float(0x7f800000)
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

__device__ __forceinline__ f32 power_of_two(f32 x) {
  f32 result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// exp(x) for sums of exponentials; in f32 the rounding of the product adds a relative error of |x| units.
__device__ __forceinline__ f32 exponential(f32 x) { return power_of_two(x * LOG2_E); }
__device__ __forceinline__ f64 exponential(f64 x) { return exp(x); }
