// What the kernels that move elements share: conversions, ways to load, the parts of a launch of several copies.

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
