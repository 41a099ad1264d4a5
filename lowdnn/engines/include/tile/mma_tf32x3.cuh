// Products of fp32 on one warp's tensor core that are as accurate as those of fp32 units: three products of TF32 parts
// (tf32_parts.cuh). Tensor cores cut off bits of a sum instead of rounding it, so only the sums of one instruction are
// theirs: fp32 units add those up, and errors grow with the root of the number of terms.
// LOW_SCALE keeps low parts of small numbers above the least TF32, and is so small that sums of low parts overflow no
// sooner than those of high parts.

#pragma once

#include "include/math/tf32_parts.cuh"
#include "include/ptx/mma.cuh"

// A stored fp32 that is multiplied so.
struct tf32x3 {
  f32 value;
};

__device__ __forceinline__ u32 bits_of(tf32x3 x) { return __float_as_uint(x.value); }

template <> struct Mma<tf32x3> {
  typedef f32 Accumulator;

  static __device__ __forceinline__ u32 operand(u32 word) { return word; }

  // The parts of an operand are the same in each product with it, so that the compiler computes them once.
  static __device__ __forceinline__ void apply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    constexpr int LOW_SCALE = 1024;
    u32 a_high[4], a_low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tf32Parts parts = tf32_parts<LOW_SCALE>(a[i]);
      a_high[i] = parts.high;
      a_low[i] = parts.low;
    }
    const Tf32Parts first = tf32_parts<LOW_SCALE>(b0), second = tf32_parts<LOW_SCALE>(b1);
    f32 high[4] = {}, low[4] = {};
    Mma<f32>::apply(low, a_low, first.high, second.high);
    Mma<f32>::apply(low, a_high, first.low, second.low);
    Mma<f32>::apply(high, a_high, first.high, second.high);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += fmaf(low[i], 1.0f / LOW_SCALE, high[i]);
  }
};
