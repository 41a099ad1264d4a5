// block_scale_quantize: scales[b] = greatest |x| of block b / Y_LARGEST, rounded to S; y[i] = x[i] / scales[b(i)].
//
// Layouts: any strides over RANK axes: the outer ones, the blocks and, with COLUMNS, groups of columns. A block is
// BLOCK elements along the block axis, x_step and y_step apart; the last one of an axis may be shorter.
// TILED 1: the scales lie in tiles of 128 by 4 (F8_128x4), rows along SCALE_ROW, columns along SCALE_COLUMN; the space
// is that of whole tiles, and what lies beyond `limits` has no elements and a scale of zero bits.
// COLUMNS 0: x is contiguous along the blocks. LANES neighbouring threads have a block, VECTOR elements each.
// COLUMNS 1: a thread has VECTOR blocks side by side, one for each of VECTOR columns, and reads them row by row: CHUNK
// rows at a time, twice where a block has more of them than stay in registers.
// Block: THREADS threads on neighbouring blocks. Shared memory: none.
// Launch: THREADS threads, ceil(items / THREADS) blocks; item g is lane g % LANES of the block, or of the group of
// columns, whose coordinates are the digits of g / LANES over the radices `axes`.
// Macros: X Y S Y_LARGEST RANK THREADS BLOCK VECTOR LANES COLUMNS CHUNK X_WIDTH Y_WIDTH (0: at a stride) TILED
// SCALE_ROW SCALE_COLUMN; INDEX: u32 up to 2^31 items, otherwise i64.

#include "include/division.cuh"
#include "include/pointwise.cuh"
#include "include/vector.cuh"

struct Params {
  const X* x;
  Y* y;
  S* scales;
  i64 items;
  i64 extent;   // elements along the block axis
  i64 columns;  // elements along the column axis
  i64 scale_columns;  // scales along it, those that fill up tiles included
  i64 scale_tiles;    // tiles in a row of them
  i64 x_step, y_step;
  i64 x_strides[RANK];  // from block to block, and from column to column
  i64 y_strides[RANK];
  i64 scale_strides[RANK];
  i64 limits[RANK];  // blocks, or elements of the other axes, that are there
  Divider axes[RANK];  // the first is not used
};

constexpr int BLOCK_AXIS = RANK - 1 - COLUMNS, COLUMN_AXIS = RANK - 1;

__device__ __forceinline__ int clamped_count(i64 remaining, int most) {
  return remaining >= most ? most : remaining > 0 ? int(remaining) : 0;
}

// Where the scale of a block lies, or of the one `next` columns further.
__device__ __forceinline__ S* scale_at(const Params& p, const i64 (&coordinate)[RANK], int next) {
  i64 offset = COLUMNS ? next * p.scale_strides[COLUMN_AXIS] : 0;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) offset += coordinate[axis] * p.scale_strides[axis];
  if constexpr (TILED) {
    const i64 row = coordinate[SCALE_ROW] + (COLUMNS && SCALE_ROW == COLUMN_AXIS ? next : 0);
    const i64 column = coordinate[SCALE_COLUMN] + (COLUMNS && SCALE_COLUMN == COLUMN_AXIS ? next : 0);
    offset += (row / 128 * p.scale_tiles + column / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
  }
  return p.scales + offset;
}

// Whether there are elements at a coordinate; along the column axis that is asked for each of them.
__device__ __forceinline__ bool within_limits(const Params& p, const i64 (&coordinate)[RANK]) {
  bool within = true;
#pragma unroll
  for (int axis = 0; axis < RANK - COLUMNS; ++axis) within &= coordinate[axis] < p.limits[axis];
  return within;
}

__device__ __forceinline__ S scale_of(f32 largest) { return convert<S>(largest / Y_LARGEST); }

__device__ __forceinline__ Y quantized(X x, f32 scale) {
  return convert<Y>(scale == 0.0f ? 0.0f : convert<f32>(x) / scale);
}

template <int WIDTH, int COUNT>
__device__ __forceinline__ void read(X (&to)[COUNT], const X* from, i64 stride, int valid) {
  if constexpr (WIDTH == 0) {
    load_strided(to, from, stride, valid);
  } else {
    load_row<Plain, WIDTH>(to, from, valid);
  }
}

