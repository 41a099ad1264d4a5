// Products of fp32 on one warp's tensor core that are as accurate as those of fp32 units: three products of TF32.
//
//     x = high + low / LOW_SCALE + error,    both parts in TF32, |error| at most 2^-23 |x| or 2^-146
//     a * b = a.high * b.high + (a.low * b.high + a.high * b.low) / LOW_SCALE
//
// The product of the low parts, at most 2^-22 of the whole, is left out. Tensor cores cut off bits of a sum instead of
// rounding it, so only the sums of one instruction are theirs: fp32 units add those up, and errors grow with the root of
// the number of terms.
// LOW_SCALE keeps low parts of small numbers above the least TF32, and is so small that sums of low parts overflow no
// sooner than those of high parts. An infinity and a NaN are low parts, beside a high part of 1 or -1: neither part of
// the other factor may then make a NaN of an infinity, unless that factor is under 2^-137. A sum beyond 1 - 2^-21
// of the greatest fp32 may overflow, and one that overflows may be NaN.
// Source: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022.

#pragma once

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
    constexpr f32 LOW_SCALE = 1024.0f;
    u32 a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) split(a[i], LOW_SCALE, a_high[i], a_low[i]);
    split(b0, LOW_SCALE, b_high[0], b_low[0]);
    split(b1, LOW_SCALE, b_high[1], b_low[1]);
    f32 high[4] = {}, low[4] = {};
    Mma<f32>::apply(low, a_low, b_high[0], b_high[1]);
    Mma<f32>::apply(low, a_high, b_low[0], b_low[1]);
    Mma<f32>::apply(high, a_high, b_high[0], b_high[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += fmaf(low[i], 1.0f / LOW_SCALE, high[i]);
  }

 private:
  // The low part has at most one bit more than TF32 has.
  static __device__ __forceinline__ void split(u32 word, f32 low_scale, u32& high, u32& low) {
    constexpr u32 KEPT = 0xffffe000, HALF = 0x1000;
    const f32 x = __uint_as_float(word), rounded = __uint_as_float((word + HALF) & KEPT);
    const f32 bound = fabs(x) < __uint_as_float(0x7f800000) ? 0x1.ffcp127f : 1.0f;
    const f32 finite = fmin(fmax(rounded, -bound), bound);
    high = __float_as_uint(finite);
    low = __float_as_uint((x - finite) * low_scale) & KEPT;
  }
};
