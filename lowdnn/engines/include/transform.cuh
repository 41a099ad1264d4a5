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

// Whether rows that begin at multiples of WIDTH elements are read by words of 4 bytes that lie askew to them.
template <class T, int V> constexpr bool is_askew(int width) {
  return width > 0 && width * sizeof(T) < 4 && V * sizeof(T) % 4 == 0;
}

// V elements of x, of which the first `valid` are read and the others are zero bits. WIDTH: elements of an access along
// which x is contiguous, a divisor of all counts `valid`; 0: single elements at a stride. Loads of several may be in
// flight before the first get.
template <class T, int V, int WIDTH, bool ASKEW = is_askew<T, V>(WIDTH)> struct Elements {
  T values[V];

  // `begin`, `end`: where all that may be read lies.
  __device__ __forceinline__ void load(const T* from, i64 stride, int valid, const T* begin, const T* end) {
    if constexpr (WIDTH == 0) {
      load_strided(values, from, stride, valid);
    } else {
      constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
      for (int i = 0; i < V; i += W) {
        Vector<T, W> part{};
        if (i < valid) part = PathOf<W * sizeof(T)>::Type::template load<T, W>(from + i);
#pragma unroll
        for (int j = 0; j < W; ++j) values[i + j] = part.v[j];
      }
    }
  }

  __device__ __forceinline__ T get(int i) const { return values[i]; }
};

template <class T, int V, int WIDTH> struct Elements<T, V, WIDTH, true> {
  static constexpr int WORDS = V * sizeof(T) / 4, IN_WORD = 4 / sizeof(T);
  u32 words[WORDS + 1];  // the first of them has the first element
  u32 skew;              // bytes in front of it there
  i32 bytes;             // of the elements that are read

  __device__ __forceinline__ void load(const T* from, i64, int valid, const T* begin, const T* end) {
    bytes = valid * sizeof(T);
    skew = u64(from) % 4;
    const u32* first = reinterpret_cast<const u32*>(u64(from) - skew);
    const i32 count = (skew + bytes + 3) / 4;
    if (u64(first) >= u64(begin) && u64(first + count) <= u64(end)) {
#pragma unroll
      for (int i = 0; i <= WORDS; ++i) words[i] = i < count ? first[i] : 0;
    } else {
      const i32 before = skew / sizeof(T);
#pragma unroll
      for (int i = 0; i <= WORDS; ++i) {
        Vector<T, IN_WORD> word;
#pragma unroll
        for (int j = 0; j < IN_WORD; ++j) {
          const i32 element = i * IN_WORD + j - before;
          word.v[j] = element >= 0 && element < valid ? from[element] : T{};
        }
        words[i] = *reinterpret_cast<const u32*>(&word);
      }
    }
  }

  __device__ __forceinline__ T get(int i) const {
    const int word = i / IN_WORD;
    const i32 kept = bytes - 4 * word;
    const u32 mask = kept >= 4 ? ~0u : kept > 0 ? (1u << 8 * kept) - 1 : 0;
    const u32 shifted = __funnelshift_r(words[word], words[word + 1], 8 * skew) & mask;
    return reinterpret_cast<const Vector<T, IN_WORD>*>(&shifted)->v[i % IN_WORD];
  }
};

// The first `valid` of V neighbours, in accesses of WIDTH elements where these are whole.
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
