// What the kernels of attention's gradients share: parameters, the terms of queries, and stores of gradients.

#pragma once

#include "include/attention_mma.cuh"
#include "include/division.cuh"
#include "include/vector.cuh"

// Of a query: weights are 2^(score * factor - exponent), and centre is the sum of d_o * o. Of one that has no weights
// the exponent is infinity and the centre 0.
struct alignas(8) Term {
  f32 exponent, centre;
};

// A length for each batch; without any, the whole extent.
struct Lengths {
  const void* first;
  i64 stride;
  i32 is_i64;

  __device__ __forceinline__ i32 of(i32 batch, i32 extent) const {
    if (!first) return extent;
    const i64 index = batch * stride;
    const i64 length = is_i64 ? static_cast<const i64*>(first)[index] : static_cast<const i32*>(first)[index];
    return i32(clamped<i64>(length, 0, extent));
  }
};

// A number in memory, or given.
struct Factor {
  const f32* first;
  f32 given;

  __device__ __forceinline__ f32 value() const { return first ? *first : given; }
};

struct Problem {
  Heads<const TYPE> q, k, v, d_o;
  const Term* terms;  // of the queries of each head of each batch
  i32 heads, queries, keys, size_qk, size_v;
  i32 left, right, is_bottom_right;  // query r sees the keys from r - left to r + right, from the last ones on
  Lengths query_lengths, key_lengths;
  Factor scale;

  __device__ __forceinline__ Band band(i32 batch) const {
    const i32 existing_queries = query_lengths.of(batch, queries), existing_keys = key_lengths.of(batch, keys);
    const i32 shift = is_bottom_right ? existing_keys - existing_queries : 0;
    return {left - shift, right + shift, existing_queries, existing_keys};
  }

  __device__ __forceinline__ const Term* terms_of(i32 batch, i32 head) const {
    return terms + (i64(batch) * heads + head) * queries;
  }
};

// Stores factor * values, of rows from `row` on, of which `rows` exist, and of columns from `column` on.
template <class Out, int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void store_gradients(Out* head, i64 stride, i32 row, i32 rows, i32 column, i32 size,
                                                f32 factor, const f32 (&values)[ROW_PARTS][COLUMN_BLOCKS][4]) {
#pragma unroll
  for (int part = 0; part < ROW_PARTS; ++part) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 own_row = row + part * 16 + half * 8 + threadIdx.x % WARP_SIZE / 4;
      if (own_row >= rows) continue;
#pragma unroll
      for (int block = 0; block < COLUMN_BLOCKS; ++block) {
        const i32 own_column = column + block * 8 + threadIdx.x % 4 * 2;
        const f32* const pair = values[part][block] + half * 2;
        const Out results[2] = {convert<Out>(pair[0] * factor), convert<Out>(pair[1] * factor)};
        if (own_column < size) store<2>(head + own_row * stride + own_column, results);
      }
    }
  }
}
