// exp(x) for sums of exponentials. In f32 as 2^(x * log2(e)) by the hardware's instruction: a relative error of 2 units
// in the last place, and of |x| more from rounding the product; results below 2^-126 are 0.

#pragma once

#include "include/numeric.cuh"

#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ f32 exponential(f32 x) {
  f32 result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504088896341f));
  return result;
}
__device__ __forceinline__ f64 exponential(f64 x) { return exp(x); }
