// Types that reduce the values of a window to their sum, their maximum, or their maximum and its argmax.
//
// A result takes values in sequence, LANES side by side, each with a weight (for sums) and a code. Codes rise in the
// order of a window's taps: of equal maxima, the one with the lowest code counts. `start` takes the first value, `join`
// a result over later ones. `of` converts V stored elements to values.

#pragma once

#include "include/math/larger.cuh"

// Adds 0 to both, which makes -0 into 0, and NaN into the one with the highest rank.
__device__ __forceinline__ Pair<bf16> without_negative_zero(Pair<bf16> pair) {
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(pair.bits) : "r"(0x3f803f80), "r"(0));
  return pair;
}
__device__ __forceinline__ Pair<f16> without_negative_zero(Pair<f16> pair) {
  asm("add.f16x2 %0, %0, %1;" : "+r"(pair.bits) : "r"(0));
  return pair;
}

template <class T, class X, int COUNT, int V>
__device__ __forceinline__ void widen_all(const X (&stored)[COUNT][V], T (&values)[COUNT][V]) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[k][v] = convert<T>(stored[k][v]);
  }
}

template <class T, int V> struct Sum {
  typedef T Value;
  static constexpr int LANES = V;
  static constexpr bool IS_MAXIMUM = false;
  T value[LANES];

  template <class X, int COUNT>
  static __device__ __forceinline__ void of(const X (&stored)[COUNT][V], i32, T (&values)[COUNT][LANES]) {
    widen_all(stored, values);
  }
  __device__ __forceinline__ void begin(i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = T(0);
  }
  __device__ __forceinline__ void start(const T (&values)[LANES], T weight, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = weight * values[v];
  }
  __device__ __forceinline__ void take(const T (&values)[LANES], T weight, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] += weight * values[v];
  }
  __device__ __forceinline__ void join(const Sum& later, T weight) { take(later.value, weight, 0); }
  __device__ __forceinline__ T number(int channel) const { return value[channel]; }
};

template <class T, int V, bool KEEPS_NAN> struct Largest {
  typedef T Value;
  static constexpr int LANES = V;
  static constexpr bool IS_MAXIMUM = true;
  T value[LANES];

  template <class X, int COUNT>
  static __device__ __forceinline__ void of(const X (&stored)[COUNT][V], i32, T (&values)[COUNT][LANES]) {
    widen_all(stored, values);
  }
  __device__ __forceinline__ void begin(i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = lowest<T>();
  }
  template <class W> __device__ __forceinline__ void start(const T (&values)[LANES], W, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = values[v];
  }
  template <class W> __device__ __forceinline__ void take(const T (&values)[LANES], W, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) value[v] = larger<KEEPS_NAN>(value[v], values[v]);
  }
  template <class W> __device__ __forceinline__ void join(const Largest& later, W weight) {
    take(later.value, weight, 0);
  }
  __device__ __forceinline__ T number(int channel) const { return value[channel]; }
};

// Maxima of unconverted 16-bit floats, in pairs.
template <class X, int V, bool KEEPS_NAN> struct LargestPair {
  typedef Pair<X> Value;
  static constexpr int LANES = V / 2;
  static constexpr bool IS_MAXIMUM = true;
  Largest<Pair<X>, LANES, KEEPS_NAN> pairs;

  template <int COUNT>
  static __device__ __forceinline__ void of(const X (&stored)[COUNT][V], i32, Value (&values)[COUNT][LANES]) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
#pragma unroll
      for (int v = 0; v < LANES; ++v) values[k][v] = pair_of(stored[k][2 * v], stored[k][2 * v + 1]);
    }
  }
  __device__ __forceinline__ void begin(i32 code) { pairs.begin(code); }
  template <class W> __device__ __forceinline__ void start(const Value (&values)[LANES], W weight, i32 code) {
    pairs.start(values, weight, code);
  }
  template <class W> __device__ __forceinline__ void take(const Value (&values)[LANES], W weight, i32 code) {
    pairs.take(values, weight, code);
  }
  template <class W> __device__ __forceinline__ void join(const LargestPair& later, W weight) {
    pairs.join(later.pairs, weight);
  }
  __device__ __forceinline__ X number(int channel) const { return pairs.value[channel / 2].half(channel % 2); }
};

