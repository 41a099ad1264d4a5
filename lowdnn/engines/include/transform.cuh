// What the kernels that move elements share: conversions, rows of neighbours, the parts of a launch of several copies.

#pragma once

#include "include/division.cuh"
#include "include/vector.cuh"

// x as a To; equal types move their bits.
template <class To, class From> struct Moved {
  static __device__ __forceinline__ To of(From x) { return convert<To>(x); }
};
template <class T> struct Moved<T, T> {
  static __device__ __forceinline__ T of(T x) { return x; }
};

// Loads of 16 bytes an access pass L1 by; narrower ones leave the rest of their sector there for the neighbours.
template <int BYTES> struct PathOf { typedef Plain Type; };
template <> struct PathOf<16> { typedef Stream Type; };

// One access of 4 words, 2 words, a word or less. As instructions: behind a condition the compiler takes a store of a
// vector apart.
__device__ __forceinline__ void store_word(void* to, const uint4& word) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
      :: "l"(to), "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w) : "memory");
}
__device__ __forceinline__ void store_word(void* to, const uint2& word) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(word.x), "r"(word.y) : "memory");
}
template <class Narrow> __device__ __forceinline__ void store_word(void* to, const Narrow& word) {
  *static_cast<Narrow*>(to) = word;
}

// The first `valid` of V neighbours, in accesses of WIDTH elements where all V exist.
template <int WIDTH, class T, int V> __device__ __forceinline__ void write_row(T* to, const T (&from)[V], int valid) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
  if (valid != V) {
    store_strided(to, from, 1, valid);
    return;
  }
#pragma unroll
  for (int i = 0; i < V; i += W) {
    Vector<T, W> part;
#pragma unroll
    for (int j = 0; j < W; ++j) part.v[j] = from[i + j];
    store_word(to + i, *reinterpret_cast<const typename Word<sizeof(T) * W>::Type*>(&part));
  }
}

// The part that `block` works on; `block` becomes its number within the part. ends[n]: the blocks of parts 0 to n.
template <int COUNT> __device__ __forceinline__ int part_of(const u32 (&ends)[COUNT], u32& block) {
  int part = 0;
  u32 begin = 0;
#pragma unroll
  for (int n = 0; n < COUNT - 1; ++n) {
    if (block >= ends[n]) part = n + 1, begin = ends[n];
  }
  block -= begin;
  return part;
}
