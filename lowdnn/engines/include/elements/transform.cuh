// Helpers of the kernels that move elements: conversions, loads, transposes in registers, and several copies in a
// launch.

#pragma once

#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/vector.cuh"

// Begins a dependent launch (dependent_launch.cuh): waits for the kernel before, and lets the next one begin.
template <bool IS_DEPENDENT> __device__ __forceinline__ void begin_launch() {
  if constexpr (IS_DEPENDENT) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }
}

// Converts x to To; equal types keep their bits.
template <class To, class From> struct Moved {
  static __device__ __forceinline__ To of(From x) { return convert<To>(x); }
};
template <class T> struct Moved<T, T> {
  static __device__ __forceinline__ T of(T x) { return x; }
};

// Accesses of 16 bytes bypass L1; narrower ones leave the rest of their sector there for neighbouring threads.
template <int BYTES> struct PathOf { typedef Plain Type; };
template <> struct PathOf<16> { typedef Stream Type; };

// The number of V elements that exist, if `remaining` exist from the first of them on.
template <int V> __device__ __forceinline__ int clamped_count(i64 remaining) {
  return remaining >= V ? V : remaining > 0 ? int(remaining) : 0;
}

// The units in which rows of V elements lie in registers: words of PER_UNIT elements if these are narrow and fill
// words.
template <class T, int PER_UNIT> struct UnitOf { typedef u32 Type; };
template <class T> struct UnitOf<T, 1> { typedef T Type; };
template <class T, int V> struct Units {
  static constexpr int PER_UNIT = sizeof(T) < 4 && V * sizeof(T) >= 4 ? 4 / sizeof(T) : 1;
  static constexpr int COUNT = V / PER_UNIT;
  typedef typename UnitOf<T, PER_UNIT>::Type Type;
};

// Elements `count` to `count` + V - 1 of low and high together; `count` is from 0 to V - 1.
template <class T, int V>
__device__ __forceinline__ Vector<T, V> window(const Vector<T, V>& low, const Vector<T, V>& high, int count) {
  typedef Units<T, V> U;
  typedef typename U::Type Unit;
  Unit both[2 * U::COUNT];
#pragma unroll
  for (int i = 0; i < U::COUNT; ++i) {
    both[i] = reinterpret_cast<const Unit*>(&low)[i];
    both[U::COUNT + i] = reinterpret_cast<const Unit*>(&high)[i];
  }
#pragma unroll
  for (int step = U::COUNT / 2; step > 0; step /= 2) {
    const bool moves = count / U::PER_UNIT & step;
#pragma unroll
    for (int i = 0; i < U::COUNT + step; ++i) {
      const Unit further = both[i + step];
      both[i] = moves ? further : both[i];
    }
  }
  Vector<T, V> result;
  Unit* to = reinterpret_cast<Unit*>(&result);
#pragma unroll
  for (int i = 0; i < U::COUNT; ++i) {
    if constexpr (U::PER_UNIT > 1) {
      to[i] = __funnelshift_r(both[i], both[i + 1], count % U::PER_UNIT * (8 * sizeof(T)));
    } else {
      to[i] = both[i];
    }
  }
  return result;
}

// Whether rows that begin at multiples of WIDTH elements are read by vectors aligned to V elements, not to the rows.
template <class T, int V> constexpr bool is_misaligned(int width) {
  return width > 0 && width * sizeof(T) < 4 && V * sizeof(T) % 4 == 0;
}

// V elements of x: the first `valid` are read, the others are zero bits. WIDTH: elements of an access, along which x is
// contiguous, a divisor of all counts `valid`; 0: strided single elements. Loads of several objects may be in flight
// before the first get.
template <class T, int V, int WIDTH, bool MISALIGNED = is_misaligned<T, V>(WIDTH)> struct Elements {
  Vector<T, V> values;

  // `begin`, `end`: the bounds of the memory that may be read.
  __device__ __forceinline__ void load(const T* from, i64 stride, int valid, const T* begin, const T* end) {
    if constexpr (WIDTH == 0) {
      load_strided(values.v, from, stride, valid);
    } else {
      constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
      for (int i = 0; i < V; i += W) {
        Vector<T, W> part{};
        if (i < valid) part = PathOf<W * sizeof(T)>::Type::template load<T, W>(from + i);
#pragma unroll
        for (int j = 0; j < W; ++j) values.v[i + j] = part.v[j];
      }
    }
  }

  __device__ __forceinline__ Vector<T, V> get() const { return values; }
};

