// Conversions of pairs of fp8 values, the first of which is in the low byte.

#pragma once

#include "include/numeric.cuh"

#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ u16 packed_pair(Tag<e4m3>, const f32* pair) {
  u16 result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(pair[1]), "f"(pair[0]));
  return result;
}
__device__ __forceinline__ u16 packed_pair(Tag<e5m2>, const f32* pair) {
  u16 result;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(result) : "f"(pair[1]), "f"(pair[0]));
  return result;
}

// Converts a pair to fp16, which holds all values of fp8.
__device__ __forceinline__ u32 widened_pair(Tag<e4m3>, u16 pair) {
  u32 word;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(pair));
  return word;
}
__device__ __forceinline__ u32 widened_pair(Tag<e5m2>, u16 pair) {
  u32 word;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(word) : "h"(pair));
  return word;
}
#else
template <class T> __device__ __forceinline__ u16 packed_pair(Tag<T>, const f32* pair) {
  return u16(convert<T>(pair[0]).bits | convert<T>(pair[1]).bits << 8);
}
template <class T> __device__ __forceinline__ u32 widened_pair(Tag<T>, u16 pair) {
  return convert<f16>(T{u8(pair)}).bits | u32(convert<f16>(T{u8(pair >> 8)}).bits) << 16;
}
#endif

// Whether an instruction narrows two values to T at once.
template <class T> struct NarrowsPairs { static constexpr bool IS = false; };
template <> struct NarrowsPairs<e4m3> { static constexpr bool IS = true; };
template <> struct NarrowsPairs<e5m2> { static constexpr bool IS = true; };

// Narrows V values, in pairs if the type allows it.
template <class T, int V> __device__ __forceinline__ void narrow_all(T (&to)[V], const f32 (&from)[V]) {
  constexpr int PAIRED = NarrowsPairs<T>::IS ? V / 2 * 2 : 0;
#pragma unroll
  for (int i = 0; i < PAIRED; i += 2) {
    const u16 pair = packed_pair(Tag<T>(), from + i);
    to[i] = T{u8(pair)};
    to[i + 1] = T{u8(pair >> 8)};
  }
#pragma unroll
  for (int i = PAIRED; i < V; ++i) to[i] = convert<T>(from[i]);
}
