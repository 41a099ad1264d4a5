// Pieces of attention on mma.sync: rows of heads in shared memory, fragments and products of them.
//
// Rows of SIZE elements lie PITCH_BYTES apart, 16 bytes more than they have, so that the eight rows of an ldmatrix
// begin in different banks. Elements that do not exist are zeros.

#pragma once

#include "include/attention.cuh"
#include "include/cp_async.cuh"
#include "include/ldmatrix.cuh"
#include "include/mma.cuh"

// Rows that lie `stride` elements apart, each asked for as a sum, of which products with the stride stay the same.
template <class T> struct StridedRows {
  const T* first;
  i64 stride;

  __device__ __forceinline__ const T* operator()(int row, int further) const {
    return first + row * stride + further * stride;
  }
};

// ROWS_ rows of a head in shared memory.
template <class T_, int ROWS_, int SIZE_> struct HeadRows {
  typedef T_ T;
  static constexpr int ROWS = ROWS_, SIZE = SIZE_, PIECES = SIZE / 8;
  static constexpr u32 PITCH_BYTES = SIZE * sizeof(T) + 16, BYTES = ROWS * PITCH_BYTES;
  static_assert(sizeof(T) == 2 && SIZE % 16 == 0 && ROWS % 16 == 0, "of whole fragments");

  u32 address;

  // Starts copies of the rows from `from` on, `stride` elements apart, of which `rows` exist with `size` elements each.
  template <int THREADS> __device__ __forceinline__ void copy(const T* from, i64 stride, i32 rows, i32 size) const {
    copy_each<THREADS>(StridedRows<T>{from, stride}, rows, size);
  }

  // The same of rows that lie anywhere, each from at(row, further) on, of which it is the sum, by THREADS neighbouring
  // threads. All addresses are found first: those in memory are read side by side.
  template <int THREADS, class At> __device__ __forceinline__ void copy_each(const At& at, i32 rows, i32 size) const {
    constexpr int ALL = ROWS * PIECES, STEPS = (ALL + THREADS - 1) / THREADS;
    const int thread = threadIdx.x % THREADS;
    const T* from[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      from[step] = THREADS % PIECES == 0 ? at(thread / PIECES, step * (THREADS / PIECES))
                                         : at((step * THREADS + thread) / PIECES, 0);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int i = step * THREADS + thread, row = i / PIECES, piece = i % PIECES;
      if (ALL % THREADS != 0 && i >= ALL) break;
      cp_async<16>(address + row * PITCH_BYTES + piece * 16, from[step] + piece * 8, row < rows && piece * 8 < size);
    }
  }

  // The 16 x 16 elements from (row, column) on as an A operand.
  __device__ __forceinline__ void load_a(u32 (&a)[4], int row, int column) const {
    const u32 lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(a, address + (row + lane % 16) * PITCH_BYTES + (column / 8 + lane / 16) * 16);
  }

  // The 16 rows and 16 columns from there on as two B operands, of columns that are these rows: b[0], b[1] the first.
  __device__ __forceinline__ void load_b(u32 (&b)[4], int row, int column) const {
    const u32 lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4(b, address + (row + lane % 8 + lane / 16 * 8) * PITCH_BYTES + (column / 8 + lane / 8 % 2) * 16);
  }

  // The same as two B operands whose k runs along the rows.
  __device__ __forceinline__ void load_b_transposed(u32 (&b)[4], int row, int column) const {
    const u32 lane = threadIdx.x % WARP_SIZE;
    ldmatrix_x4_transposed(b, address + (row + lane % 16) * PITCH_BYTES + (column / 8 + lane / 16) * 16);
  }
};

// c = a b^T of 16 * ROW_PARTS rows of a, from `row` on, and 8 * COLUMN_BLOCKS rows of b.
template <class A, class B, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_rows(const A& a, int row, const B& b, f32 (&c)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  static_assert(A::SIZE == B::SIZE && COLUMN_BLOCKS * 8 == B::ROWS, "the whole of b");
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; ++block)
#pragma unroll
      for (int i = 0; i < 4; ++i) c[part][block][i] = 0;
#pragma unroll
  for (int step = 0; step < A::SIZE; step += 16) {
    u32 of_a[ROW_PARTS][4];
#pragma unroll
    for (int part = 0; part < ROW_PARTS; ++part) a.load_a(of_a[part], row + part * 16, step);
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      u32 of_b[4];
      b.load_b(of_b, block * 8, step);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part) {
        Mma<typename B::T>::apply(c[part][block], of_a[part], of_b[0], of_b[1]);
        Mma<typename B::T>::apply(c[part][block + 1], of_a[part], of_b[2], of_b[3]);
      }
    }
  }
}

// c += a b of the rows of b and 8 * COLUMN_BLOCKS of its columns, from `column` on. operand(part, block, half) is the
// word of
// a with this thread's two elements of a block of 8 columns, where accumulators of a product have them.
template <class Operand, class B, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_columns(const Operand& operand, const B& b, int column,
                                                 f32 (&c)[ROW_PARTS][COLUMN_BLOCKS][4]) {
#pragma unroll
  for (int step = 0; step < B::ROWS / 8; step += 2) {
    u32 of_a[ROW_PARTS][4];
#pragma unroll
    for (int part = 0; part < ROW_PARTS; ++part)
#pragma unroll
      for (int i = 0; i < 4; ++i) of_a[part][i] = operand(part, step + i / 2, i % 2);
#pragma unroll
    for (int block = 0; block < COLUMN_BLOCKS; block += 2) {
      u32 of_b[4];
      b.load_b_transposed(of_b, step * 8, column + block * 8);
#pragma unroll
      for (int part = 0; part < ROW_PARTS; ++part) {
        Mma<typename B::T>::apply(c[part][block], of_a[part], of_b[0], of_b[1]);
        Mma<typename B::T>::apply(c[part][block + 1], of_a[part], of_b[2], of_b[3]);
      }
    }
  }
}
