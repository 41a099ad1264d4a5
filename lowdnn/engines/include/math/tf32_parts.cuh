// An fp32 number as the sum of two TF32 numbers, for products of fp32 on the tensor cores:
//
//     x = high + low / LOW_SCALE + error,    |error| at most 2^-23 |x| or 2^-136 / LOW_SCALE
//     a * b = a.high * b.high + (a.low * b.high + a.high * b.low) / LOW_SCALE
//
// The product of the low parts, at most 2^-22 of the whole, is left out. An infinity and a NaN are low parts, beside a
// high part of 1 or -1: neither part of the other factor may then make a NaN of an infinity, unless that factor is under
// 2^-137. A sum beyond 1 - 2^-21 of the greatest fp32 may overflow, and one that overflows may be NaN.
// Source: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores, 2022.

#pragma once

#include "include/numeric.cuh"

struct Tf32Parts { u32 high, low; };

// LOW_SCALE: a power of two. The low part has at most one bit more than TF32 has, which is cut off.
template <int LOW_SCALE = 1> __device__ __forceinline__ Tf32Parts tf32_parts(u32 word) {
  constexpr u32 KEPT = 0xffffe000, HALF = 0x1000;
  const f32 x = __uint_as_float(word), rounded = __uint_as_float((word + HALF) & KEPT);
  const f32 bound = fabs(x) < __uint_as_float(0x7f800000) ? 0x1.ffcp127f : 1.0f;
  const f32 high = fmin(fmax(rounded, -bound), bound);
  return {__float_as_uint(high), __float_as_uint((x - high) * LOW_SCALE) & KEPT};
}
