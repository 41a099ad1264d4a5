// Pieces of attention on mma.sync: rows of heads in memory and in shared memory, fragments and products of them, which
// queries see which keys, and sums over the rows of accumulators.
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

// Rows of heads in memory: element strides of batch, head, row.
template <class T> struct Heads {
  T* first;
  i64 strides[3];
  i32 sharing;  // heads of q that share one of these

  __device__ __forceinline__ T* at(i32 batch, i32 head, i64 row) const {
    return first + batch * strides[0] + head / sharing * strides[1] + row * strides[2];
  }
};

// Query r sees the keys from r - left to r + right, of those that there are.
struct Band {
  i32 left, right, queries, keys;

  __device__ __forceinline__ bool sees(i32 query, i32 key) const {
    return key < keys && query - left <= key && key <= query + right;
  }

  // Whether each of these queries sees each of these keys.
  __device__ __forceinline__ bool sees_all(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return last_key < keys && last_key <= first_query + right && first_key >= last_query - left;
  }

  // Whether any of these queries may see any of these keys.
  __device__ __forceinline__ bool sees_any(i32 first_query, i32 query_count, i32 first_key, i32 key_count) const {
    const i32 last_query = first_query + query_count - 1, last_key = first_key + key_count - 1;
    return first_key < keys && first_key <= last_query + right && last_key >= first_query - left;
  }

  // Where the keys that any of these queries sees begin and end; the end may lie before the beginning.
  __device__ __forceinline__ i32 keys_begin(i32 first_query) const { return max(first_query - left, 0); }
  __device__ __forceinline__ i32 keys_end(i32 first_query, i32 query_count) const {
    if (first_query >= queries) return 0;
    return clamped(min(first_query + query_count, queries) + right, 0, keys);
  }

  // The same of the queries that see any of these keys.
  __device__ __forceinline__ i32 queries_begin(i32 first_key) const { return max(first_key - right, 0); }
  __device__ __forceinline__ i32 queries_end(i32 first_key, i32 key_count) const {
    if (first_key >= keys) return 0;
    return clamped(min(first_key + key_count, keys) + left, 0, queries);
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

// c += a b of the rows of b and 8 * COLUMN_BLOCKS of its columns, from `column` on. operand(part, block, half) is the word of
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
