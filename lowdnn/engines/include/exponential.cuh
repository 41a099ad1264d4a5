// Powers of two and of e by the hardware's instruction: 2 units in the last place of f32; results below 2^-126 are 0.

#pragma once

#include "include/numeric.cuh"

#define INFINITE __int_as_float(0x7f800000)
#define LOG2_E 1.44269504088896341f

__device__ __forceinline__ f32 power_of_two(f32 x) {
  f32 result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The same of x < 127 within a relative 1e-4, by a polynomial fitted over [-0.5, 0.5]: other units than the instruction's.
__device__ __forceinline__ f32 polynomial_power_of_two(f32 x) {
  const f32 rounded = x + 0x1.8p23f;  // its last bits are the nearest integer
  const f32 rest = x - (rounded - 0x1.8p23f);
  f32 p = 0x1.c3f6a6p-5f;
  p = fmaf(p, rest, 0x1.f0ddccp-3f);
  p = fmaf(p, rest, 0x1.62f31ap-1f);
  p = fmaf(p, rest, 0x1.fff694p-1f);
  return x < -126.0f ? 0.0f : __int_as_float(__float_as_int(p) + (__float_as_int(rounded) << 23));
}

// exp(x) for sums of exponentials; in f32 with a relative error of |x| units more, from rounding the product.
__device__ __forceinline__ f32 exponential(f32 x) { return power_of_two(x * LOG2_E); }
__device__ __forceinline__ f64 exponential(f64 x) { return exp(x); }