template <class T, int V, int WIDTH> struct Elements<T, V, WIDTH, true> {
  Vector<T, V> low, high;  // the two aligned vectors that contain the elements
  int skipped, valid;      // elements of `low` before the first one, elements that are read

  __device__ __forceinline__ void load(const T* from, i64, int count, const T* begin, const T* end) {
    valid = count;
    skipped = int(u64(from) / sizeof(T) % V);
    const T* aligned = from - skipped;
    if (aligned >= begin && aligned + 2 * V <= end) {
      ::load<Plain, V>(low.v, aligned);
      ::load<Plain, V>(high.v, aligned + V);
    } else {
      skipped = 0;
      high = {};
#pragma unroll
      for (int i = 0; i < V; ++i) low.v[i] = i < valid ? from[i] : T{};
    }
  }

  __device__ __forceinline__ Vector<T, V> get() const {
    Vector<T, V> found = window(low, high, skipped);
#pragma unroll
    for (int i = 0; i < V; ++i) found.v[i] = i < valid ? found.v[i] : T{};
    return found;
  }
};

// Stores the first `valid` of V neighbours, in accesses of WIDTH elements if these are whole.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void store_neighbours(T* to, const T (&from)[V], int valid) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
  for (int i = 0; i < V; i += W) store_row<W>(to + i, reinterpret_cast<const T(&)[W]>(from[i]), min(valid - i, W));
}

// Transposes a square in registers. Elements that share a word are exchanged by permutes of two words; whole words need
// no instructions.
template <class T, int N> __device__ __forceinline__ void transpose(Vector<T, N> (&square)[N]) {
  typedef Units<T, N> U;
  typedef typename U::Type Unit;
  Unit rows[N][U::COUNT];
#pragma unroll
  for (int row = 0; row < N; ++row) {
#pragma unroll
    for (int i = 0; i < U::COUNT; ++i) rows[row][i] = reinterpret_cast<const Unit*>(&square[row])[i];
  }
  if constexpr (U::PER_UNIT > 1) {
#pragma unroll
    for (int step = 1; step < U::PER_UNIT; step *= 2) {
      const bool are_halves = 2 * step == U::PER_UNIT;
#pragma unroll
      for (int row = 0; row < N; ++row) {
        if (row & step) continue;
#pragma unroll
        for (int i = 0; i < U::COUNT; ++i) {
          const u32 upper = rows[row][i], lower = rows[row + step][i];
          rows[row][i] = __byte_perm(upper, lower, are_halves ? 0x5410 : 0x6240);
          rows[row + step][i] = __byte_perm(upper, lower, are_halves ? 0x7632 : 0x7351);
        }
      }
    }
  }
#pragma unroll
  for (int row = 0; row < N; ++row) {
#pragma unroll
    for (int i = 0; i < U::COUNT; ++i) {
      const int block = row / U::PER_UNIT * U::PER_UNIT;
      reinterpret_cast<Unit*>(&square[row])[i] = rows[i * U::PER_UNIT + row - block][block / U::PER_UNIT];
    }
  }
}

// The round-robin assignment of blocks to COUNT copies. Each round has the same number of blocks of every part, so that
// neighbouring data is moved at about the same time. ends[n]: blocks of parts 0 to n in a round; round.divisor: all of
// them.
template <int COUNT> struct PartRounds {
  Divider round;
  u32 ends[COUNT];

  // The part that `block` works on; `block` becomes its number within the part.
  __device__ __forceinline__ int part_of(u32& block) const {
    if constexpr (COUNT == 1) return 0;
    const u32 number = round.divide(block), within = block - number * round.divisor;
    int part = 0;
    u32 begin = 0, end = ends[0];
#pragma unroll
    for (int n = 1; n < COUNT; ++n) {
      if (within >= ends[n - 1]) part = n, begin = ends[n - 1], end = ends[n];
    }
    block = number * (end - begin) + within - begin;
    return part;
  }
};
