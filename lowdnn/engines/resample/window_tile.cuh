// Tiles of neighbouring windows whose taps are known at compile time, and reads of an image.

#pragma once

#include "resample.cuh"
#include "include/vector.cuh"
#include "window_results.cuh"

// COUNT neighbouring windows along an axis, with positions relative to the first tap of the first one: window i has the
// taps floor((i * STEP + PHASE) / UNIT) and WINDOW - 1 more.
template <int COUNT_, int WINDOW_, int STEP, int UNIT, int PHASE> struct Windows {
  static constexpr int COUNT = COUNT_, WINDOW = WINDOW_;
  static __device__ constexpr int first(int window) { return (window * STEP + PHASE) / UNIT; }
  static __device__ constexpr bool has(int window, int position) {
    return position >= first(window) && position < first(window) + WINDOW;
  }
  static constexpr int POSITIONS = (COUNT * STEP - STEP + PHASE) / UNIT + WINDOW;

  // The weight of `position`, one of the two taps between which a window interpolates.
  template <class T> static __device__ constexpr T closeness(int window, int position) {
    const int past = (window * STEP + PHASE) % UNIT;
    return T(position == first(window) ? UNIT - past : past) / T(UNIT);
  }

  // The number of a window's first tap that counts, if any does; `start` is the tile's first position.
  template <int OUTSIDE> static __device__ __forceinline__ i32 first_tap(int window, i32 start) {
    return OUTSIDE == SKIP ? max(-start - first(window), 0) : 0;
  }
  // Whether a window has taps that are not skipped as padding.
  template <int OUTSIDE> static __device__ __forceinline__ bool has_taps(int window, i32 start, i32 extent) {
    return OUTSIDE != SKIP || (start + first(window) > -WINDOW && start + first(window) < extent);
  }
};

constexpr int floor_quotient(int dividend, int divisor) {
  return dividend >= 0 ? dividend / divisor : -((divisor - 1 - dividend) / divisor);
}

// COUNT neighbouring positions, relative to the first one, and the OUTPUTS outputs that read them. Output k samples the
// image at ((FIRST + k) * STEP - PHASE) / UNIT, and has the tap at or below that point and WINDOW - 1 more.
template <int COUNT_, int WINDOW_, int STEP, int UNIT, int PHASE> struct Readers {
  static constexpr int COUNT = COUNT_, WINDOW = WINDOW_;
  static constexpr int FIRST = -floor_quotient((WINDOW - 1) * UNIT - PHASE, STEP);
  static constexpr int OUTPUTS = (COUNT * UNIT - 1 + PHASE) / STEP - FIRST + 1;
  static constexpr int ORIGIN = floor_quotient(FIRST * STEP - PHASE, UNIT);  // the first tap of output 0
  typedef Windows<OUTPUTS, WINDOW, STEP, UNIT, FIRST * STEP - PHASE - ORIGIN * UNIT> OwnWindows;

  static __device__ constexpr int tap(int k, int position) { return position - ORIGIN - OwnWindows::first(k); }
  static __device__ constexpr bool has(int k, int position) { return OwnWindows::has(k, position - ORIGIN); }

  // The number of output 0 of a tile at `position`, which is a multiple of COUNT.
  static __device__ __forceinline__ i32 first(const TapAxis& axis, i32 position) {
    return ((position + axis.bias) * UNIT - axis.start - PHASE) / STEP + FIRST;
  }

  // The weight of a position between two taps. The image's edge positions also take the weights of taps outside.
  template <int OUTSIDE, class T>
  static __device__ __forceinline__ T closeness(int k, int position, bool is_first, bool is_last) {
    const int past = (FIRST + k) * STEP - PHASE - position * UNIT;
    const T inside = T(UNIT - (past < 0 ? -past : past)) / T(UNIT);
    return OUTSIDE == CLAMP && (past < 0 ? is_first : is_last && past > 0) ? T(1) : inside;
  }
};

// Codes number a tile's positions so that an argmax is its code minus the code of its window's first tap.
template <class Rows, class Columns> struct Codes {
  static __device__ constexpr i32 of(int row, int column) { return row * Columns::WINDOW + column; }
  static __device__ constexpr i32 first(int i, int j) { return of(Rows::first(i), Columns::first(j)); }

  // The code of the window's first tap that counts, if any does.
  template <int OUTSIDE> static __device__ __forceinline__ i32 first_counted(int i, int j, i32 row, i32 column) {
    return first(i, j) + of(Rows::template first_tap<OUTSIDE>(i, row), Columns::template first_tap<OUTSIDE>(j, column));
  }
};

template <class X> constexpr bool HAS_INFINITY = false;
template <> constexpr bool HAS_INFINITY<f16> = true;
template <> constexpr bool HAS_INFINITY<bf16> = true;
template <> constexpr bool HAS_INFINITY<f32> = true;
template <> constexpr bool HAS_INFINITY<f64> = true;

template <class X> __device__ __forceinline__ X negative_infinity() { return X{}; }
template <> __device__ __forceinline__ f16 negative_infinity<f16>() { return {0xfc00}; }
template <> __device__ __forceinline__ bf16 negative_infinity<bf16>() { return {0xff80}; }
template <> __device__ __forceinline__ f32 negative_infinity<f32>() { return lowest<f32>(); }
template <> __device__ __forceinline__ f64 negative_infinity<f64>() { return lowest<f64>(); }