template <int WIDTH, int COUNT>
__device__ __forceinline__ void write(Y* to, const Y (&from)[COUNT], i64 stride, int valid) {
  if constexpr (WIDTH == 0) {
    store_strided(to, from, stride, valid);
  } else {
    store_row<WIDTH>(to, from, valid);
  }
}

// One block by LANES threads; gives its scale. Threads without one go along for the exchange.
__device__ __forceinline__ S along_rows(const Params& p, const X* x, Y* y, i64 block, int lane) {
  const int first = lane * VECTOR;
  const int valid = clamped_count(p.extent - block * BLOCK - first, VECTOR);
  X in[VECTOR];
  read<X_WIDTH>(in, x + first, 1, valid);
  f32 largest = 0.0f;
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    if (i < valid) largest = maximum(fabsf(convert<f32>(in[i])), largest);
  }
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    largest = maximum(__shfl_xor_sync(0xffffffffu, largest, distance), largest);
  }
  const S stored = scale_of(largest);
  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) out[i] = quantized(in[i], convert<f32>(stored));
  write<Y_WIDTH>(y + first * p.y_step, out, p.y_step, valid);
  return stored;
}

__device__ __forceinline__ void read_rows(
    X (&to)[CHUNK][VECTOR], const Params& p, const X* x, int first, int rows, int valid) {
#pragma unroll
  for (int row = 0; row < CHUNK; ++row) {
    read<X_WIDTH>(to[row], x + (first + row) * p.x_step, p.x_strides[COLUMN_AXIS], first + row < rows ? valid : 0);
  }
}

// VECTOR blocks by one thread; gives their scales.
__device__ __forceinline__ void along_columns(
    const Params& p, const X* x, Y* y, i64 block, i64 column, S (&stored)[VECTOR]) {
  const int rows = clamped_count(p.extent - block * BLOCK, BLOCK);
  const int valid = clamped_count(p.columns - column, VECTOR);
  X in[CHUNK][VECTOR];
  f32 largest[VECTOR] = {};
#pragma unroll 1
  for (int first = 0; first < BLOCK; first += CHUNK) {
    read_rows(in, p, x, first, rows, valid);
#pragma unroll
    for (int row = 0; row < CHUNK; ++row) {
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) {
        if (first + row < rows && i < valid) largest[i] = maximum(fabsf(convert<f32>(in[row][i])), largest[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) stored[i] = scale_of(largest[i]);
#pragma unroll 1
  for (int first = 0; first < BLOCK; first += CHUNK) {
    if (CHUNK < BLOCK) read_rows(in, p, x, first, rows, valid);
#pragma unroll
    for (int row = 0; row < CHUNK; ++row) {
      Y out[VECTOR];
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) out[i] = quantized(in[row][i], convert<f32>(stored[i]));
      const int here = first + row < rows ? valid : 0;
      write<Y_WIDTH>(y + (first + row) * p.y_step, out, p.y_strides[COLUMN_AXIS], here);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ Params p) {
  const i64 item = i64(blockIdx.x) * THREADS + threadIdx.x;
  const bool exists = item < p.items;
  i64 coordinate[RANK];
  digits<RANK>(p.axes, INDEX(exists ? item / LANES : 0), coordinate);
  if (COLUMNS) coordinate[COLUMN_AXIS] *= VECTOR;
  const X* x = p.x;
  Y* y = p.y;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) {
    x += coordinate[axis] * p.x_strides[axis];
    y += coordinate[axis] * p.y_strides[axis];
  }
  // What is not there lies behind the end of its axis.
  const bool is_there = exists && (!TILED || within_limits(p, coordinate));
  const i64 block = is_there ? coordinate[BLOCK_AXIS] : p.extent;
  if constexpr (COLUMNS) {
    if (!exists) return;
    S scales[VECTOR];
    along_columns(p, x, y, block, coordinate[COLUMN_AXIS], scales);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
      if (coordinate[COLUMN_AXIS] + i < p.scale_columns) *scale_at(p, coordinate, i) = scales[i];
    }
  } else {
    const int lane = threadIdx.x % LANES;
    const S scale = along_rows(p, x, y, block, lane);
    if (exists && lane == 0) *scale_at(p, coordinate, 0) = scale;
  }
}
