// What the kernels that move elements share: conversions, ways to load, the parts of a launch of several copies.

#pragma once

#include "include/math/division.cuh"
#include "include/ptx/dependent_launch.cuh"
#include "include/vector.cuh"

// Begins a dependent launch (dependent_launch.cuh): waits for what is read, and makes room for the kernel behind.
template <bool IS_DEPENDENT> __device__ __forceinline__ void begin_launch() {
  if constexpr (IS_DEPENDENT) {
    wait_for_previous_kernel();
    allow_next_kernel();
  }
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

// How rows of V elements lie in registers: PER_UNIT of them in a word where they are narrower and fill some.
template <class T, int PER_UNIT> struct UnitOf { typedef u32 Type; };
template <class T> struct UnitOf<T, 1> { typedef T Type; };
template <class T, int V> struct Units {
  static constexpr int PER_UNIT = sizeof(T) < 4 && V * sizeof(T) >= 4 ? 4 / sizeof(T) : 1;
  static constexpr int COUNT = V / PER_UNIT;
  typedef typename UnitOf<T, PER_UNIT>::Type Type;
};

// The elements from `count` (0 to V - 1) on of low and high one behind the other.
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

// Whether rows that begin at multiples of WIDTH elements are read by vectors that lie askew to them.
template <class T, int V> constexpr bool is_askew(int width) {
  return width > 0 && width * sizeof(T) < 4 && V * sizeof(T) % 4 == 0;
}

// V elements of x, of which the first `valid` are read and the others are zero bits. WIDTH: elements of an access along
// which x is contiguous, a divisor of all counts `valid`; 0: single elements at a stride. Loads of several may be in
// flight before the first get.
template <class T, int V, int WIDTH, bool ASKEW = is_askew<T, V>(WIDTH)> struct Elements {
  Vector<T, V> values;

  // `begin`, `end`: where all that may be read lies.
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
  Vector<T, V> low, high;  // the aligned vectors in which they lie
  int skipped, valid;      // elements in front of the first one there, and how many are read

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

// The first `valid` of V neighbours, in accesses of WIDTH elements where these are whole.
template <int WIDTH, class T, int V>
__device__ __forceinline__ void store_neighbours(T* to, const T (&from)[V], int valid) {
  constexpr int W = access_width(WIDTH, V, sizeof(T));
#pragma unroll
  for (int i = 0; i < V; i += W) store_row<W>(to + i, reinterpret_cast<const T(&)[W]>(from[i]), min(valid - i, W));
}

// Rows become columns. Elements that share a word change places by permutes of two words; whole words only get names.
template <class T, int N> __device__ __forceinline__ void turn(Vector<T, N> (&square)[N]) {
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

// How blocks share COUNT copies: in turns, each with the same blocks of every part, so that what lies side by side is
// moved at about the same time. ends[n]: the blocks of parts 0 to n in a turn, of which there are `turn.divisor` in all.
template <int COUNT> struct PartTurns {
  Divider turn;
  u32 ends[COUNT];

  // The part that `block` works on; `block` becomes its number within the part.
  __device__ __forceinline__ int part_of(u32& block) const {
    if constexpr (COUNT == 1) return 0;
    const u32 turns = turn.divide(block), within = block - turns * turn.divisor;
    int part = 0;
    u32 begin = 0, end = ends[0];
#pragma unroll
    for (int n = 1; n < COUNT; ++n) {
      if (within >= ends[n - 1]) part = n, begin = ends[n - 1], end = ends[n];
    }
    block = turns * (end - begin) + within - begin;
    return part;
  }
};
