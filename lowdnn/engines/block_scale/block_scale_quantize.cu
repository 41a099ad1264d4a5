// block_scale_quantize: scales[b] = greatest |x| of block b / Y_LARGEST, rounded to S; y[i] = x[i] / scales[b(i)].
//
// Layouts: any strides over RANK axes: the outer ones, the blocks and, with COLUMNS, groups of columns. A block is
// BLOCK elements along the block axis, x_step and y_step apart; the last one of an axis may be shorter.
// COLUMNS 0: x is contiguous along the blocks. LANES neighbouring threads have a block, VECTOR elements each.
// COLUMNS 1: a thread has VECTOR blocks side by side, one for each of VECTOR columns, and reads them row by row: CHUNK
// rows at a time, twice where a block has more of them than stay in registers.
// Block: THREADS threads on neighbouring blocks. Shared memory: none.
// Launch: THREADS threads, ceil(items / THREADS) blocks; item g is lane g % LANES of the block, or of the group of
// columns, whose coordinates are the digits of g / LANES over the radices `axes`.
// Macros: X Y S Y_LARGEST RANK THREADS BLOCK VECTOR LANES COLUMNS CHUNK X_WIDTH Y_WIDTH (0: at a stride); INDEX: u32 up
// to 2^31 items, otherwise i64.

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
  i64 x_step, y_step;
  i64 x_strides[RANK];  // from block to block, and from column to column
  i64 y_strides[RANK];
  i64 scale_strides[RANK];
  Divider axes[RANK];  // the first is not used
};

constexpr int BLOCK_AXIS = RANK - 1 - COLUMNS, COLUMN_AXIS = RANK - 1;

__device__ __forceinline__ int clamped_count(i64 remaining, int most) {
  return remaining >= most ? most : remaining > 0 ? int(remaining) : 0;
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

// One block by LANES threads. Threads without one go along for the exchange.
__device__ __forceinline__ void along_rows(const Params& p, const X* x, Y* y, S* scale, i64 block, int lane) {
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
  if (lane == 0 && valid > 0) *scale = stored;
  Y out[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) out[i] = quantized(in[i], convert<f32>(stored));
  write<Y_WIDTH>(y + first * p.y_step, out, p.y_step, valid);
}

__device__ __forceinline__ void read_rows(
    X (&to)[CHUNK][VECTOR], const Params& p, const X* x, int first, int rows, int valid) {
#pragma unroll
  for (int row = 0; row < CHUNK; ++row) {
    read<X_WIDTH>(to[row], x + (first + row) * p.x_step, p.x_strides[COLUMN_AXIS], first + row < rows ? valid : 0);
  }
}

// VECTOR blocks by one thread.
__device__ __forceinline__ void along_columns(const Params& p, const X* x, Y* y, S* scale, i64 block, i64 column) {
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
  S stored[VECTOR];
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) stored[i] = scale_of(largest[i]);
  store_strided(scale, stored, p.scale_strides[COLUMN_AXIS], valid);
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
  S* scale = p.scales;
#pragma unroll
  for (int axis = 0; axis < RANK; ++axis) {
    x += coordinate[axis] * p.x_strides[axis];
    y += coordinate[axis] * p.y_strides[axis];
    scale += coordinate[axis] * p.scale_strides[axis];
  }
  if constexpr (COLUMNS) {
    if (exists) along_columns(p, x, y, scale, coordinate[BLOCK_AXIS], coordinate[COLUMN_AXIS]);
  } else {
    // What does not exist lies behind the end of its axis.
    along_rows(p, x, y, scale, exists ? coordinate[BLOCK_AXIS] : p.extent, int(threadIdx.x % LANES));
  }
}
