// Boxes of one image in shared memory, and the sums of their windows, one axis after the other: the common part of the
// kernels of divisive normalisation.
//
// Block: THREADS threads, a tile of TILE_D x TILE_H x TILE_W positions in TILE_C channels; it also loads the positions
// around the tile that its windows reach.
// Launch: the digits of a block over `tiles` are n, tiles of channels, of d, of h, of w.
// Macros: X M (types of x and its means) COMPUTE WINDOW (positions along an axis) SPATIAL (axes: 2, with one position
// along d, or 3) TILE_D TILE_H TILE_W TILE_C THREADS; HAS_MEANS: whether there are means, which otherwise are 0.

#pragma once

#include "include/math/division.cuh"
#include "include/vector.cuh"

typedef COMPUTE Value;

// Positions of a window along h and w before its centre.
constexpr int BEFORE = (WINDOW - 1) / 2;
// Positions of a window along h and w after its centre.
constexpr int AFTER = WINDOW - 1 - BEFORE;
// Positions of a window along h and w besides its centre.
constexpr int REACH = WINDOW - 1;
// Positions of a window along d before its centre.
constexpr int BEFORE_D = SPATIAL == 3 ? BEFORE : 0;
// Positions of a window along d after its centre.
constexpr int AFTER_D = SPATIAL == 3 ? AFTER : 0;
// Positions of a window along d besides its centre.
constexpr int REACH_D = BEFORE_D + AFTER_D;

struct Divisive {
  i64 channels, extents[3];  // channels; extents along d, h, w
  Value scale, exponent, k;  // alpha / n^SPATIAL, -beta
  Divider tiles[5];
};

// The position of an element in a tensor, or of the first one of a tile.
struct Position {
  i64 n, c, d, h, w;
};

// The strides of a tensor in elements.
struct Strides {
  i64 n, c, d, h, w;

  __device__ __forceinline__ i64 of(const Position& at) const {
    return at.n * n + at.c * c + at.d * d + at.h * h + at.w * w;
  }
};

// An element of a box: its position in the box, and in the tensors, where it may not exist.
struct Element {
  int d, h, w, c;
  Position at;
  bool exists;
};

__device__ __forceinline__ Position first_position(const Divisive& p) {
  i64 tile[5];
  digits<5>(p.tiles, i64(blockIdx.x), tile);
  return {tile[0], tile[1] * TILE_C, tile[2] * TILE_D, tile[3] * TILE_H, tile[4] * TILE_W};
}

constexpr int elements(int d, int h, int w) { return d * h * w * TILE_C; }

// Calls visit(number, element) for each element of a box D x H x W that begins `low` positions before the tile, `low_d`
// along d.
template <int D, int H, int W, class Visit>
__device__ __forceinline__ void for_box(const Divisive& p, const Position& tile, int low_d, int low,
                                        const Visit& visit) {
  for (int number = threadIdx.x; number < elements(D, H, W); number += THREADS) {
    Element e;
    e.c = number % TILE_C, e.w = number / TILE_C % W, e.h = number / (TILE_C * W) % H, e.d = number / (TILE_C * W * H);
    e.at = {tile.n, tile.c + e.c, tile.d + e.d - low_d, tile.h + e.h - low, tile.w + e.w - low};
    e.exists = e.at.c < p.channels && u64(e.at.d) < u64(p.extents[0]) && u64(e.at.h) < u64(p.extents[1]) &&
               u64(e.at.w) < u64(p.extents[2]);
    visit(number, e);
  }
}

// Sets each element of a box D x H x W to the sum of WINDOW elements of `from`, which is larger, along AXIS (0: d, 1:
// h, 2: w).
template <int D, int H, int W, int AXIS> __device__ __forceinline__ void sum_along(Value* to, const Value* from) {
  constexpr int FROM_H = H + (AXIS == 1 ? REACH : 0), FROM_W = W + (AXIS == 2 ? REACH : 0);
  constexpr int STEP = TILE_C * (AXIS == 2 ? 1 : AXIS == 1 ? FROM_W : FROM_W * FROM_H);
  for (int number = threadIdx.x; number < elements(D, H, W); number += THREADS) {
    const int c = number % TILE_C, w = number / TILE_C % W, h = number / (TILE_C * W) % H;
    const int d = number / (TILE_C * W * H);
    const Value* const first = from + ((d * FROM_H + h) * FROM_W + w) * TILE_C + c;
    Value sum = 0;
#pragma unroll
    for (int i = 0; i < WINDOW; ++i) sum += first[i * STEP];
    to[number] = sum;
  }
  __syncthreads();
}

// Sums the windows of a box D x H x W from a box that is REACH larger along all axes; the result is in `box` or
// `spare`.
template <int D, int H, int W> __device__ __forceinline__ Value* window_sums(Value* box, Value* spare) {
  sum_along<D + REACH_D, H + REACH, W, 2>(spare, box);
  sum_along<D + REACH_D, H, W, 1>(box, spare);
  if constexpr (SPATIAL == 2) return box;
  sum_along<D, H, W, 0>(spare, box);
  return spare;
}

__device__ __forceinline__ Value centred(Value x, const M* means, i64 offset) {
  if constexpr (HAS_MEANS) return x - convert<Value>(means[offset]);
  return x;
}

// base^exponent for a base above 0, by the special function unit if T has few bits.
template <class T> __device__ __forceinline__ f32 power(f32 base, f32 exponent) {
  if constexpr (sizeof(T) < sizeof(f32)) return __powf(base, exponent);
  return powf(base, exponent);
}
template <class T> __device__ __forceinline__ f64 power(f64 base, f64 exponent) { return pow(base, exponent); }

// x and its means.
struct Source {
  const X* x;
  const M* means;
  Strides x_strides, means_strides;

  __device__ __forceinline__ Value value(const Position& at) const { return convert<Value>(x[x_strides.of(at)]); }
  __device__ __forceinline__ Value difference(const Position& at) const {
    return centred(value(at), means, means_strides.of(at));
  }

  // Loads the squares of x - means in a box, and 0 for elements that do not exist.
  template <int D, int H, int W>
  __device__ __forceinline__ void load_squares(Value* box, const Divisive& p, const Position& tile, int low_d,
                                               int low) const {
    for_box<D, H, W>(p, tile, low_d, low, [&](int number, const Element& e) {
      const Value x = e.exists ? difference(e.at) : Value(0);
      box[number] = x * x;
    });
    __syncthreads();
  }
};
