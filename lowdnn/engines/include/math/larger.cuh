// The larger of two numbers, or of two pairs of them.

#pragma once

#include "include/numeric.cuh"

// The lowest value of a type.
template <class T> __device__ __forceinline__ T lowest();
template <> __device__ __forceinline__ f32 lowest<f32>() { return __uint_as_float(0xff800000); }
template <> __device__ __forceinline__ f64 lowest<f64>() { return __longlong_as_double(0xfff0000000000000ll); }
template <> __device__ __forceinline__ i32 lowest<i32>() { return i32(0x80000000); }

// Two neighbouring 16-bit floats, whose maxima are taken without conversion.
template <class X> struct Pair {
  u32 bits;
  __device__ __forceinline__ X half(int i) const { return X{u16(bits >> 16 * i)}; }
};
template <class X> __device__ __forceinline__ Pair<X> pair_of(X low, X high) {
  return {low.bits | u32(high.bits) << 16};
}
template <> __device__ __forceinline__ Pair<bf16> lowest<Pair<bf16>>() { return {0xff80ff80}; }
template <> __device__ __forceinline__ Pair<f16> lowest<Pair<f16>>() { return {0xfc00fc00}; }

// The larger of two numbers; NaN wins, or loses to every number, whichever operand it is.
template <bool KEEPS_NAN, class T> __device__ __forceinline__ T larger(T best, T value) {
  const bool is_only_choice = KEEPS_NAN ? value != value : best != best;
  return value > best || is_only_choice ? value : best;
}
template <bool KEEPS_NAN> __device__ __forceinline__ f32 larger(f32 best, f32 value) {
  f32 result;
  if (KEEPS_NAN) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(best), "f"(value));
  } else {
    asm("max.f32 %0, %1, %2;" : "=f"(result) : "f"(best), "f"(value));
  }
  return result;
}

#define LARGER_OF_PAIRS(X)                                                                            \
  template <bool KEEPS_NAN> __device__ __forceinline__ Pair<X> larger(Pair<X> best, Pair<X> value) {  \
    Pair<X> result;                                                                                   \
    if (KEEPS_NAN) {                                                                                  \
      asm("max.NaN." #X "x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));      \
    } else {                                                                                          \
      asm("max." #X "x2 %0, %1, %2;" : "=r"(result.bits) : "r"(best.bits), "r"(value.bits));          \
    }                                                                                                 \
    return result;                                                                                    \
  }
LARGER_OF_PAIRS(bf16)
LARGER_OF_PAIRS(f16)