// Loads LANES elements with distance `stride`, contiguous if NEIGHBOURS; `absent` for those that do not exist.
template <bool NEIGHBOURS, class X, int LANES>
__device__ __forceinline__ void load_lanes(X (&stored)[LANES], const X* at, i64 stride, bool exists, X absent) {
#pragma unroll
  for (int v = 0; v < LANES; ++v) stored[v] = absent;
  if constexpr (NEIGHBOURS) {
    load_where<LANES>(exists, stored, at);
  } else {
#pragma unroll
    for (int v = 0; v < LANES; ++v) {
      X one[1] = {absent};
      load_where<1>(exists, one, at + v * stride);
      stored[v] = one[0];
    }
  }
}

// A plane of an image at V channels, contiguous if NEIGHBOURS. UNIT_COLUMNS: columns are contiguous. WIDTH: elements of
// an access along the columns, all of them inside the image or all outside; BEFORE: those of the first access before a
// tile's first position.
template <class X, int V, bool NEIGHBOURS, bool UNIT_COLUMNS, int WIDTH, int BEFORE, int OUTSIDE>
struct ImagePlane {
  const X* at;
  i64 channel_stride, row_stride, column_stride;
  i32 rows, columns;
  bool exists;

  // Reads POSITIONS positions from `column` on in row `row` + `down`; the first one's code is `code`.
  template <class Result, int POSITIONS>
  __device__ __forceinline__ void read_row(typename Result::Value (&values)[POSITIONS][Result::LANES], i32 row,
                                           int down, i32 column, i32 code) const {
    const bool has_row = OUTSIDE == CLAMP || (exists && u32(row + down) < u32(rows));
    const i64 step = UNIT_COLUMNS ? 1 : column_stride;
    const X* from = at + offset_of(row, down, rows, row_stride);
    X stored[POSITIONS][V];
    if constexpr (WIDTH > 1) {
      read_aligned<Result>(stored, from, has_row, column);
    } else {
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) {
        load_lanes<NEIGHBOURS>(stored[k], from + offset_of(column, k, columns, step), channel_stride,
                               has_row && has_column(column + k), absent<Result>());
      }
    }
    Result::of(stored, code, values);
    if constexpr (Result::IS_MAXIMUM && OUTSIDE == SKIP && !HAS_INFINITY<X>) {
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) {
        if (has_row && has_column(column + k)) continue;
#pragma unroll
        for (int v = 0; v < Result::LANES; ++v) values[k][v] = lowest<typename Result::Value>();
      }
    }
  }

 private:
  // The offset of position `first` + `past`. Neighbours share one multiplication.
  static __device__ __forceinline__ i64 offset_of(i32 first, int past, i32 extent, i64 stride) {
    return OUTSIDE == CLAMP ? clamp(first + past, extent) * stride : first * stride + past * stride;
  }
  __device__ __forceinline__ bool has_column(i32 column) const {
    return OUTSIDE == CLAMP || u32(column) < u32(columns);
  }

  // The value of a position outside the image.
  template <class Result> static __device__ __forceinline__ X absent() {
    return Result::IS_MAXIMUM && OUTSIDE == SKIP ? negative_infinity<X>() : X{};
  }

  template <class Result, int POSITIONS>
  __device__ __forceinline__ void read_aligned(X (&stored)[POSITIONS][V], const X* from, bool has_row,
                                               i32 column) const {
    constexpr int COUNT = (BEFORE + POSITIONS + WIDTH - 1) / WIDTH;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      X part[COUNT][WIDTH];
#pragma unroll
      for (int i = 0; i < COUNT; ++i) {
        const i32 begin = column - BEFORE + i * WIDTH;
        load_lanes<true>(part[i], from + v * channel_stride + begin, 1, has_row && u32(begin) < u32(columns),
                         absent<Result>());
      }
#pragma unroll
      for (int k = 0; k < POSITIONS; ++k) stored[k][v] = part[(BEFORE + k) / WIDTH][(BEFORE + k) % WIDTH];
      if constexpr (OUTSIDE == CLAMP) repeat_edges(stored, v, column);
    }
  }

  template <int POSITIONS>
  __device__ __forceinline__ void repeat_edges(X (&stored)[POSITIONS][V], int v, i32 column) const {
#pragma unroll
    for (int k = POSITIONS - 2; k >= 0; --k) {
      if (column + k < 0) stored[k][v] = stored[k + 1][v];
    }
#pragma unroll
    for (int k = 1; k < POSITIONS; ++k) {
      if (column + k >= columns) stored[k][v] = stored[k - 1][v];
    }
  }
};

// Adds a plane to the results of a tile of windows, row by row; its first tap is at `row` and `column`.
template <class Rows, class Columns, bool IS_LINEAR, class Plane, class Result, class T>
__device__ __forceinline__ void add_plane(const Plane& plane, i32 row, i32 column, T weight,
                                          Result (&results)[Rows::COUNT][Columns::COUNT]) {
#pragma unroll
  for (int r = 0; r < Rows::POSITIONS; ++r) {
    typename Result::Value values[Columns::POSITIONS][Result::LANES];
    plane.template read_row<Result>(values, row, r, column, Codes<Rows, Columns>::of(r, 0));
#pragma unroll
    for (int j = 0; j < Columns::COUNT; ++j) {
      Result part;
#pragma unroll
      for (int k = Columns::first(j); k < Columns::first(j) + Columns::WINDOW; ++k) {
        const T share = IS_LINEAR ? Columns::template closeness<T>(j, k) : T(1);
        const i32 code = Codes<Rows, Columns>::of(r, k);
        if (k == Columns::first(j)) {
          part.start(values[k], share, code);
        } else {
          part.take(values[k], share, code);
        }
      }
#pragma unroll
      for (int i = 0; i < Rows::COUNT; ++i) {
        if (!Rows::has(i, r)) continue;
        results[i][j].join(part, IS_LINEAR ? weight * Rows::template closeness<T>(i, r) : T(1));
      }
    }
  }
}
