// Pieces of attention on mma.sync: rows of heads in shared memory, and fragments of them.
//
// Rows of SIZE elements lie PITCH_BYTES apart, 16 bytes more than they have, so that the eight rows of an ldmatrix
// begin in different banks. Elements that do not exist are zeros.

#pragma once

#include "include/attention.cuh"
#include "include/cp_async.cuh"
#include "include/ldmatrix.cuh"
#include "include/mma.cuh"

// ROWS_ rows of a head in shared memory.
template <class T_, int ROWS_, int SIZE_> struct HeadRows {
  typedef T_ T;
  static constexpr int ROWS = ROWS_, SIZE = SIZE_, PIECES = SIZE / 8;
  static constexpr u32 PITCH_BYTES = SIZE * sizeof(T) + 16, BYTES = ROWS * PITCH_BYTES;
  static_assert(sizeof(T) == 2 && SIZE % 16 == 0 && ROWS % 16 == 0, "of whole fragments");

  u32 address;

  // Starts copies of the rows from `from` on, `stride` elements apart, of which `rows` exist with `size` elements each.
  template <int THREADS> __device__ __forceinline__ void copy(const T* from, i64 stride, i32 rows, i32 size) const {
#pragma unroll
    for (int first = 0; first < ROWS * PIECES; first += THREADS) {
      const int i = first + threadIdx.x, row = i / PIECES, piece = i % PIECES;
      if (ROWS * PIECES % THREADS != 0 && i >= ROWS * PIECES) break;
      cp_async<16>(address + row * PITCH_BYTES + piece * 16, from + row * stride + piece * 8,
                   row < rows && piece * 8 < size);
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
