// Factors and roundings of products of attention's gradients. With IS_FP8 operands are fp16, widened by
// attention_backward_widen.cu; weights and gradients of scores, which are made with their scales, are rounded to fp8
// before they are operands; largest magnitudes are stored.

#pragma once

#include "attention_backward.cuh"
#include "include/math/fp8_pairs.cuh"

// Factors that turn q k^T into scores and d_o v^T into gradients of weights.
struct Scaling {
  f32 scores;
#if IS_FP8
  f32 d_weights;

  __device__ __forceinline__ f32 of_d_weights() const { return d_weights; }
  __device__ __forceinline__ explicit Scaling(const Backward& p)
      : scores(p.scale.value() * p.fp8.product(DESCALE_Q, DESCALE_K)), d_weights(p.fp8.d_weights(p.scale)) {}
#else
  __device__ __forceinline__ f32 of_d_weights() const { return 1; }
  __device__ __forceinline__ explicit Scaling(const Backward& p) : scores(p.scale.value()) {}
#endif
};

template <int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ void multiply_all(f32 (&values)[ROW_PARTS][COLUMN_BLOCKS][4], f32 factor) {
#pragma unroll
  for (int i = 0; i < ROW_PARTS * COLUMN_BLOCKS * 4; ++i)
    values[i / (COLUMN_BLOCKS * 4)][i / 4 % COLUMN_BLOCKS][i % 4] *= factor;
}

// Returns two values, rounded to T, as one word of an operand.
template <class T> __device__ __forceinline__ u32 operand_word(const f32* pair) {
  if constexpr (sizeof(T) == 1) {
    return widened_pair(Tag<T>(), packed_pair(Tag<T>(), pair));
  } else {
    return packed(Tag<T>(), pair[0], pair[1]);
  }
}

// Returns the largest magnitude of the thread's values, as bits of f32.
template <int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ u32 largest_of(const f32 (&values)[ROW_PARTS][COLUMN_BLOCKS][4]) {
  u32 largest = 0;
#pragma unroll
  for (int i = 0; i < ROW_PARTS * COLUMN_BLOCKS * 4; ++i)
    largest = ::max(largest, __float_as_uint(fabsf(values[i / (COLUMN_BLOCKS * 4)][i / 4 % COLUMN_BLOCKS][i % 4])));
  return largest;
}

// Combines `largest` * |factor| with the largest magnitude at `to`, unless that is null. `largest` is in bits of f32.
__device__ __forceinline__ void store_largest(u32* to, u32 largest, f32 factor) {
  if (to) join_largest(to, __float_as_uint(fabsf(__uint_as_float(largest) * factor)));
}

// Returns the factor from sums of products to stored gradients. In fp8 it also stores the largest magnitude of the
// gradients before their scale is applied.
template <int ROW_PARTS, int COLUMN_BLOCKS>
__device__ __forceinline__ f32 factor_of(const Backward& p, Result result,
                                         const f32 (&sums)[ROW_PARTS][COLUMN_BLOCKS][4]) {
#if IS_FP8
  const f32 factor = p.fp8.factor(result);
  store_largest(p.fp8.largest[result], largest_of(sums), factor);
  return factor * p.fp8.value(SCALE_DQ + result);
#else
  return result == OF_V ? 1.0f : p.scale.value();
#endif
}
