// Random numbers as a function of seed, offset and an element's index, by the formulas in lowdnn/ops/rng.py.
//
// Philox4x32-10 generates blocks of four words: element i takes word i % 4 of block i / 4. draw_whole, draw_row and
// draw_strided give the numbers of V elements; the first two use one block for up to four of them.

#pragma once

#include "include/numeric.cuh"

struct Philox {
  u64 seed;
  u64 offset;

  // A product of 64 by 64 bits would make the compiler add the terms of the upper halves, although they are 0.
  static __device__ __forceinline__ void multiply(u32 a, u32 b, u32& low, u32& high) {
    asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product; }"
        : "=r"(low), "=r"(high) : "r"(a), "r"(b));
  }

  __device__ __forceinline__ void block(u64 number, u32 (&word)[4]) const {
    word[0] = u32(number), word[1] = u32(number >> 32), word[2] = u32(offset), word[3] = u32(offset >> 32);
    u32 low_key = u32(seed), high_key = u32(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      u32 low_even, high_even, low_odd, high_odd;
      multiply(word[0], 0xd2511f53u, low_even, high_even);
      multiply(word[2], 0xcd9e8d57u, low_odd, high_odd);
      word[0] = high_odd ^ word[1] ^ low_key, word[1] = low_odd;
      word[2] = high_even ^ word[3] ^ high_key, word[3] = low_even;
      low_key += 0x9e3779b9u, high_key += 0xbb67ae85u;
    }
  }
};

// ---- distributions: a number from the two words of a pair, for the first element of the pair or for the second ------

// (word | 1) / 2^32; in f32 truncated to 24 bits, so that it is never 1.
__device__ __forceinline__ f32 unit_interval(u32 word, f32) { return __uint2float_rz(word | 1) * 0x1p-32f; }
__device__ __forceinline__ f64 unit_interval(u32 word, f64) { return f64(word | 1) * 0x1p-32; }

template <class T> struct Bernoulli {
  i64 threshold;  // 0 to 2^32: words below it give 1

  __device__ __forceinline__ T number(u32 first, u32 second, bool is_second) const {
    return T(threshold > 0 && (is_second ? second : first) <= u32(threshold - 1));
  }
};

template <class T> struct Uniform {
  T lowest;
  T span;

  __device__ __forceinline__ T number(u32 first, u32 second, bool is_second) const {
    return fma(unit_interval(is_second ? second : first, T()), span, lowest);
  }
};

template <class T> struct Normal {
  T mean;
  T deviation;

  __device__ __forceinline__ T number(u32 first, u32 second, bool is_second) const {
    T sine, cosine;
    sine_and_cosine(T(2) * unit_interval(second, T()), &sine, &cosine);
    return fma(sqrt(T(-2) * log(unit_interval(first, T()))) * (is_second ? sine : cosine), deviation, mean);
  }

 private:
  static __device__ __forceinline__ void sine_and_cosine(f32 halves, f32* s, f32* c) { sincospif(halves, s, c); }
  static __device__ __forceinline__ void sine_and_cosine(f64 halves, f64* s, f64* c) { sincospi(halves, s, c); }
};

// ---- V numbers ------------------------------------------------------------------------------------------------------

// Draws for V elements at distances `step`, for any `first`.
template <class Distribution, class T, int V>
__device__ __forceinline__ void draw_strided(
    T (&numbers)[V], const Distribution& distribution, const Philox& philox, i64 first, i64 step) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const u64 index = u64(first + i * step);
    u32 word[4];
    philox.block(index / 4, word);
    const bool in_upper = index & 2;
    numbers[i] = distribution.number(in_upper ? word[2] : word[0], in_upper ? word[3] : word[1], index & 1);
  }
}

// Draws for V neighbouring elements, for any `first`, from V / 4 + 1 blocks.
template <class Distribution, class T, int V>
__device__ __forceinline__ void draw_row(
    T (&numbers)[V], const Distribution& distribution, const Philox& philox, i64 first, i64) {
  if constexpr (V % 4 != 0) {
    draw_strided(numbers, distribution, philox, first, 1);
  } else {
    const bool from_upper = first & 2, from_second = first & 1;
    u32 word[8];
    philox.block(u64(first) / 4, *reinterpret_cast<u32(*)[4]>(word));
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      u32 next[4];
      philox.block(u64(first) / 4 + i / 4 + 1, next);
#pragma unroll
      for (int j = 0; j < 4; ++j) word[4 + j] = next[j];
      u32 pair[6];
#pragma unroll
      for (int j = 0; j < 6; ++j) pair[j] = from_upper ? word[j + 2] : word[j];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int here = j & ~1;
        const bool in_next = j % 2 && from_second;
        numbers[i + j] = distribution.number(
            in_next ? pair[here + 2] : pair[here], in_next ? pair[here + 3] : pair[here + 1], (j % 2) != from_second);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) word[j] = next[j];
    }
  }
}

// Draws for V neighbouring elements, if `first` is a multiple of V, and of 4 if V is, from V / 4 blocks, or one.
template <class Distribution, class T, int V>
__device__ __forceinline__ void draw_whole(
    T (&numbers)[V], const Distribution& distribution, const Philox& philox, i64 first, i64) {
  if constexpr (V == 2) {
    u32 word[4];
    philox.block(u64(first) / 4, word);
    const bool in_upper = first & 2;
    const u32 pair[2] = {in_upper ? word[2] : word[0], in_upper ? word[3] : word[1]};
#pragma unroll
    for (int i = 0; i < 2; ++i) numbers[i] = distribution.number(pair[0], pair[1], i);
  } else if constexpr (V % 4 != 0) {
    draw_strided(numbers, distribution, philox, first, 1);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      u32 word[4];
      philox.block(u64(first) / 4 + i / 4, word);
#pragma unroll
      for (int j = 0; j < 4; ++j) numbers[i + j] = distribution.number(word[j & ~1], word[j | 1], j & 1);
    }
  }
}
