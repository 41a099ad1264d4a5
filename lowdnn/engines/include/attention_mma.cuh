// Pieces of attention on mma.sync: rows of heads in shared memory, fragments of them, and softmax over the rows of
// accumulators.
//
// Rows of SIZE elements lie PITCH_BYTES apart, 16 bytes more than they have, so that the eight rows of an ldmatrix
// begin in different banks. Elements that do not exist are zeros.

#pragma once

#include "include/cp_async.cuh"
#include "include/ldmatrix.cuh"
#include "include/mma.cuh"

constexpr f32 LOG2_E = 1.44269504088896341f;
#define MINUS_INFINITY __int_as_float(0xff800000)

// A power of two to 2 units in the last place.
__device__ __forceinline__ f32 power_of_two(f32 x) {
  f32 result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Two values as one word, the first in its low half.
__device__ __forceinline__ u32 packed(Tag<bf16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ u32 packed(Tag<f16>, f32 low, f32 high) {
  u32 word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// Of the four lanes that hold a row of accumulators.
__device__ __forceinline__ f32 largest_of_row(f32 x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ f32 sum_of_row(f32 x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

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
