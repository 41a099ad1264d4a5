// What the kernels that move elements share: conversions, ways to load, the parts of a launch of several copies.

#pragma once

#include "include/division.cuh"
#include "include/vector.cuh"
#if OVERLAPS_PREVIOUS
#include "include/dependent_launch.cuh"
#endif

// As a dependent launch (dependent_launch.cuh): waits for what is read, and makes room for the kernel that reads it.
__device__ __forceinline__ void begin_launch() {
#if OVERLAPS_PREVIOUS
  wait_for_previous_kernel();
  allow_next_kernel();
#endif
}

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

// How many of V elements exist where `remaining` do from the first of them on.
template <int V> __device__ __forceinline__ int clamped_count(i64 remaining) {
  return remaining >= V ? V : remaining > 0 ? int(remaining) : 0;
}

// The first `valid` of V neighbours, the others zero bits, from words of 4 bytes that lie askew to them. Where one of
// the words reaches out of `begin` to `end` they come element by element.
template <class T, int V>
__device__ __forceinline__ void load_askew(T (&to)[V], const T* from, int valid, const T* begin, const T* end) {
  constexpr int WORDS = V * sizeof(T) / 4;
  const i32 bytes = valid * sizeof(T);
  const u32 skew = u64(from) % 4;
  const u8* first = reinterpret_cast<const u8*>(from) - skew;
  const i32 words = (skew + bytes + 3) / 4;
  if (first < reinterpret_cast<const u8*>(begin) || first + 4 * words > reinterpret_cast<const u8*>(end)) {
    load_strided(to, from, 1, valid);
    return;
  }
  u32 word[WORDS + 1];
#pragma unroll
  for (int i = 0; i <= WORDS; ++i) word[i] = i < words ? reinterpret_cast<const u32*>(first)[i] : 0;
  Vector<T, V> whole;
#pragma unroll
  for (int i = 0; i < WORDS; ++i) {
    const i32 kept = bytes - 4 * i;
    const u32 mask = kept >= 4 ? ~0u : kept > 0 ? (1u << 8 * kept) - 1 : 0;
    reinterpret_cast<u32*>(&whole)[i] = __funnelshift_r(word[i], word[i + 1], 8 * skew) & mask;
  }
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = whole.v[i];
}

// The first `valid` of V neighbours, the others zero bits, in accesses of WIDTH elements. What all of x lies in, from
// `begin` to `end`, is asked for where accesses would be narrower than 4 bytes.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void load_neighbours(T (&to)[V], const T* from, int valid, const T* begin, const T* end) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
  typedef typename PathOf<W * sizeof(T)>::Type Path;
  if constexpr (W * sizeof(T) < 4 && V * sizeof(T) % 4 == 0) {
    load_askew(to, from, valid, begin, end);
  } else {
#pragma unroll
    for (int i = 0; i < V; i += W) load_row<Path, W>(reinterpret_cast<T(&)[W]>(to[i]), from + i, min(valid - i, W));
  }
}

// The first `valid` of V neighbours, in accesses of WIDTH elements.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void store_neighbours(T* to, const T (&from)[V], int valid) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
  for (int i = 0; i < V; i += W) store_row<W>(to + i, reinterpret_cast<const T(&)[W]>(from[i]), min(valid - i, W));
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