// The largest value and its code; the code of `begin` if no value exceeds the lowest.
template <class T, int V, bool KEEPS_NAN> struct LargestArgmax {
  typedef T Value;
  static constexpr int LANES = V;
  static constexpr bool IS_MAXIMUM = true;
  T value[LANES];
  i32 code[LANES];

  template <class X, int COUNT>
  static __device__ __forceinline__ void of(const X (&stored)[COUNT][V], i32, T (&values)[COUNT][LANES]) {
    widen_all(stored, values);
  }
  __device__ __forceinline__ void begin(i32 first_code) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      value[v] = lowest<T>();
      code[v] = first_code;
    }
  }
  template <class W> __device__ __forceinline__ void start(const T (&values)[LANES], W, i32 at) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      value[v] = KEEPS_NAN ? values[v] : larger<false>(lowest<T>(), values[v]);
      code[v] = at;
    }
  }
  template <class W> __device__ __forceinline__ void take(const T (&values)[LANES], W, i32 at) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) take_one(v, values[v], at);
  }
  template <class W> __device__ __forceinline__ void join(const LargestArgmax& later, W) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) take_one(v, later.value[v], later.code[v]);
  }
  __device__ __forceinline__ T number(int channel) const { return value[channel]; }
  __device__ __forceinline__ i32 argmax(int channel, i32) const { return code[channel]; }

 private:
  __device__ __forceinline__ void take_one(int v, T other, i32 at) {
    const bool wins = KEEPS_NAN ? !(other <= value[v]) && value[v] == value[v] : other > value[v];
    value[v] = wins ? other : value[v];
    code[v] = wins ? at : code[v];
  }
};

// Maxima of 16-bit floats with their codes in one integer, so that one instruction takes a value. The upper half is a
// rank that rises with the number; the lower half falls with the code. Both zeros have the same rank, NaN the highest
// or the lowest.
template <class X, int V, bool KEEPS_NAN> struct LargestKey {
  typedef i32 Value;
  static constexpr int LANES = V;
  static constexpr bool IS_MAXIMUM = true;
  static constexpr i32 CODES = 0xffff;
  i32 key[LANES];

  // Converts two elements at a time, which are neighbours along the channels or along the positions.
  template <int COUNT>
  static __device__ __forceinline__ void of(const X (&stored)[COUNT][V], i32 code, i32 (&keys)[COUNT][LANES]) {
#pragma unroll
    for (int e = 0; e < COUNT * V; e += 2) {
      const int other = e + 1 < COUNT * V ? e + 1 : e;
      const u32 both = ranks(pair_of(stored[e / V][e % V], stored[other / V][other % V]));
      keys[other / V][other % V] = i32(__byte_perm(CODES - (code + other / V), both, 0x7610));
      keys[e / V][e % V] = i32(__byte_perm(CODES - (code + e / V), both, 0x5410));
    }
  }
  __device__ __forceinline__ void begin(i32 first_code) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) key[v] = lowest_key() + CODES - first_code;
  }
  template <class W> __device__ __forceinline__ void start(const i32 (&keys)[LANES], W, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) key[v] = keys[v];
  }
  template <class W> __device__ __forceinline__ void take(const i32 (&keys)[LANES], W, i32) {
#pragma unroll
    for (int v = 0; v < LANES; ++v) key[v] = max(key[v], keys[v]);
  }
  template <class W> __device__ __forceinline__ void join(const LargestKey& later, W weight) {
    take(later.key, weight, 0);
  }
  __device__ __forceinline__ X number(int channel) const {
    const i32 rank = key[channel] >> 16;
    return X{u16(rank ^ ((rank >> 15) & 0x7fff))};
  }
  // A key that is not above the lowest may come from a position outside the image.
  __device__ __forceinline__ i32 argmax(int channel, i32 first_code) const {
    return key[channel] <= lowest_key() + CODES ? first_code : ~key[channel] & CODES;
  }

 private:
  static __device__ __forceinline__ u32 ranks(Pair<X> pair) {
    const u32 bits = without_negative_zero(KEEPS_NAN ? pair : larger<false>(lowest<Pair<X>>(), pair)).bits;
    u32 signs;  // each half is 0xffff if its number is negative, otherwise 0
    asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(signs) : "r"(bits));
    return bits ^ (signs & 0x7fff7fff);
  }
  static __device__ __forceinline__ i32 lowest_key() {
    return i32((lowest<Pair<X>>().bits << 16) ^ 0x7fff0000);
  }
};
